"""The paper's network in float64, as its equations are written: text by text, word by word, label by label.

Slow on purpose. Nothing is batched, padded, masked, folded or gathered; names are those of the fast network's
`state_dict`, so that values and gradients can be compared one by one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Parameters = dict[str, Tensor]


def parameters_of(network: nn.Module) -> Parameters:
    """A float64 copy of a network's parameters, each with a gradient of its own."""
    return {name: value.detach().double().clone().requires_grad_() for name, value in network.named_parameters()}


def lstm_step(p: Parameters, name: str, word: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One cell of the LSTM: input, forget, cell and output gates (Hochreiter and Schmidhuber)."""
    gates = p[f"{name}.weight_ih_l0"] @ word + p[f"{name}.bias_ih_l0"]
    gates = gates + p[f"{name}.weight_hh_l0"] @ h + p[f"{name}.bias_hh_l0"]
    i, f, g, o = gates.split(len(h))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def hidden_states(p: Parameters, words: Sequence[int]) -> list[Tensor]:
    """ĥ_t: the forward state after words 1 to t followed by the backward state after words T to t."""
    embedded = [p["encoder.embedding.weight"][word] for word in words]
    ahead, back = [], [torch.empty(0)] * len(words)
    h, c = p["encoder.first_state"][0]
    for word in embedded:
        h, c = lstm_step(p, "encoder.forward_lstm", word, h, c)
        ahead.append(h)
    h, c = p["encoder.first_state"][1]
    for t in reversed(range(len(words))):
        h, c = lstm_step(p, "encoder.backward_lstm", embedded[t], h, c)
        back[t] = h
    return [torch.cat([one, other]) for one, other in zip(ahead, back, strict=True)]


def attention(states: Sequence[Tensor], w: Tensor) -> Tensor:
    """Equation 2: m_j = Σ α_ij ĥ_i with α_ij = exp(ĥ_i w_j) / Σ_t exp(ĥ_t w_j)."""
    weights = [torch.exp(state @ w) for state in states]
    total = sum(weights)
    return sum(weight / total * state for weight, state in zip(weights, states, strict=True))


def logit(p: Parameters, states: Sequence[Tensor], w: Tensor) -> Tensor:
    """The fully connected layers, ReLU after each, and the output layer, of one label.

    Not in the paper: where the network has a weight for evidence, the log of the mean of exp(ĥ_i w_j) is added.
    """
    values = attention(states, w)
    layer = 0
    while f"head.layers.{layer}.weight" in p:
        values = torch.relu(p[f"head.layers.{layer}.weight"] @ values + p[f"head.layers.{layer}.bias"])
        layer += 1
    result = (p["head.output.weight"] @ values + p["head.output.bias"])[0]
    if "evidence_weight" in p:
        mean = sum(torch.exp(state @ w) for state in states) / len(states)
        result = result + p["evidence_weight"] * torch.log(mean)
    return result


def node_vector(p: Parameters, node: int, first_child: Sequence[int] | None) -> Tensor:
    """w_j: row j where all nodes are scored; else the node's place in the block of its parent."""
    table = p["attention.weight"]
    if first_child is None:
        return table[node]
    parent = max(i for i in range(len(first_child) - 1) if first_child[i] <= node)
    children = max(first_child[i + 1] - first_child[i] for i in range(len(first_child) - 1))
    size = table.shape[1] // children
    start = (node - first_child[parent]) * size
    return table[parent][start : start + size]


def logits(
    p: Parameters, texts: Sequence[Sequence[int]], nodes: Sequence[Sequence[int]], first_child: Sequence[int] | None
) -> list[list[Tensor]]:
    """One logit for each of the candidate `nodes` of each text."""
    found = []
    for words, candidates in zip(texts, nodes, strict=True):
        states = hidden_states(p, words)
        found.append([logit(p, states, node_vector(p, node, first_child)) for node in candidates])
    return found


def loss(scores: Sequence[Sequence[Tensor]], nodes: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> Tensor:
    """Binary cross-entropy, the mean over all candidates of all texts."""
    parts = []
    for row, candidates, true in zip(scores, nodes, truth, strict=True):
        for score, node in zip(row, candidates, strict=True):
            probability = torch.sigmoid(score)
            parts.append(-torch.log(probability) if node in true else -torch.log(1 - probability))
    return torch.stack(parts).mean()
