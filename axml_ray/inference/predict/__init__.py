"""Prediction of files and splits with Ray."""
