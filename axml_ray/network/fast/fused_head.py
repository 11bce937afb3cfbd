"""The head and back: with attention, the part of the fused pass that a few documents go through at a time.

Forward and backward are written by hand instead of with autograd, since the gradient of the loss is known as soon as
the logits are, and nothing needs to be kept for later.

Legend: g documents of a group, T tokens, n nodes scored, F units of the first fully connected layer; x and z as in
`eager_attention`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from axml_ray.network.fast.eager_attention import EagerAttention
from axml_ray.network.fast.torch_internals import relu_backward_


class FusedHead:
    """AttentionXML's head: softmax over a text's words, fully connected layers, output, and optionally the evidence.

    One object serves one pass over one batch, and adds up the gradients of its parameters.

    Args:
        parameters: weight and bias of each layer but the first; weight and bias of the output; last, if `has_evidence`,
            the weight of the evidence.
        has_evidence: whether the evidence is added to the logits (not in the paper).

    Attributes:
        has_layers: whether layers follow the first one.
        gradients: gradients of the parameters in the same order, added up by `backward`.
        values_per_node: values that both passes hold for a node and a document, attention scores not counted: the
            outputs of all fully connected layers and the gradients of these.
    """

    def __init__(self, parameters: tuple[Tensor, ...], has_evidence: bool = False):
        self.parameters, self.has_evidence = parameters, has_evidence
        self.has_layers = len(parameters) - has_evidence > 2
        self.gradients = [torch.zeros_like(parameter) for parameter in parameters]
        # Each weight has a column for each output of the layer before it.
        self.values_per_node = 2 * sum(weight.shape[1] for weight in parameters[: len(parameters) - has_evidence : 2])
        self._converted: dict[torch.dtype, tuple[Tensor, ...]] = {}

    def forward(self, attention: EagerAttention, values_gTF: Tensor, lengths_g: Tensor) -> tuple[Tensor, Any]:
        """Compute logits.

        Args:
            attention: of the nodes to the documents' words; it is used up. If layers follow the first one, its z is 1.
            values_gTF: what is averaged over words, the outputs of the first layer for each of them.
            lengths_g: int64, words of each text.

        Returns:
            Logits [g, n], float32 or wider, and what `backward` needs.
        """
        parameters = self._in_format(values_gTF.dtype)
        layers, *_ = self._split(parameters)
        contexts, sums, log_sums = attention.forward(values_gTF, lengths_g, self.has_evidence)
        outputs = [contexts.relu_()]
        for weight, bias in layers:
            flat = torch.addmm(bias, outputs[-1].flatten(0, 1), weight.t()).relu_()
            outputs.append(flat.view(*contexts.shape[:2], -1))
        # The sum of the output layer in float32: bfloat16 has 8 bits, and many labels' logits would be equal.
        wide = torch.promote_types(values_gTF.dtype, torch.float32)
        _, output_weight, output_bias = self._split(self._in_format(wide))
        last = outputs[-1].flatten(0, 1)
        products = torch.mv(last.to(wide), output_weight.flatten()).view(contexts.shape[:2])
        # relu(x / z) = relu(x) / z, so the few products are divided by z instead.
        scale = None if sums is None else 1 / sums
        logits = (products if scale is None else products * scale) + output_bias
        evidence = None
        if log_sums is not None and self.has_evidence:
            evidence = log_sums - lengths_g[:, None].to(wide).log()
            logits = logits + self._in_format(wide)[-1] * evidence
        return logits, (attention, outputs, products, scale, evidence)

    def backward(self, saved: Any, logit_gradients_gn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of scores and values; add up those of the parameters, from the output to the scores."""
        attention, outputs, products, scale, evidence = saved
        parameters, wide = self._in_format(outputs[0].dtype), logit_gradients_gn.dtype
        layers, output_weight, _ = self._split(parameters)
        layer_gradients, output_weight_gradient, output_bias_gradient = self._split(self.gradients)
        narrow_gn = (logit_gradients_gn if scale is None else logit_gradients_gn * scale).to(outputs[0].dtype)
        output_bias_gradient += logit_gradients_gn.sum()
        # Twice as fast on a CPU as the product of a transposed matrix with a vector.
        output_weight_gradient += narrow_gn.view(1, -1) @ outputs[-1].flatten(0, 1)
        gradient = relu_backward_(narrow_gn[..., None] * output_weight, outputs[-1])
        for i in range(len(layers) - 1, -1, -1):
            flat = gradient.flatten(0, 1)
            layer_gradients[i][0].add_(flat.t() @ outputs[i].flatten(0, 1))
            layer_gradients[i][1].add_(flat.sum(0, dtype=wide))
            gradient = relu_backward_((flat @ layers[i][0]).view_as(outputs[i]), outputs[i])
        constants = None
        if evidence is not None:
            self.gradients[-1] += (logit_gradients_gn * evidence).sum()
            constants = logit_gradients_gn * parameters[-1]
        if scale is not None:
            inner = narrow_gn * products  # c·G = x·g, of the rounded gradients that the words' values are multiplied by
            constants = (-inner if constants is None else constants - inner) * scale
        gradients: tuple[Tensor, Tensor] = attention.backward(gradient, constants)
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
