"""Sharding of the label table: which rows a worker holds, and how they are initialised.

Of W workers, worker r holds the rows r, r + W, r + 2W, ... of a table, so that frequent labels, which have neighbouring
ids, are spread evenly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

DRAWN_ROWS = 1 << 12
"""Rows drawn from one random generator. Each has its own seed, so that a shard draws the rows that the whole table
would have, and has to pass over 4,096 rows at most that are not its own."""


@dataclass(frozen=True)
class Shard:
    """A worker's part of the rows of a table.

    Attributes:
        rank: the worker's number, from 0.
        count: number of workers.
    """

    rank: int = 0
    count: int = 1

    def ids(self, rows: int) -> Tensor:
        """Return the rows that the shard holds of a table of `rows` rows, int64, in the order it holds them in."""
        return torch.arange(min(self.rank, rows), rows, self.count)

    def size(self, rows: int) -> int:
        """Return the number of rows that the shard holds of a table of `rows` rows."""
        return len(range(self.rank, rows, self.count))


WHOLE = Shard()
"""The shard that holds all rows."""


def uniform_rows(rows: int, width: int, bound: float, shard: Shard) -> Tensor:
    """Draw a shard's rows of a table uniformly from (-bound, bound): float32 [rows of the shard, width].

    A row has the same values for every number of shards, provided that all workers have seeded PyTorch alike.
    """
    if torch.get_default_device().type == "meta":  # weights are loaded later, so drawing them would be in vain
        return torch.empty(shard.size(rows), width)
    seed = int(torch.randint(2**62, ()))
    table = torch.empty(shard.size(rows), width)
    filled = 0
    for start in range(0, rows, DRAWN_ROWS):
        generator = torch.Generator().manual_seed(seed + start)
        drawn = torch.empty(min(DRAWN_ROWS, rows - start), width).uniform_(-bound, bound, generator=generator)
        # The first row at or after `start` that is rank modulo count, counted from `start`.
        held = drawn[(shard.rank - start) % shard.count :: shard.count]
        table[filled : filled + len(held)] = held
        filled += len(held)
    return table
