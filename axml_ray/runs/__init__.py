"""A run: its cache keys, its artifacts, and the fitting of its parts."""
