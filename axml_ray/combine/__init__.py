"""Combiners of the members' scores into the ensemble's. `combiner.py` has the interface and the registry."""
