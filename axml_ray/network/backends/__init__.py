"""Backends of devices, and the number formats of their products."""
