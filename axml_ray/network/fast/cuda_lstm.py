"""Both directions of an LSTM in one call of cuDNN, which a GPU computes at the same time, also in float16.

Training launches the thousands of kernels of such a call as one CUDA graph: on an H200, both directions over 200 texts
of 500 words take 16 ms forward and backward, instead of 29 ms where the CPU launches each kernel, and 31 ms one after
the other (`benchmarks/gpu.py --only lstm`).

float16 has a range of 6e-8 to 65504, so small gradients would vanish. The gradient of the output is multiplied by a
power of two that brings its largest value to `LARGEST`, and the gradients of words, states and weights are divided by
it in float32. The factor is computed on the device.

Shapes: B documents, T tokens, E word dimension, N hidden units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.fast.torch_internals import lstm_layer

INPUT_MULTIPLE = 8
"""Inputs of reduced formats are padded to a multiple of this, which tensor cores need."""
TOKEN_MULTIPLE = 64
"""Texts of a graph are padded to a multiple of this: each number of tokens has a graph, with memory of its own."""
LONG = 512
"""Above twice this number of tokens the multiple doubles each time they do, so that few graphs suffice."""
MOST_GRAPHS = 96
"""Graphs that are kept: of texts up to 8,192 tokens, in whole batches and the smaller ones of an epoch's last pool."""
LARGEST = 2.0**-6
"""Largest gradient of an output in float16: sums over 10^5 positions stay far below the largest number."""


def run_both(
    lstms: Sequence[nn.LSTM],
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    dtype: torch.dtype,
    graphs: "LstmGraphs | None" = None,
) -> list[Tensor]:
    """Run two LSTMs in a number format, and return their outputs in the format of the words, [B, T, N] each.

    Args:
        lstms: two, batch first; their weights may be in any format.
        inputs: the input of each, [B, T, E].
        states: the initial state of each, [2, 1, B, N]: h and c.
        dtype: number format of the computation; in float16, gradients are scaled.
        graphs: graphs for a pass that is trained; by default kernels are launched one by one.
    """
    factor = _Factor(dtype)
    tokens, dimension = inputs[0].shape[1:]
    if not (lstms[0].training and torch.is_grad_enabled()):
        graphs = None
    longer = 0 if graphs is None else graph_tokens(tokens) - tokens
    wider = 0 if dtype == torch.float32 else -2 * dimension % INPUT_MULTIPLE
    # cuDNN gives both directions the same words, the second from the end. So a word has the inputs of both directions,
    # the second one turned round, and each direction has weights of zero for the input of the other one.
    first, second = (functional.pad(tensor, (0, 0, 0, longer)) for tensor in inputs) if longer else inputs
    words = functional.pad(torch.cat([first, second.flip(1)], dim=2), (0, wider))
    matrices, biases = [], []
    for lstm, sides in zip(lstms, ((0, dimension + wider), (dimension, wider)), strict=True):
        of_input, of_state, *of_lstm = lstm.parameters()
        matrices += [functional.pad(of_input, sides), of_state]
        biases += of_lstm
    weights = torch.cat([tensor.flatten() for tensor in (*matrices, *biases)])

    arguments = [_enter(tensor, factor) for tensor in (words, torch.cat(list(states), dim=1), weights)]
    output = _run(arguments, lstms[0].training) if graphs is None else graphs.run(arguments)
    ahead, back = _leave(output, inputs[0].dtype, factor).chunk(2, dim=2)
    return [ahead[:, :tokens], back.flip(1)[:, :tokens]]


def graph_tokens(tokens: int) -> int:
    """Return the number of tokens to which texts are padded for a graph: a multiple that grows with long texts."""
    multiple = TOKEN_MULTIPLE << max(0, (tokens - 1).bit_length() - LONG.bit_length())
    return -(-tokens // multiple) * multiple


def _run(arguments: Sequence[Tensor], training: bool = True) -> Tensor:
    """Run the bidirectional LSTM on words, states and weights.

    The weights are one tensor in cuDNN's order, so that it need not copy them.
    """
    words, states, weights = arguments
    gates, hidden, width = 4 * states.shape[3], states.shape[3], words.shape[2]
    matrices, biases = [(gates, width), (gates, hidden)] * 2, [(gates,)] * 4
    sizes = [rows * (columns[0] if columns else 1) for rows, *columns in (*matrices, *biases)]
    parts = [part.view(shape) for part, shape in zip(weights.split(sizes), (*matrices, *biases), strict=True)]
    # PyTorch's order has both biases after the matrices of their direction.
    ordered = [*parts[:2], *parts[4:6], *parts[2:4], *parts[6:]]
    return lstm_layer(words, (states[0], states[1]), ordered, training)


@dataclass
class _Graph:
    """The forward and the backward pass of one shape, and the memory that they read and write."""

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    arguments: list[Tensor]
    output: Tensor
    gradient: Tensor
    gradients: tuple[Tensor, ...]


class LstmGraphs:
    """CUDA graphs of bidirectional LSTMs, by the shapes of their arguments.

    They share memory for what a backward pass reads, so the backward pass of a call must come before the next call.
    """

    def __init__(self) -> None:
        self._graphs: dict[tuple[Any, ...], _Graph] = {}
        # That of PyTorch belongs to the device of the first capture of the process; on others, graphs would be empty.
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def run(self, arguments: Sequence[Tensor]) -> Tensor:
        """Run an LSTM, and record its backward pass; the arguments are those of `_run`."""
        # A capture keeps whether float32 products are rounded to TF32.
        number_format = (arguments[0].dtype, torch.backends.cudnn.allow_tf32)
        key = (arguments[0].device, number_format, *(tuple(tensor.shape) for tensor in arguments))
        if key not in self._graphs:
            if len(self._graphs) >= MOST_GRAPHS:
                self._graphs.clear()
            with torch.cuda.device(arguments[0].device):
                self._graphs[key] = self._capture(arguments)
        output: Tensor = _Replay.apply(self._graphs[key], *arguments)
        return output

    def _capture(self, arguments: Sequence[Tensor]) -> _Graph:
        fixed = [tensor.detach().clone().requires_grad_() for tensor in arguments]
        device, now = arguments[0].device, torch.cuda.current_stream()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = self._streams[device]
        stream.wait_stream(now)
        with torch.cuda.stream(stream):  # libraries allocate what they keep before a capture
            for _ in range(3):
                torch.autograd.grad(_run(fixed).sum(), fixed)
        now.wait_stream(stream)
        pool = next((graph.forward.pool() for key, graph in self._graphs.items() if key[0] == device), None)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads copy batches meanwhile, which a capture that watches the whole process would forbid.
        options: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(forward, pool=pool, **options):
            output = _run(fixed)
        gradient = torch.empty_like(output)
        with torch.cuda.graph(backward, pool=forward.pool(), **options):
            gradients = torch.autograd.grad(output, fixed, gradient)
        return _Graph(forward, backward, [tensor.detach() for tensor in fixed], output.detach(), gradient, gradients)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, graph: _Graph, *arguments: Tensor) -> Tensor:
        context.graph = graph
        for fixed, argument in zip(graph.arguments, arguments, strict=True):
            fixed.copy_(argument)
        graph.forward.replay()
        return graph.output.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        graph = context.graph
        graph.gradient.copy_(gradient)
        graph.backward.replay()
        return None, *graph.gradients


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
        # In float32: a GPU would convert the factor of a gradient of zeros, 2^93, to an infinite one in float16.
        return (gradient.float() * factor.value).to(factor.dtype), None, None
