"""Labels in, a shallow and wide tree out."""
