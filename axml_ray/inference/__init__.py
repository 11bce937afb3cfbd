"""Prediction with trained ensembles: bundles, the Tagger, batch prediction and explanations."""
