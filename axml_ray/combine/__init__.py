"""Combiners: how the members' scores become the ensemble's. `combiner.py` has the interface and the registry."""
