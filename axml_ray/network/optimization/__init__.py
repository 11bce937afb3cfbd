"""Optimizers, averages of weights, loss scale."""
