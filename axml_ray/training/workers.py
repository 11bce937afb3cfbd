"""What the workers of a level do together: sums of numbers, of gradients, and of rows.

One worker needs no process group; with more, `torch.distributed` is initialised by whoever started them (Ray Train,
or a test).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

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

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over workers, rows of sparse ones by the sum of their union."""
        if self.count == 1:
            return
        trained = [parameter for parameter in parameters if parameter.grad is not None]
        whole = []
        for parameter in trained:
            gradient = parameter.grad
            assert gradient is not None
            if gradient.is_sparse:
                parameter.grad = self._sum_rows(gradient.coalesce())
            else:
                whole.append(gradient)
        flat = torch.cat([gradient.flatten() for gradient in whole])
        dist.all_reduce(flat)
        for gradient, part in zip(whole, flat.split([gradient.numel() for gradient in whole]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _sum_rows(self, gradient: Tensor) -> Tensor:
        rows, values = self.gather(gradient._indices()[0]), self.gather(gradient._values())
        return torch.sparse_coo_tensor(rows[None], values, gradient.shape).coalesce()

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

    def barrier(self) -> None:
        """Wait until all workers are here."""
        if self.count > 1:
            dist.barrier()
