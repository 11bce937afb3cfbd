"""The attention-aware network of one level of a tree, and its optimizer."""
