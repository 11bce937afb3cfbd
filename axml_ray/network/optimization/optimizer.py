"""Adam that updates only the rows of a table that a step read, and gradient clipping.

- A parameter whose gradient is sparse (the word embedding, the label table below the first level) has only the rows of
  the gradient updated, in weights and moments. A step then costs what its batch reads, whatever the size of the table.
- Clipping is that of the authors' published program; the paper does not mention it.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.fast.torch_internals import adam_, scale_


class LazyAdam(torch.optim.Optimizer):
    """Adam (Kingma & Ba, algorithm 1), which for sparse gradients updates the rows of the gradient only.

    Lazy means that the moments of other rows do not decay. The step counter, by which Adam corrects the bias of the
    moments, is the parameter's and counts steps without any row too.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: None = None, gradient_divisor: Tensor | None = None, skip: Tensor | None = None
    ) -> None:
        """Update every parameter that has a gradient.

        Args:
            closure: not supported.
            gradient_divisor: a scalar by which gradients are divided; sparse ones must not name a row twice.
            skip: float32 scalar on the device of the parameters; if it is 1 instead of 0, nothing changes, step
                counters neither. None for 0.
        """
        for group in self.param_groups:
            dense = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    state["first"] = torch.zeros_like(parameter)
                    state["second"] = torch.zeros_like(parameter)
                if parameter.grad.is_sparse:
                    self._update_rows(parameter, state, group, gradient_divisor, skip)
                else:
                    dense.append((parameter, parameter.grad, state["first"], state["second"], state["step"]))
            if dense:
                _adam(group, dense, gradient_divisor, skip)

    @staticmethod
    def _update_rows(
        parameter: Tensor, state: dict, group: dict, gradient_divisor: Tensor | None, skip: Tensor | None
    ) -> None:
        gradient = parameter.grad
        assert gradient is not None
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        tables = parameter, state["first"], state["second"]
        backend = backend_for(parameter.device)
        if backend.row_kernel:
            from axml_ray.network.optimization.row_adam import adam_rows_  # needs Triton

            options = {"lr": group["lr"], "betas": group["betas"], "eps": group["eps"]}
            adam_rows_(*tables, rows, values, state["step"], **options, gradient_divisor=gradient_divisor, skip=skip)
        else:
            size = max(1, backend.limits.update_values // max(1, parameter.shape[1:].numel()))
            for start in range(0, len(rows), size):
                some = rows[start : start + size]
                # Adam writes to its arguments: update copies of the rows and write them back. `step` is copied too,
                # since Adam increments it and the parameter takes one step, not one for each piece.
                weight, first, second = copies = [table.index_select(0, some) for table in tables]
                piece = weight, values[start : start + size], first, second, state["step"].clone()
                _adam(group, [piece], gradient_divisor, skip)
                for table, copy in zip(tables, copies, strict=True):
                    table.index_copy_(0, some, copy)
        state["step"] += 1 if skip is None else 1 - skip  # without any row too, as on the workers whose shard had some


def _adam(
    group: dict,
    pieces: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]],
    gradient_divisor: Tensor | None,
    skip: Tensor | None,
) -> None:
    """Do one step of Adam on tuples of weight, gradient, first moment, second moment and step counter."""
    weights, gradients, first, second, steps = (list(column) for column in zip(*pieces, strict=True))
    adam_(
        weights, gradients, first, second, steps,
        lr=group["lr"], betas=group["betas"], eps=group["eps"], gradient_divisor=gradient_divisor, skip=skip,
    )  # fmt: skip


class GradientClipper:
    """Clipping by the history of gradient norms.

    A gradient is scaled down to `clip` times the largest of the last five norms. Each norm enters the history as at
    most 1, and as at most twice the largest one there: the first five steps are not clipped, and a single large
    gradient cannot raise the limit by much.

    Everything is computed on the device of the gradients, so that the host need not wait for them.

    Args:
        clip: the multiple of the largest recent norm.

    Attributes:
        norms: float32 [5], the last norms, oldest first; infinite before there are five.
    """

    def __init__(self, clip: float = 5.0):
        self.clip = clip
        self.norms = torch.full((5,), torch.inf)

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor], norm: Tensor, skip: Tensor | None = None) -> Tensor | None:
        """Scale the gradients of one step in place, or say by what to divide them; add their norm to the history.

        Args:
            gradients: dense gradients, and the values of sparse ones.
            norm: the Euclidean norm of all of them together, on all workers; a scalar.
            skip: float32 scalar; if it is 1 instead of 0, the norm does not enter the history. None for 0.

        Returns:
            The divisor that the optimizer must apply while it reads the gradients, a scalar, where they are not scaled
            here.
        """
        self.norms = self.norms.to(norm)
        largest = self.norms.max()
        scale = (self.clip * largest / norm).clamp(max=1)
        divisor = None
        if backend_for(scale.device).runs_ahead:
            divisor = scale.reciprocal()  # whether the scale is one is not known here without waiting
        elif scale < 1:
            scale_(gradients, scale)
        # A norm of zero is not counted: five of them would clip all later gradients to zero.
        counted = torch.where(norm > 0, torch.minimum(norm, 2 * largest).clamp(max=1), largest)
        norms = torch.cat([self.norms[1:], counted[None]])
        self.norms = norms if skip is None else torch.where(skip > 0, self.norms, norms)
        return divisor


def gradient_values(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients of those parameters that have one, of sparse ones the values; both may be changed in place.

    Sparse gradients with repeated rows are replaced by ones without.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            gradients.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    return gradients
