"""Heads of the fused pass: they compute logits from attention scores, and go back, for a few documents at a time.

Forward and backward are written by hand instead of with autograd, since the gradient of the loss is known as soon as
the logits are, and nothing needs to be kept for later.

Legend: g documents of a group, T tokens, n nodes scored, F units of the first fully connected layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from axml_ray.network.backend import backend_for
from axml_ray.network.torch_internals import relu_backward_


class FusedHead(Protocol):
    """A head with a forward and a backward pass written by hand. One object serves one pass over one batch.

    Attributes:
        parameters: the head's parameters.
        gradients: their gradients in the same order, added up by `backward`.
    """

    parameters: tuple[Tensor, ...]
    gradients: list[Tensor]

    @property
    def values_per_node(self) -> int:
        """Return how many values the passes hold for a node and a document, attention scores not counted."""
        ...

    def forward(self, scores_gnT: Tensor, values_gTF: Tensor, lengths_g: Tensor) -> tuple[Tensor, Any]:
        """Compute logits from the scores ĥ_t·ŵ_j.

        Args:
            scores_gnT: scores of nodes and words, in the backend's memory layout; may be overwritten.
            values_gTF: what is averaged over words.
            lengths_g: int64, words of each text.

        Returns:
            Logits [g, n], float32 or wider, and what `backward` needs.
        """
        ...

    def backward(self, saved: Any, logit_gradients_gn: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of scores and values (None if these are empty); add up those of the parameters."""
        ...


@dataclass
class FusedAttentionHead:
    """AttentionXML's head: softmax over a text's words, fully connected layers, output, and optionally the evidence.

    Attributes:
        parameters: bias of the first layer; weight and bias of each further layer; weight and bias of the output; last,
            if `has_evidence`, the weight of the evidence.
        has_evidence: whether the evidence is added to the logits (not in the paper).
    """

    parameters: tuple[Tensor, ...]
    has_evidence: bool = False
    gradients: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._converted: dict[torch.dtype, tuple[Tensor, ...]] = {}

    @property
    def values_per_node(self) -> int:
        """Return twice the units of all fully connected layers: their outputs and the gradients of these."""
        return 2 * sum(len(bias) for bias in self.parameters[: -2 - self.has_evidence : 2])

    def forward(self, scores_gnT: Tensor, values_gTF: Tensor, lengths_g: Tensor) -> tuple[Tensor, Any]:
        """Compute logits as `FusedHead.forward` says; the values are the projected hidden states."""
        own = self._in_format(values_gTF.dtype)
        layers, *_ = self._split(own)
        backend = backend_for(scores_gnT.device)
        backend.mask_padding_(scores_gnT, lengths_g)
        weights_gnT = backend.softmax(scores_gnT)
        # Equation 2 and the first layer at once: the values are already multiplied by the layer's weight.
        first = torch.baddbmm(own[0], weights_gnT, values_gTF).relu_()
        outputs = [first]
        for weight, bias in layers:
            flat = torch.addmm(bias, outputs[-1].flatten(0, 1), weight.t()).relu_()
            outputs.append(flat.view(*first.shape[:2], -1))
        # The sum of the output layer in float32: bfloat16 has 8 bits, and many labels' logits would be equal.
        wide = torch.promote_types(own[0].dtype, torch.float32)
        _, output_weight, output_bias = self._split(self._in_format(wide))
        last = outputs[-1].flatten(0, 1)
        logits = torch.mv(last.to(wide), output_weight.flatten()).view(first.shape[:2])
        logits = logits + output_bias
        evidence = None
        if self.has_evidence:
            # log Σ exp(score) = score - log softmax(score) for any word. The word of the largest score is taken, whose
            # weight is at least 1 / T, so that its logarithm is accurate.
            log_sum = scores_gnT.amax(2).to(wide) - weights_gnT.amax(2).to(wide).log()
            evidence = log_sum - lengths_g[:, None].to(wide).log()
            logits = logits + self._in_format(wide)[-1] * evidence
        return logits, (weights_gnT, values_gTF, outputs, evidence)

    def backward(self, saved: Any, logit_gradients_gn: Tensor) -> tuple[Tensor, Tensor]:
        """Go back as `FusedHead.backward` says, layer by layer from the output to the scores."""
        weights_gnT, values_gTF, outputs, evidence = saved
        backend = backend_for(weights_gnT.device)
        own, wide = self._in_format(values_gTF.dtype), logit_gradients_gn.dtype
        layers, output_weight, _ = self._split(own)
        layer_gradients, output_weight_gradient, output_bias_gradient = self._split(self.gradients)
        narrow_gn = logit_gradients_gn.to(values_gTF.dtype)
        output_bias_gradient += logit_gradients_gn.sum()
        output_weight_gradient += torch.mv(outputs[-1].flatten(0, 1).t(), narrow_gn.flatten())
        gradient = relu_backward_(narrow_gn[..., None] * output_weight, outputs[-1])
        for i in range(len(layers) - 1, -1, -1):
            flat = gradient.flatten(0, 1)
            layer_gradients[i][0].add_(flat.t() @ outputs[i].flatten(0, 1))
            layer_gradients[i][1].add_(flat.sum(0, dtype=wide))
            gradient = relu_backward_((flat @ layers[i][0]).view_as(outputs[i]), outputs[i])
        self.gradients[0] += gradient.sum((0, 1), dtype=wide)
        value_gradients = torch.bmm(weights_gnT.transpose(1, 2), gradient)
        weight_gradients = backend.products(gradient, values_gTF, like=weights_gnT)
        score_gradients = backend.softmax_backward(weight_gradients, weights_gnT)
        if evidence is not None:
            self.gradients[-1] += (logit_gradients_gn * evidence).sum()
            # The derivative of log Σ exp(score) is the softmax.
            score_gradients.addcmul_(weights_gnT, (narrow_gn * own[-1])[..., None])
        return score_gradients, value_gradients

    def _split(self, tensors: Sequence[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
        """Return (weight, bias) of each layer after the first, and weight and bias of the output."""
        end = len(tensors) - self.has_evidence
        layers = [(tensors[i], tensors[i + 1]) for i in range(1, end - 2, 2)]
        return layers, tensors[end - 2], tensors[end - 1]

    def _in_format(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the parameters in a number format, converted once for all groups of a batch."""
        if dtype not in self._converted:
            self._converted[dtype] = tuple(parameter.to(dtype) for parameter in self.parameters)
        return self._converted[dtype]
