"""Fully connected and output layers, shared by all labels (paper, "Fully Connected and Output Layer").

ReLU stands after each fully connected layer; there is no dropout. The layers are applied where attention's values are
at hand (`one_pass`); only the first one's weight is applied before, to the tokens.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Head(nn.Module):
    """Hidden states, averaged by attention, to one logit a label.

    Args:
        dimension: D, of the hidden states.
        layers: units of the fully connected layers.
    """

    def __init__(self, dimension: int, layers: Sequence[int]):
        super().__init__()
        sizes = [dimension, *layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], 1)
        for layer in (*self.layers, self.output):
            nn.init.xavier_uniform_(layer.weight)

    @torch.no_grad()
    def expect(self, rate: float) -> None:
        """Start at a share `rate` of true labels, so that training doesn't begin by unlearning one half."""
        rate = min(max(rate, 1e-9), 0.999)  # in a tiny corpus, all labels may be true of all documents
        self.output.bias.fill_(math.log(rate / (1 - rate)))

    def fold(self, states_BTD: Tensor) -> Tensor:
        """The states times the first layer's weight, [B, T, F]."""
        return functional.linear(states_BTD, self.layers[0].weight)  # type: ignore[arg-type]

    def rest(self) -> tuple[Tensor, ...]:
        """Bias of the first layer, weight and bias of each further one, weight and bias of the output."""
        return tuple(self.parameters())[1:]
