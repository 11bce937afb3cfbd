"""What the workers of a level do together: encodings exchanged, numbers and gradients summed.

Each worker encodes its documents and scores all documents of a step against its shard of the labels. So encodings go
to all workers and their gradients come back summed; encoder and head are replicated, and their gradients summed; rows
of the label table, their moments and their average never travel.

One worker needs no process group; with more, `torch.distributed` is initialised by whoever started them (Ray Train,
or a test).
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
class Workers:
    """A worker's place among its like."""

    rank: int = 0
    count: int = 1
    device: torch.device = CPU

    @classmethod
    def current(cls, device: torch.device) -> "Workers":
        """The place in the default process group; the only one where there is none."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls(device=device)

    @property
    def first(self) -> bool:
        """Whether this worker writes what is written once."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over workers."""
        if self.count > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def agreed(self, precision: Precision) -> Precision:
        """A precision that all workers compute in: for "auto" bfloat16 where it pays on the hardware of each.

        What workers exchange must be of one kind, and "auto" alone is what each of them thinks best.
        """
        if precision != "auto" or self.count == 1:
            return precision
        able = self.sum(torch.tensor([float(uses_bfloat16(self.device, precision))]))
        return "bfloat16" if able.item() == self.count else "float32"

    @property
    def shard(self) -> Shard:
        """This worker's part of a level's table, and of a step's documents."""
        return Shard(self.rank, self.count)

    def sum_gradients(self, parameters: Iterable[nn.Parameter], numbers: Tensor) -> Tensor:
        """Replace the gradients of replicated parameters by their sums over workers, rows of sparse ones by the sum
        of their union; returns the sums of `numbers` (float [n]), which travel with them."""
        if self.count == 1:
            return numbers
        whole = []
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                parameter.grad = self._sum_rows(parameter.grad.coalesce())
            else:
                whole.append(parameter.grad)
        flat = torch.cat([numbers, *(gradient.flatten() for gradient in whole)])
        dist.all_reduce(flat)
        sums, *parts = flat.split([len(numbers), *(gradient.numel() for gradient in whole)])
        for gradient, part in zip(whole, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return sums

    def _sum_rows(self, gradient: Tensor) -> Tensor:
        rows, values = self.gather(gradient._indices()[0]), self.gather(gradient._values())
        return torch.sparse_coo_tensor(rows[None], values, gradient.shape, check_invariants=False).coalesce()

    def exchange(self, encodings: Tensor, documents: int) -> Tensor:
        """The encodings of a step's documents on all workers, in the order of workers, [documents, ...].

        Worker r gives those of every W-th document, from the r-th; what it gives beyond them is left out.
        Differentiable: gradients come back summed.
        """
        if self.count == 1:
            return encodings
        exchanged: Tensor = _Exchange.apply(encodings, documents, self)
        return exchanged

    def gather(self, rows: Tensor) -> Tensor:
        """All workers' rows, [sum of n, ...], in the order of ranks; n may differ."""
        if self.count == 1:
            return rows
        rows = rows.to(self.device).contiguous()
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(rows)], device=self.device))
        most = max(int(size) for size in sizes)
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(parts, padded)
        return torch.cat([part[: int(size)] for part, size in zip(parts, sizes, strict=True)])

    def from_first(self, values: Tensor) -> Tensor:
        """The first worker's values, on all."""
        if self.count > 1:
            values = values.to(self.device)
            dist.broadcast(values, 0)
        return values

    def barrier(self) -> None:
        """Wait until all workers are here."""
        if self.count > 1:
            dist.barrier()


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, encodings: Tensor, documents: int, workers: Workers) -> Tensor:
        sizes = [len(range(rank, documents, workers.count)) for rank in range(workers.count)]
        own = context.own = sizes[workers.rank]
        context.start = sum(sizes[: workers.rank])
        context.given = len(encodings)
        padded = encodings.new_zeros(sizes[0], *encodings.shape[1:])
        padded[:own] = encodings[:own]
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        own = gradient.new_zeros(context.given, *gradient.shape[1:])
        own[: context.own] = gradient[context.start : context.start + context.own]
        return own, None, None
