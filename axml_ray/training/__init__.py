"""A level, a tree, an ensemble."""
