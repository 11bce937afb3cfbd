"""Communication between the worker processes that train one level together.

Each worker encodes its part of a step's documents and scores all documents of the step against its shard of the label
table. Encodings are therefore gathered on all workers, and their gradients come back summed. Encoder and head are
replicated and their gradients all-reduced. Rows of the label table, their Adam moments and their running average never
travel.

A single worker needs no process group. With several, the process that starts them (Ray Train or a test) initialises
`torch.distributed`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.precision import REDUCED, fast_formats
from axml_ray.network.optimization.optimizer import gradient_values
from axml_ray.network.sharding import Shard
from axml_ray.settings import Precision

CPU = torch.device("cpu")


@dataclass(frozen=True)
class DistributedContext:
    """The rank, world size and device of a worker, and the collective operations of its process group.

    Every worker of the group must call a collective operation, in the same order.

    Attributes:
        rank: number of the worker, from 0.
        world_size: number of workers, W.
        device: device of the worker's network.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU

    def __post_init__(self) -> None:
        backend_for(self.device)  # a GPU's backend sets what the libraries read before their first use

    @classmethod
    def current(cls, device: torch.device) -> "DistributedContext":
        """Return the context of the default process group, or of a single worker if there is none."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls(device=device)

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, which writes shared files and reports progress."""
        return self.rank == 0

    @property
    def shard(self) -> Shard:
        """This worker's part of the label table's rows, and of each step's documents."""
        return Shard(self.rank, self.world_size)

    def sum(self, values: Tensor) -> Tensor:
        """Return the elementwise sum of `values` over all workers."""
        if self.world_size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def agree_on_precision(self, precision: Precision) -> Precision:
        """Return a precision in which all workers compute; "auto" is a reduced format that is faster on each of them.

        The workers exchange tensors, which must have one number format, and "auto" alone depends on each worker's
        hardware.
        """
        if precision != "auto" or self.world_size == 1:
            return precision
        fast = fast_formats(self.device)
        able = self.sum(torch.tensor([float(dtype in fast) for dtype in REDUCED.values()])).tolist()
        agreed = (name for name, workers in zip(REDUCED, able, strict=True) if workers == self.world_size)
        return next(agreed, "float32")

    def sum_gradients(self, parameters: Iterable[nn.Parameter], numbers: Tensor) -> Tensor:
        """Replace the gradients of replicated parameters by their sums over all workers.

        All gradients and `numbers` share one all-reduce, since each collective call costs a round trip. A sparse
        gradient must have the same rows on all workers, as those of `Batch.unique_ids` do.

        Args:
            parameters: the replicated parameters; those without a gradient are skipped.
            numbers: further values to be summed, float [n].

        Returns:
            The sums of `numbers`, float [n].
        """
        if self.world_size == 1:
            return numbers
        gradients = gradient_values(parameters)
        flat = torch.cat([numbers, *(gradient.flatten() for gradient in gradients)])
        dist.all_reduce(flat)
        sums, *blocks = flat.split([len(numbers), *(gradient.numel() for gradient in gradients)])
        for gradient, block in zip(gradients, blocks, strict=True):
            gradient.copy_(block.view_as(gradient))
        return sums

    def exchange(self, encodings: Tensor, documents: int) -> Tensor:
        """Return the encodings of a step's documents from all workers, in the order of ranks, [documents, ...].

        Worker r contributes those of every W-th document from the r-th on; rows beyond them are ignored. The operation
        is differentiable: each worker receives the gradients of its encodings summed over all workers.
        """
        if self.world_size == 1:
            return encodings
        exchanged: Tensor = _Exchange.apply(encodings, documents, self)
        return exchanged

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all workers, [W·n, ...], in the order of ranks; n must be equal on all workers."""
        if self.world_size == 1:
            return rows
        rows = rows.to(self.device).contiguous()
        gathered = rows.new_empty(self.world_size * len(rows), *rows.shape[1:])
        dist.all_gather_into_tensor(gathered, rows)
        return gathered

    def from_first(self, values: Tensor) -> Tensor:
        """Return rank 0's values on all workers."""
        if self.world_size > 1:
            values = values.to(self.device)
            dist.broadcast(values, 0)
        return values

    def agree(self, condition: bool) -> bool:
        """Return rank 0's value of a condition on all workers, so that all of them take the same branch.

        Clocks differ between workers, and on a network file system, files may reach some of them later.
        """
        return bool(self.from_first(torch.tensor([float(condition)])).item())

    def barrier(self) -> None:
        """Wait until all workers have called this."""
        if self.world_size > 1:
            dist.barrier()


class _Exchange(torch.autograd.Function):
    """All-gather of encodings with a reduce-scatter as its backward pass.

    Collectives take parts of equal size, so each worker's is padded to that of rank 0, which has the most documents.
    """

    @staticmethod
    def forward(ctx: Any, encodings: Tensor, documents: int, context: DistributedContext) -> Tensor:
        sizes = [len(range(rank, documents, context.world_size)) for rank in range(context.world_size)]
        ctx.sizes, ctx.own, ctx.rows = sizes, sizes[context.rank], len(encodings)
        padded = _with_rows(encodings[: ctx.own], sizes[0])
        gathered = encodings.new_empty(len(sizes) * sizes[0], *encodings.shape[1:])
        dist.all_gather_into_tensor(gathered, padded)
        if sizes[-1] == sizes[0]:
            return gathered
        return torch.cat([shard[:size] for shard, size in zip(gathered.split(sizes[0]), sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        sizes = ctx.sizes
        if sizes[-1] != sizes[0]:
            gradient = torch.cat([_with_rows(shard, sizes[0]) for shard in gradient.split(sizes)])
        summed = gradient.new_empty(sizes[0], *gradient.shape[1:])
        dist.reduce_scatter_tensor(summed, gradient.contiguous())
        return _with_rows(summed[: ctx.own], ctx.rows), None, None


def _with_rows(values: Tensor, rows: int) -> Tensor:
    """Return the values, contiguous, with rows of zeros added up to a number of rows."""
    if len(values) == rows:
        return values.contiguous()
    padded = values.new_zeros(rows, *values.shape[1:])
    padded[: len(values)] = values
    return padded
