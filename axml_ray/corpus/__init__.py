"""Text in, integers out."""
