"""An LSTM in the form for which cuDNN has its fastest kernels, also in float16.

In float16 cuDNN has persistent kernels, which keep the recurrent weights on the chip; words are padded with zeros to a
width that they take. On an H200, both directions over 200 texts of 500 words take 34 ms in float16 and 40 in bfloat16,
and 53 ms in parts of 128 texts, for which PyTorch would choose its own heuristics (`benchmarks/gpu.py --only lstm`).

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
    padded_BTE = _enter(functional.pad(words_BTE, (0, padding)) if padding else words_BTE, factor)
    initial = _enter(state, factor)
    output = lstm_layer(padded_BTE, (initial[0], initial[1]), weights, lstm.training)
    return _leave(output, words_BTE.dtype, factor)


def _weights(lstm: nn.LSTM, padding: int, factor: "_Factor") -> list[Tensor]:
    """Return the weights as parts of one tensor, in cuDNN's order, so that it need not copy them together."""
    tensors: list[Tensor] = list(lstm.parameters())  # of the input, of the state, and their biases
    if padding:
        tensors[0] = functional.pad(tensors[0], (0, padding))
    flat = _enter(torch.cat([tensor.flatten() for tensor in tensors]), factor)
    weights = flat.split([tensor.numel() for tensor in tensors])
    return [weight.view(tensor.shape) for weight, tensor in zip(weights, tensors, strict=True)]


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
