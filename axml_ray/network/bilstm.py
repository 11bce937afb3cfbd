"""Two LSTMs at the same time, each on half of a processor's threads.

One LSTM's steps are small products that many threads share badly, and the two directions don't depend on each other:
side by side they take about three quarters of the time that they take in turn.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import Any

import torch
from torch import Tensor, nn


def both_directions(lstms: Sequence[nn.LSTM], words: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
    """What each LSTM makes of its words, [B, T, N] each.

    Args:
        lstms: two, batch first.
        words: [B, T, E] for each.
        states: first state of each, [2, 1, B, N].
    """
    threads = torch.get_num_threads()
    each = list(zip(lstms, words, states, strict=True))
    if words[0].device.type != "cpu":
        return [in_float32(*one) for one in each]
    if threads < 2:
        return [_run(*one) for one in each]
    weights = [weight for lstm in lstms for weight in lstm.parameters()]
    return list(_SideBySide.apply(lstms, threads // 2, torch.is_grad_enabled(), *words, *states, *weights))


def in_float32(lstm: nn.LSTM, words: Tensor, state: Tensor) -> Tensor:
    """What an LSTM makes of its words, computed in float32 whatever autocast says, [B, T, N] in the words' format.

    On an accelerator autocast takes cuDNN's LSTMs to float16, also where it was asked for bfloat16 (PyTorch's
    AutocastRNN.cpp): other products then refuse their states, and their gradients are too small for it. cuDNN
    multiplies float32 by tensor cores, as TF32.

    Args:
        lstm: batch first.
        words: [B, T, E].
        state: [2, 1, B, N].
    """
    with torch.autocast(words.device.type, enabled=False):
        return _run(lstm, words.float(), state.float()).to(words.dtype)


def _run(lstm: nn.LSTM, words: Tensor, state: Tensor) -> Tensor:
    output: Tensor = lstm(words, (state[0], state[1]))[0]
    return output


class _SideBySide(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, lstms: Sequence[nn.LSTM], threads: int, recorded: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        wanted = recorded and any(context.needs_input_grad)
        leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors[:4]]
        device = leaves[0].device.type
        reduced = torch.is_autocast_enabled(device)

        def run(i: int) -> Tensor:
            with torch.autocast(device, torch.bfloat16, enabled=reduced), torch.set_grad_enabled(wanted):
                return _run(lstms[i], leaves[i], leaves[2 + i])

        outputs = _at_once(threads, run)
        if wanted:
            context.threads = threads
            context.graphs = [
                ([leaves[i], leaves[2 + i], *lstms[i].parameters()], output) for i, output in enumerate(outputs)
            ]
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        graphs, context.graphs = context.graphs, None

        def run(i: int) -> list[Tensor | None]:
            inputs, output = graphs[i]
            asked = [tensor for tensor in inputs if tensor.requires_grad]
            found = iter(torch.autograd.grad(output, asked, gradients[i]))
            return [next(found) if tensor.requires_grad else None for tensor in inputs]

        one, other = _at_once(context.threads, run)
        return None, None, None, one[0], other[0], one[1], other[1], *one[2:], *other[2:]


def _at_once(threads: int, run: Callable[[int], Any]) -> list[Any]:
    inference = torch.is_inference_mode_enabled()

    def job(i: int) -> Any:
        with torch.inference_mode(inference):
            return run(i)

    return list(pool_of(2, threads).map(job, range(2)))


@cache
def pool_of(count: int, threads: int) -> ThreadPoolExecutor:
    """`count` Python threads, each of which PyTorch lets use `threads` of the processor's."""
    pool, before, every = ThreadPoolExecutor(count, "torch"), torch.get_num_threads(), Barrier(count)

    def start(_: int) -> None:
        every.wait()  # so that each of them is set
        torch.set_num_threads(threads)
        torch.get_num_threads()  # a thread's first call takes the process's number over; let it be this one

    list(pool.map(start, range(count)))
    torch.set_num_threads(before)  # a thread's number is also what later threads begin with
    return pool
