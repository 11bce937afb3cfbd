"""Linear classifiers of the nodes of a label tree: a second opinion beside its networks."""
