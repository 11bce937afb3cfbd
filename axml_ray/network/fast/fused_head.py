"""Softmax, head and back: the part of the fused pass that a few documents go through at a time.

Forward and backward are written by hand instead of with autograd, since the gradient of the loss is known as soon as
the logits are, and nothing needs to be kept for later.

Legend: g documents of a group, T tokens, n nodes scored, F units of the first fully connected layer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.fast.torch_internals import relu_backward_, softmax_backward


class EagerAttention:
    """Equation 2 in eager PyTorch, from scores that are computed already.

    Args:
        scores_gnT: scores ĥ_t·ŵ_j, in the backend's memory layout; overwritten at padding.
    """

    def __init__(self, scores_gnT: Tensor):
        self.scores, self.backend = scores_gnT, backend_for(scores_gnT.device)

    def forward(self, values_gTF: Tensor, lengths_g: Tensor, with_log_sums: bool) -> tuple[Tensor, Tensor | None]:
        """Return the values weighted by attention.

        Returns:
            [g, n, F], and if they are wanted the logarithms of the sums of the scores' exponentials, [g, n].
        """
        self.backend.mask_padding_(self.scores, lengths_g)
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
        return contexts, log_sums

    def backward(self, gradients_gnF: Tensor, log_sum_gradients_gn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradients of scores and values, [g, n, T] and [g, T, F].

        Args:
            gradients_gnF: gradients of the weighted sums; zero wherever a ReLU in place has changed these.
            log_sum_gradients_gn: gradients of the logarithms; None if they are not used.
        """
        value_gradients = torch.bmm(self.weights.transpose(1, 2), gradients_gnF)
        weight_gradients = self.backend.products(gradients_gnF, self.values, like=self.weights)
        order = _memory_order(self.weights)
        score_gradients = _permute_back(
            softmax_backward(weight_gradients.permute(order), self.weights.permute(order), order.index(2)), order
        )
        if log_sum_gradients_gn is not None:  # the derivative of log Σ exp(score) is the softmax
            score_gradients.addcmul_(self.weights, log_sum_gradients_gn.to(self.weights.dtype)[..., None])
        return score_gradients, value_gradients


def _memory_order(values: Tensor) -> list[int]:
    """Return the dimensions of a tensor from the outermost to the innermost in memory."""
    return sorted(range(values.ndim), key=values.stride, reverse=True)


def _permute_back(values: Tensor, order: list[int]) -> Tensor:
    """Undo `permute(order)`."""
    return values.permute([order.index(dimension) for dimension in range(len(order))])


class FusedHead:
    """AttentionXML's head: softmax over a text's words, fully connected layers, output, and optionally the evidence.

    One object serves one pass over one batch, and adds up the gradients of its parameters.

    Args:
        parameters: weight and bias of each layer but the first; weight and bias of the output; last, if `has_evidence`,
            the weight of the evidence.
        has_evidence: whether the evidence is added to the logits (not in the paper).

    Attributes:
        gradients: gradients of the parameters in the same order, added up by `backward`.
        values_per_node: values that both passes hold for a node and a document, attention scores not counted: the
            outputs of all fully connected layers and the gradients of these.
    """

    def __init__(self, parameters: tuple[Tensor, ...], has_evidence: bool = False):
        self.parameters, self.has_evidence = parameters, has_evidence
        self.gradients = [torch.zeros_like(parameter) for parameter in parameters]
        # Each weight has a column for each output of the layer before it.
        self.values_per_node = 2 * sum(weight.shape[1] for weight in parameters[: len(parameters) - has_evidence : 2])
        self._converted: dict[torch.dtype, tuple[Tensor, ...]] = {}

    def forward(self, attention: EagerAttention, values_gTF: Tensor, lengths_g: Tensor) -> tuple[Tensor, Any]:
        """Compute logits.

        Args:
            attention: of the nodes to the documents' words; it is used up.
            values_gTF: what is averaged over words, the outputs of the first layer for each of them.
            lengths_g: int64, words of each text.

        Returns:
            Logits [g, n], float32 or wider, and what `backward` needs.
        """
        parameters = self._in_format(values_gTF.dtype)
        layers, *_ = self._split(parameters)
        contexts, log_sums = attention.forward(values_gTF, lengths_g, self.has_evidence)
        first = contexts.relu_()
        outputs = [first]
        for weight, bias in layers:
            flat = torch.addmm(bias, outputs[-1].flatten(0, 1), weight.t()).relu_()
            outputs.append(flat.view(*first.shape[:2], -1))
        # The sum of the output layer in float32: bfloat16 has 8 bits, and many labels' logits would be equal.
        wide = torch.promote_types(values_gTF.dtype, torch.float32)
        _, output_weight, output_bias = self._split(self._in_format(wide))
        last = outputs[-1].flatten(0, 1)
        logits = torch.mv(last.to(wide), output_weight.flatten()).view(first.shape[:2])
        logits = logits + output_bias
        evidence = None
        if log_sums is not None and self.has_evidence:
            evidence = log_sums - lengths_g[:, None].to(wide).log()
            logits = logits + self._in_format(wide)[-1] * evidence
        return logits, (attention, outputs, evidence)

    def backward(self, saved: Any, logit_gradients_gn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of scores and values; add up those of the parameters, from the output to the scores."""
        attention, outputs, evidence = saved
        parameters, wide = self._in_format(outputs[0].dtype), logit_gradients_gn.dtype
        layers, output_weight, _ = self._split(parameters)
        layer_gradients, output_weight_gradient, output_bias_gradient = self._split(self.gradients)
        narrow_gn = logit_gradients_gn.to(outputs[0].dtype)
        output_bias_gradient += logit_gradients_gn.sum()
        # Twice as fast on a CPU as the product of a transposed matrix with a vector.
        output_weight_gradient += narrow_gn.view(1, -1) @ outputs[-1].flatten(0, 1)
        gradient = relu_backward_(narrow_gn[..., None] * output_weight, outputs[-1])
        for i in range(len(layers) - 1, -1, -1):
            flat = gradient.flatten(0, 1)
            layer_gradients[i][0].add_(flat.t() @ outputs[i].flatten(0, 1))
            layer_gradients[i][1].add_(flat.sum(0, dtype=wide))
            gradient = relu_backward_((flat @ layers[i][0]).view_as(outputs[i]), outputs[i])
        log_sum_gradients = None
        if evidence is not None:
            self.gradients[-1] += (logit_gradients_gn * evidence).sum()
            log_sum_gradients = narrow_gn * parameters[-1]
        gradients: tuple[Tensor, Tensor] = attention.backward(gradient, log_sum_gradients)
        return gradients

    def _split(self, tensors: Sequence[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
        """Return (weight, bias) of each layer after the first, and weight and bias of the output."""
        end = len(tensors) - self.has_evidence
        layers = [(tensors[i], tensors[i + 1]) for i in range(0, end - 2, 2)]
        return layers, tensors[end - 2], tensors[end - 1]

    def _in_format(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the parameters in a number format, converted once for all groups of a batch."""
        if dtype not in self._converted:
            self._converted[dtype] = tuple(parameter.to(dtype) for parameter in self.parameters)
        return self._converted[dtype]
