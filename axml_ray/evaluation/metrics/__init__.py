"""Measures, intervals and comparisons of rankings."""
