"""The layout of a run's directory, and array files with a format, a version and a cache key."""
