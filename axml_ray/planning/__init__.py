"""Estimates of the memory and time that a training needs, computed before it is started."""
