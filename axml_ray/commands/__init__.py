"""The commands of `axml-ray`, one module each; the scripts in `jobs/` call the same functions."""
