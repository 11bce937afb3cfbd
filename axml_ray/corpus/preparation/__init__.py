"""Preparation of a corpus with Ray Data, pass by pass."""
