"""The attention-aware network of one level of a label tree (paper, sections 2.4 and 2.5), and its optimizer.

Read `attention_xml.py` first: `AttentionXML.forward` is the paper's network, layer by layer.
"""
