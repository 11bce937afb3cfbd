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

from axml_ray.network.precision import uses_bfloat16
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

    @classmethod
    def current(cls, device: torch.device) -> "DistributedContext":
        """Return the context of the default process group, or of a single worker if there is none."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls(device=device)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes shared files and reports progress."""
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
        """Return a precision in which all workers compute; "auto" is bfloat16 only where it is faster on each of them.

        The workers exchange tensors, which must have one number format, and "auto" alone depends on each worker's
        hardware.
        """
        if precision != "auto" or self.world_size == 1:
            return precision
        able = self.sum(torch.tensor([float(uses_bfloat16(self.device, precision))]))
        return "bfloat16" if able.item() == self.world_size else "float32"

    def sum_gradients(self, parameters: Iterable[nn.Parameter], numbers: Tensor) -> Tensor:
        """Replace the gradients of replicated parameters by their sums over all workers.

        A sparse gradient becomes the sum over the union of the workers' rows. Dense gradients and `numbers` share one
        all-reduce, since each collective call costs a round trip.

        Args:
            parameters: the replicated parameters; those without a gradient are skipped.
            numbers: further values to be summed, float [n].

        Returns:
            The sums of `numbers`, float [n].
        """
        if self.world_size == 1:
            return numbers
        dense = []
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                parameter.grad = self._sum_rows(parameter.grad.coalesce())
            else:
                dense.append(parameter.grad)
        flat = torch.cat([numbers, *(gradient.flatten() for gradient in dense)])
        dist.all_reduce(flat)
        sums, *parts = flat.split([len(numbers), *(gradient.numel() for gradient in dense)])
        for gradient, part in zip(dense, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return sums

    def _sum_rows(self, gradient: Tensor) -> Tensor:
        """Sum a coalesced sparse gradient over all workers; coalescing adds rows that several of them have."""
        rows, values = self.gather(gradient._indices()[0]), self.gather(gradient._values())
        return torch.sparse_coo_tensor(rows[None], values, gradient.shape, check_invariants=False).coalesce()

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
        """Return the rows of all workers, [sum of n, ...], in the order of ranks; n may differ between workers."""
        if self.world_size == 1:
            return rows
        rows = rows.to(self.device).contiguous()
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([len(rows)], device=self.device))
        # all_gather takes tensors of one shape, so each part is padded to the longest.
        longest = max(int(size) for size in sizes)
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded)
        return torch.cat([part[: int(size)] for part, size in zip(parts, sizes, strict=True)])

    def from_first(self, values: Tensor) -> Tensor:
        """Return rank 0's values on all workers."""
        if self.world_size > 1:
            values = values.to(self.device)
            dist.broadcast(values, 0)
        return values

    def barrier(self) -> None:
        """Wait until all workers have called this."""
        if self.world_size > 1:
            dist.barrier()


class _Exchange(torch.autograd.Function):
    """All-gather of encodings with an all-reduce as its backward pass."""

    @staticmethod
    def forward(ctx: Any, encodings: Tensor, documents: int, context: DistributedContext) -> Tensor:
        sizes = [len(range(rank, documents, context.world_size)) for rank in range(context.world_size)]
        own = ctx.own = sizes[context.rank]
        ctx.start = sum(sizes[: context.rank])
        ctx.rows = len(encodings)
        # Rank 0 has the most documents; all_gather takes tensors of one shape.
        padded = encodings.new_zeros(sizes[0], *encodings.shape[1:])
        padded[:own] = encodings[:own]
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        own = gradient.new_zeros(ctx.rows, *gradient.shape[1:])
        own[: ctx.own] = gradient[ctx.start : ctx.start + ctx.own]
        return own, None, None
