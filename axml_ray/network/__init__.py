"""The attention-aware network of one level of a label tree (paper, sections 2.4 and 2.5), and its optimizer.

Read `paper/attention_xml.py` first: it is the paper's network, layer by layer, and `paper/loss.py` its loss. `fast/`
computes the same in less time and memory, `backends/` has what differs by device, `optimization/` Adam and averaging.
"""
