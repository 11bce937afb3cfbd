"""Documents down trained trees."""
