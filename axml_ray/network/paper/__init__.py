"""The paper's network and loss in plain PyTorch; `network.implementation: plain` trains and predicts with them.

Read `attention_xml.py` first, then `loss.py`. The package `fast` computes the same in less time and memory.
"""
