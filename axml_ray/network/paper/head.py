"""Fully connected layers and output layer, shared by all labels (paper, section 2.4.4).

A ReLU follows each fully connected layer; there is no dropout.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Head(nn.Module):
    """The layers from a label's context vector to its logit.

    Args:
        dimension: D, length of a context vector.
        layers: units of the fully connected layers, at least one.
    """

    def __init__(self, dimension: int, layers: Sequence[int]):
        super().__init__()
        sizes = [dimension, *layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], 1)
        for layer in (*self.layers, self.output):
            nn.init.xavier_uniform_(layer.weight)

    def fully_connected(self, contexts: Tensor) -> Tensor:
        """Apply the fully connected layers to context vectors [..., D]: [..., units of the last layer]."""
        for layer in self.layers:
            contexts = functional.relu(layer(contexts))
        return contexts

    @torch.no_grad()
    def initialise_output_bias(self, positive_rate: float) -> None:
        """Set the output bias to the log-odds of the positive rate. Not in the paper.

        Labels are rare; from a bias of zero, the first epochs would be spent on learning just that.

        Args:
            positive_rate: share of (document, candidate) pairs that are positive.
        """
        self.output.bias.fill_(log_odds(positive_rate))

    def project(self, states_BTD: Tensor) -> Tensor:
        """Multiply hidden states by the first layer's weight W₁, without its bias: [B, T, F].

        Attention weights sum to one over words, so (Σ_t α_t ĥ_t) W₁ = Σ_t α_t (ĥ_t W₁): the fused implementation
        multiplies T states of a text by W₁ instead of the context vectors of all its candidates.
        """
        return functional.linear(states_BTD, self.layers[0].weight)  # type: ignore[arg-type]

    def parameters_after_projection(self) -> tuple[Tensor, ...]:
        """Return the parameters that `project` has not applied.

        They are the bias of the first layer, weight and bias of each further layer, weight and bias of the output.
        """
        return tuple(self.parameters())[1:]


def log_odds(rate: float) -> float:
    """Return log(rate / (1 - rate)), of a rate that is kept away from 0 and 1 so that the result is finite.

    In a tiny corpus all candidates may be positive, or none.
    """
    rate = min(max(rate, 1e-9), 0.999)
    return math.log(rate / (1 - rate))
