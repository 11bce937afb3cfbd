"""Search spaces for `axml-ray tune`: copy one, change it, and name the copy with --space."""
