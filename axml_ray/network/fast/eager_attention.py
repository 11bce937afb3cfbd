"""Equation 2 for a group of documents, forward and back, from scores that are computed already.

`SoftmaxAttention` calls PyTorch's kernels, the fastest on a GPU. On a CPU these take as long as the matrix products
around them, so `ExponentialAttention` never divides the exponentials e_t of a node's scores by their sum z:

    c = Σ_t α_t v_t = x / z,  with  x = Σ_t e_t v_t  and  z = Σ_t e_t,

and the head multiplies its few outputs by 1 / z. With the gradients G of c and l of ln z, and g = G / z,

    ∂/∂score_t = α_t (v_t·G - c·G + l) = e_t (v_t·g + (l - c·G) / z).

The exponentials take the place of the scores, and the gradients that of the exponentials.

Legend: g documents of a group, T tokens, n nodes scored, F values of a word that are averaged.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.fast.torch_internals import softmax_backward

LARGEST_SCORE = 40.0
"""Scores within this distance of 0 are not shifted: float32 and bfloat16 hold e^40, its reciprocal, and what the small
gradients of a loss are after a division by it."""


class EagerAttention(ABC):
    """Attention of nodes to the words of documents.

    Args:
        scores_gnT: scores ĥ_t·ŵ_j, in the backend's memory layout; overwritten.
    """

    def __init__(self, scores_gnT: Tensor):
        self.scores, self.backend = scores_gnT, backend_for(scores_gnT.device)

    @abstractmethod
    def forward(
        self, values_gTF: Tensor, lengths_g: Tensor, with_log_sums: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the values weighted by attention.

        Returns:
            [g, n, F] x; float32 or wider [g, n] z by which it is still to be divided, None for 1; and if they are
            wanted the logarithms of the sums of the scores' exponentials, [g, n].
        """

    @abstractmethod
    def backward(self, gradients_gnF: Tensor, constants_gn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradients of scores and values, [g, n, T] and [g, T, F].

        Args:
            gradients_gnF: gradients of x; zero wherever a ReLU in place has changed it.
            constants_gn: what each weight is multiplied by and added to the gradient of its score: the gradients of the
                logarithms, None if they are not used; of `ExponentialAttention` (l - c·G) / z.
        """


class SoftmaxAttention(EagerAttention):
    """Attention by PyTorch's softmax."""

    def forward(
        self, values_gTF: Tensor, lengths_g: Tensor, with_log_sums: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the weighted values, which need no division, and the logarithms."""
        self.backend.mask_padding_(self.scores, lengths_g, -torch.inf)
        # PyTorch's softmax copies what is not contiguous, so it gets the scores as they are in memory.
        order = _memory_order(self.scores)
        self.weights = _permute_back(torch.softmax(self.scores.permute(order), order.index(2)), order)
        self.values = values_gTF
        # Equation 2 and the first layer at once: the values are what the layer makes of the states.
        contexts, log_sums = torch.bmm(self.weights, values_gTF), None
        if with_log_sums:
            # log Σ exp(score) = score - log softmax(score) for any word. The word of the largest score is taken, whose
            # weight is at least 1 / T, so that its logarithm is accurate.
            wide = torch.promote_types(values_gTF.dtype, torch.float32)
            log_sums = self.scores.amax(2).to(wide) - self.weights.amax(2).to(wide).log()
        return contexts, None, log_sums

    def backward(self, gradients_gnF: Tensor, constants_gn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradients; those of the scores are new."""
        value_gradients = torch.bmm(self.weights.transpose(1, 2), gradients_gnF)
        weight_gradients = self.backend.products(gradients_gnF, self.values, like=self.weights)
        order = _memory_order(self.weights)
        score_gradients = _permute_back(
            softmax_backward(weight_gradients.permute(order), self.weights.permute(order), order.index(2)), order
        )
        if constants_gn is not None:  # the derivative of log Σ exp(score) is the softmax
            score_gradients.addcmul_(self.weights, constants_gn.to(self.weights.dtype)[..., None])
        return score_gradients, value_gradients


class ExponentialAttention(EagerAttention):
    """Attention by exponentials that are not divided by their sum; it reads the range of the scores."""

    def forward(
        self, values_gTF: Tensor, lengths_g: Tensor, with_log_sums: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return x, z and the logarithms."""
        wide = torch.promote_types(values_gTF.dtype, torch.float32)
        self.backend.mask_padding_(self.scores, lengths_g, 0.0)
        lowest, highest = torch.aminmax(self.scores.permute(_memory_order(self.scores)))  # which copies other views
        shifts = None
        if not (lowest >= -LARGEST_SCORE and highest <= LARGEST_SCORE):
            self.backend.mask_padding_(self.scores, lengths_g, -torch.inf)
            shifts = self.scores.amax(2)
            self.scores -= shifts[..., None]
        self.exponentials, self.values = self.scores.exp_(), values_gTF
        self.backend.mask_padding_(self.exponentials, lengths_g, 0.0)
        sums = self.exponentials.sum(2, dtype=wide)
        log_sums = None
        if with_log_sums:
            log_sums = sums.log() if shifts is None else sums.log() + shifts
        return torch.bmm(self.exponentials, values_gTF), sums, log_sums

    def backward(self, gradients_gnF: Tensor, constants_gn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradients; those of the scores take the place of the scores."""
        assert constants_gn is not None
        value_gradients = torch.bmm(self.exponentials.transpose(1, 2), gradients_gnF)
        factors = self.backend.products(gradients_gnF, self.values)
        factors += constants_gn.to(factors.dtype)[..., None]
        return self.exponentials.mul_(factors), value_gradients


def _memory_order(values: Tensor) -> list[int]:
    """Return the dimensions of a tensor from the outermost to the innermost in memory."""
    return sorted(range(values.ndim), key=values.stride, reverse=True)


def _permute_back(values: Tensor, order: list[int]) -> Tensor:
    """Undo `permute(order)`."""
    return values.permute([order.index(dimension) for dimension in range(len(order))])
