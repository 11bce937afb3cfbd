"""The shallow and wide label tree (paper, section 2.2): clustering of labels, compression, and other kinds of trees.

Read `label_tree.py` first: it says what a tree is and how it is compressed (algorithms 1 and 2).
"""
