"""Ensemble members: whatever scores labels for a text. `member.py` has the interface, `registry.py` the kinds."""
