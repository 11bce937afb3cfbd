"""The training of label-tree networks, level by level (paper, "Learning AttentionXML"); without Ray."""
