"""Hyperparameter search with Ray Tune, by trials on a part of a corpus."""
