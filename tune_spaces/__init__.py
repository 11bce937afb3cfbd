"""Search spaces for `jobs/tune.py`: copy one, change it, and name the copy with --space."""
