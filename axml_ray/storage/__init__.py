"""What lies where on disk, under which cache key, and how it is written atomically."""
