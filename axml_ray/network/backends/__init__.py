"""What differs by device: backends, precisions."""
