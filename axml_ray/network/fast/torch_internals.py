"""The functions of PyTorch outside its documented API that this package calls, each in one place.

`tests/network/test_torch_internals.py` compares each with the documented API and fails first when PyTorch changes one
of them. `pyproject.toml` bounds the version of PyTorch for the same reason.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam


def softmax_backward(gradient: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Return the gradient of the input of `weights = softmax(input, dim)` from the gradient of its output.

    Autograd would need the softmax's input to be kept as a graph; the fused pass goes back by hand. Written out,
    weights * (gradient - (gradient * weights).sum(dim)) reads the largest tensors of a step three times; this kernel
    does it once.
    """
    return torch._softmax_backward_data(gradient, weights, dim, weights.dtype)


def masked_scale(values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return values · mask · scale, for a bool mask of the same shape.

    The documented way would convert the mask to the values' format and pass over both once more.
    """
    return torch.ops.aten.native_dropout_backward(values, mask, scale)


def lstm_layer(words_BTE: Tensor, state: tuple[Tensor, Tensor], weights: Sequence[Tensor], training: bool) -> Tensor:
    """Run one layer of an LSTM with given weights, and return its output, [B, T, N], or [B, T, 2N] of two directions.

    `nn.LSTM` runs with its own parameters only, whose number format may not be that of the words.

    Args:
        words_BTE: the input.
        state: h and c, [directions, B, N].
        weights: of the input and of the state, and their biases, for each direction, as in `nn.LSTM`.
        training: whether a backward pass follows.
    """
    states, both = [tensor.contiguous() for tensor in state], len(weights) == 8
    # with biases, one layer, no dropout, batch first
    output: Tensor = torch._VF.lstm(words_BTE, states, list(weights), True, 1, 0.0, training, both, True)[0]
    return output


def relu_backward_(gradient: Tensor, output: Tensor) -> Tensor:
    """Set `gradient` to zero in place wherever `output` of a ReLU is zero, and return it.

    The documented way, `gradient.mul_(output > 0)`, makes a mask as large as the hidden values of all labels.
    """
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def scale_(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply tensors by a scalar tensor in place.

    On a GPU this is one kernel for all parameters, and the factor need not be copied to main memory.
    """
    torch._foreach_mul_(list(tensors), factor)


def adam_(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    gradient_divisor: Tensor | None = None,
    skip: Tensor | None = None,
) -> None:
    """Do one step of Adam in place on weights, moments and step counters.

    The functional form of `torch.optim.Adam`: an optimizer object owns whole parameters, while lazy rows are copies of
    parts of them. `fused` reads and writes each value once for all of Adam's arithmetic, and divides the gradients by
    `gradient_divisor`, a scalar on the device, on the way. If `skip`, a float32 scalar on the device, is one, nothing
    changes.
    """
    adam(
        weights, gradients, first, second, [], steps,
        fused=True, amsgrad=False, beta1=betas[0], beta2=betas[1], lr=lr, weight_decay=0.0, eps=eps, maximize=False,
        grad_scale=gradient_divisor, found_inf=skip,
    )  # fmt: skip


def mark_coalesced_(gradient: Tensor) -> None:
    """Declare in place that the rows of a sparse tensor are distinct and ascending.

    Autograd drops that flag when it accumulates a gradient, and `coalesce` would sort and copy all rows again.
    """
    gradient._coalesced_(True)
