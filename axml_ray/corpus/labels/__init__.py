"""The label index, label names and label features."""
