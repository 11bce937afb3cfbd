"""The paper's network and loss in plain PyTorch; `network.implementation: plain` trains and predicts with them.

Read `attention_xml.py` first (`AttentionXML.encode`, then `score`), then `loss.py`. `LevelNetwork` looks up the
attention vectors ŵ_j of a document's candidates, the rows of its label table, and calls both. The package `fast`
computes the same in less time and memory.
"""
