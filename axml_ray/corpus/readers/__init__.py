"""Readers of what people have: JSON, CSV, Parquet, plain text, repositories' formats."""
