"""Bundles: what serving needs of a run, in one directory."""
