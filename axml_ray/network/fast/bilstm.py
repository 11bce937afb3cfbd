"""Two LSTMs run at the same time on a CPU, each on half of the processor's threads.

The steps of an LSTM are small matrix products, which many threads share badly. The two directions do not depend on
each other, and side by side they take about three quarters of the time that they take one after the other.

Shapes: B documents, T tokens, E embedding dimension, N hidden units.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from axml_ray.network.fast.torch_internals import lstm_layer


def both_directions(lstms: Sequence[nn.LSTM], inputs: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
    """Run two LSTMs, each on its own input, and return their outputs, [B, T, N] each.

    Args:
        lstms: two, batch first.
        inputs: the input of each, [B, T, E].
        states: the initial state of each, [2, 1, B, N]: h and c.
    """
    threads = torch.get_num_threads()
    runs = list(zip(lstms, inputs, states, strict=True))
    if threads < 2:
        return [_run_lstm(*run) for run in runs]
    weights = [weight for lstm in lstms for weight in lstm.parameters()]
    return list(_ParallelLSTMs.apply(lstms, threads // 2, torch.is_grad_enabled(), *inputs, *states, *weights))


def _run_lstm(lstm: nn.LSTM, words_BTE: Tensor, state: Tensor) -> Tensor:
    """Run one LSTM in the number format of autocast, which means the same on every processor."""
    if not torch.is_autocast_enabled("cpu") or has_bfloat16_lstm():
        output: Tensor = lstm(words_BTE, (state[0], state[1]))[0]
        return output
    # Without oneDNN's bfloat16 kernels, PyTorch's LSTM fails or computes in a mixture of formats. Round what goes in
    # and what comes out, and sum the products in float32, as those kernels do.
    with torch.autocast("cpu", enabled=False):
        rounded = [tensor.to(torch.bfloat16).float() for tensor in (words_BTE, state, *lstm.parameters())]
        initial = (rounded[1][0], rounded[1][1])
        return lstm_layer(rounded[0], initial, rounded[2:], lstm.training).to(torch.bfloat16)


@cache
def has_bfloat16_lstm() -> bool:
    """Return whether PyTorch's LSTM computes in bfloat16 on this processor, from trying it on one small text.

    Reading the processor's flags is not enough: `ONEDNN_MAX_CPU_ISA` can rule out instructions that the processor has.
    """
    words_BTE, state = torch.zeros(1, 2, 8), torch.zeros(1, 1, 8)
    weights = [torch.zeros(32, 8), torch.zeros(32, 8), torch.zeros(32), torch.zeros(32)]
    try:
        with torch.autocast("cpu", torch.bfloat16):
            output = lstm_layer(words_BTE, (state, state), weights, training=False)
    except RuntimeError:  # oneDNN has no kernel for it
        return False
    return output.dtype == torch.bfloat16


class _ParallelLSTMs(torch.autograd.Function):
    """Both LSTMs as one node of the autograd graph, whose backward pass runs the two directions in parallel too.

    PyTorch's engine has one thread for each device, so on a CPU it would go back through one direction after the other.
    Each direction is recorded as a graph of its own, between detached inputs and its output.
    """

    @staticmethod
    def forward(
        context: Any, lstms: Sequence[nn.LSTM], threads: int, recorded: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        # The order of `tensors`: both inputs, both initial states, then all weights.
        needs_gradient = recorded and any(context.needs_input_grad)
        leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors[:4]]
        reduced = torch.is_autocast_enabled("cpu")

        def run(i: int) -> Tensor:
            # Autocast and gradient mode belong to a thread, so the pool's threads must be told of them.
            with torch.autocast("cpu", torch.bfloat16, enabled=reduced), torch.set_grad_enabled(needs_gradient):
                return _run_lstm(lstms[i], leaves[i], leaves[2 + i])

        outputs = _run_in_parallel(threads, run)
        if needs_gradient:
            context.threads = threads
            context.graphs = [
                ([leaves[i], leaves[2 + i], *lstms[i].parameters()], output) for i, output in enumerate(outputs)
            ]
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        graphs, context.graphs = context.graphs, None  # so that the graphs are freed as soon as they are used

        def run(i: int) -> list[Tensor | None]:
            inputs, output = graphs[i]
            differentiable = [tensor for tensor in inputs if tensor.requires_grad]
            gradients_of_inputs = iter(torch.autograd.grad(output, differentiable, gradients[i]))
            return [next(gradients_of_inputs) if tensor.requires_grad else None for tensor in inputs]

        ahead, back = _run_in_parallel(context.threads, run)
        return None, None, None, ahead[0], back[0], ahead[1], back[1], *ahead[2:], *back[2:]


def _run_in_parallel(threads: int, run: Callable[[int], Any]) -> list[Any]:
    """Call `run` with 0 and 1 in two Python threads, each with `threads` threads of PyTorch."""
    inference = torch.is_inference_mode_enabled()

    def job(i: int) -> Any:
        with torch.inference_mode(inference):
            return run(i)

    # Each thread that calls has a pool of its own: several batches at once would wait for each other in a shared one.
    if threads not in _pools.by_threads:
        _pools.by_threads[threads] = thread_pool(2, threads)
    return list(_pools.by_threads[threads].map(job, range(2)))


class _Pools(threading.local):
    """The pools of the calling thread, by the threads of the processor that each of their two Python threads uses."""

    def __init__(self) -> None:
        self.by_threads: dict[int, ThreadPoolExecutor] = {}


_pools = _Pools()
_pool_creation = threading.Lock()


def thread_pool(count: int, threads: int) -> ThreadPoolExecutor:
    """Return a pool of `count` Python threads, each of which PyTorch lets use `threads` threads of the processor."""
    pool, barrier = ThreadPoolExecutor(count, "torch"), threading.Barrier(count)

    def start(_: int) -> None:
        barrier.wait()  # so that no thread takes two of these jobs, and each thread is set
        torch.set_num_threads(threads)
        # The first call in a thread overwrites its number by that of the process; let that be this call.
        torch.get_num_threads()

    # The number set last is also what later threads start with. A new thread reads it before and restores it, since the
    # calling thread may have a smaller number of its own.
    with _pool_creation, ThreadPoolExecutor(1) as fresh:
        of_process = fresh.submit(torch.get_num_threads).result()
        list(pool.map(start, range(count)))
        fresh.submit(torch.set_num_threads, of_process).result()
    return pool
