"""An LSTM in the form for which cuDNN has its fastest kernels, also in float16.

PyTorch takes cuDNN's persistent kernels (`use_persist_common_heuristics` and `use_persist_device_heuristics` in
ATen/native/cudnn/RNN.cpp) for a single layer and direction in float16, with input and hidden sizes that are multiples
of 128, and batches that are multiples of 8 and at most 128. So words are padded with zeros and batches are split.

float16 has a range of 6e-8 to 65504, so small gradients would vanish. The gradient of the output is multiplied by a
power of two that brings its largest value to `LARGEST`, and the gradients of words, state and weights are divided by
it in float32. The factor is computed on the device.

Shapes: B documents, T tokens, E word dimension, N hidden units.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.fast.torch_internals import lstm_layer

INPUT_MULTIPLE = 128
"""Word dimensions are padded to a multiple of this."""
BATCH_MULTIPLE, MOST_DOCUMENTS = 8, 128
"""Documents of a part of a batch."""
LARGEST = 2.0**-6
"""Largest gradient of an output in float16: sums over 10^5 positions stay far below the largest number."""


def run_lstm(lstm: nn.LSTM, words_BTE: Tensor, state: Tensor, dtype: torch.dtype) -> Tensor:
    """Run an LSTM in a number format, and return its output in the format of the words, [B, T, N].

    Args:
        lstm: batch first; its weights may be in any format.
        words_BTE: the input.
        state: the initial state, [2, 1, B, N]: h and c.
        dtype: number format of the computation; in float16, gradients are scaled.
    """
    factor = _Factor(dtype)
    width = words_BTE.shape[2]
    padding = -width % INPUT_MULTIPLE if dtype == torch.float16 else -width % 8 if dtype == torch.bfloat16 else 0
    weights = _weights(lstm, padding, factor)
    words = _enter(functional.pad(words_BTE, (0, padding)) if padding else words_BTE, factor)
    initial = _enter(state, factor)
    outputs = [
        lstm_layer(words[part], (initial[0][:, part], initial[1][:, part]), weights, lstm.training)
        for part in _parts(len(words_BTE), dtype)
    ]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return _leave(output, words_BTE.dtype, factor)


def _parts(documents: int, dtype: torch.dtype) -> list[slice]:
    """Cut a batch into equal parts that suit persistent kernels."""
    if dtype != torch.float16 or documents <= MOST_DOCUMENTS:
        return [slice(0, documents)]
    parts = -(-documents // MOST_DOCUMENTS)
    size = -(-documents // (parts * BATCH_MULTIPLE)) * BATCH_MULTIPLE
    return [slice(start, min(documents, start + size)) for start in range(0, documents, size)]


def _weights(lstm: nn.LSTM, padding: int, factor: "_Factor") -> list[Tensor]:
    """Return the weights as parts of one tensor, in cuDNN's order, so that it need not copy them together."""
    tensors: list[Tensor] = list(lstm.parameters())  # of the input, of the state, and their biases
    if padding:
        tensors[0] = functional.pad(tensors[0], (0, padding))
    flat = _enter(torch.cat([tensor.flatten() for tensor in tensors]), factor)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


class _Factor:
    """The factor by which gradients are scaled within one LSTM; None outside of float16."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.is_used = dtype == torch.float16
        self.value: Tensor | None = None


def _enter(values: Tensor, factor: _Factor) -> Tensor:
    """Convert to the format of the LSTM; the gradient is divided by the factor."""
    if not factor.is_used:
        return values.to(factor.dtype)
    entered: Tensor = _Enter.apply(values, factor)
    return entered


def _leave(values: Tensor, dtype: torch.dtype, factor: _Factor) -> Tensor:
    """Convert back from the format of the LSTM; the gradient is multiplied by the factor, which is chosen then."""
    if not factor.is_used:
        return values.to(dtype)
    left: Tensor = _Leave.apply(values, dtype, factor)
    return left


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, factor: _Factor) -> Tensor:
        context.factor, context.dtype = factor, values.dtype
        return values.to(factor.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient.float() / context.factor.value).to(context.dtype), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, dtype: torch.dtype, factor: _Factor) -> Tensor:
        context.factor = factor
        return values.to(dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        factor = context.factor
        largest = torch.linalg.vector_norm(gradient, torch.inf).float().clamp(min=1e-30)
        factor.value = torch.exp2(torch.floor(torch.log2(LARGEST / largest)))
        return (gradient * factor.value).to(factor.dtype), None, None
