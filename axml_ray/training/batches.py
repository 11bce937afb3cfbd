"""Documents as batches of like length, with their targets.

- Shuffling stays sound: documents are permuted, sorted by length within pools of some batches only, and the batches
  are permuted again; which documents meet changes with every epoch.
- The batches of an epoch depend on the seed alone. Each of W workers encodes every W-th document of a batch, and
  scores all of them against its shard of the nodes, so the same documents make a step whatever W is.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from axml_ray.corpus.tokenizer import PADDING
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.ragged import Ragged

POOL = 64  # batches that are sorted together
AHEAD = 2  # batches made before they are asked for


@dataclass(frozen=True)
class LevelData:
    """What a level is trained on.

    Attributes:
        tokens: word ids of each document.
        positives: true nodes of the level, sorted.
        parents: int [documents, C], the nodes whose children are candidates; None where all nodes are scored.
    """

    tokens: Ragged
    positives: Ragged
    parents: np.ndarray | None = None


@dataclass(frozen=True)
class Batch:
    """A step's documents: which of them this worker encodes, and what it scores of all of them.

    B documents of the step, in the order of the workers that encode them; b of them encoded here; T tokens.

    Attributes:
        rows: int64 [B], which documents they are.
        encoded: int64 [b], those that are encoded here.
        tokens: int64 [b, T], padded with 0 on the right.
        words: the distinct values of `tokens`, int64 [U], and which of them stands where, int64 [b·T].
        own_lengths: int64 [b].
        lengths: int64 [B].
        candidates: what this worker scores; None where all nodes are.
        positives: int64 [2, P], document and place of each true node that this worker scores.
        count: nodes scored of all documents on all workers.
    """

    rows: np.ndarray
    encoded: np.ndarray
    tokens: Tensor
    words: tuple[Tensor, Tensor]
    own_lengths: Tensor
    lengths: Tensor
    candidates: Candidates | None
    positives: Tensor
    count: int

    @property
    def size(self) -> int:
        """B."""
        return len(self.rows)

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        if device.type == "cpu":
            return self
        moved = {name: getattr(self, name).to(device) for name in ("tokens", "own_lengths", "lengths", "positives")}
        moved["candidates"] = None if self.candidates is None else self.candidates.to(device)
        moved["words"] = self.words[0].to(device), self.words[1].to(device)
        return replace(self, **moved)


def shuffled(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch, each int64 [≤ batch_size] of documents; every document is in exactly one."""
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), batch_size * POOL):
        pool = order[start : start + batch_size * POOL]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def by_length(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Batches for scoring: all documents, longest first."""
    order = np.argsort(-lengths, kind="stable")
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def padded_tokens(tokens: Ragged, rows: np.ndarray, width: int) -> Tensor:
    """int64 [b, T] word ids of some rows, padded with 0.

    T is `width` rounded up to a multiple of 8, since each new T costs the CPU's library a kernel.
    """
    return torch.from_numpy(tokens.take(rows).padded(PADDING, -(-width // 8) * 8).astype(np.int64))


def in_workers_order(rows: np.ndarray, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """The documents of a step, those of each worker together, and those that this worker encodes: every W-th.

    Where there are too few for each worker, one without a document encodes the first, for nothing.
    """
    parts = [rows[rank :: shard.count] for rank in range(shard.count)]
    own = parts[shard.rank]
    return np.concatenate(parts), own if len(own) else rows[:1]


def batch_of(data: LevelData, level: Level, rows: np.ndarray, shard: Shard = WHOLE) -> Batch:
    """The batch of the documents `rows` (int64 [B]).

    Args:
        data: all documents of the level.
        level: the level whose nodes are scored.
        rows: documents.
        shard: this worker's part of the documents to encode, and of the level's table.
    """
    rows, encoded = in_workers_order(rows, shard)
    lengths = data.tokens.lengths_of(rows)
    tokens = padded_tokens(data.tokens, encoded, int(lengths.max()))
    words, places = np.unique(tokens.numpy(), return_inverse=True)
    true = data.positives.take(rows)
    document = np.repeat(np.arange(len(rows)), true.lengths)
    nodes = true.values.astype(np.int64)
    if data.parents is None or level.first_child is None:
        candidates = None
        own = nodes % shard.count == shard.rank
        positives = torch.from_numpy(np.stack([document[own], nodes[own] // shard.count]))
        count = len(rows) * level.nodes
    else:
        parents = np.asarray(data.parents[rows], dtype=np.int64)
        candidates = Candidates.from_parents(parents, level, shard)
        # A true node whose parent isn't among them (the beam missed it, or more than C are true) is not trained on.
        positives = candidates.positives(level, document, nodes)
        count = int(level.children_counts(parents).sum())
    return Batch(
        rows,
        encoded,
        tokens,
        (torch.from_numpy(words), torch.from_numpy(places.ravel())),
        torch.from_numpy(data.tokens.lengths_of(encoded)),
        torch.from_numpy(lengths),
        candidates,
        positives,
        count,
    )


def training_batches(
    data: LevelData,
    level: Level,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    shard: Shard = WHOLE,
) -> Iterator[Batch]:
    """An epoch's batches, from batch `start`, as one worker sees them; each is made while the one before is used."""
    batches = shuffled(data.tokens.lengths, batch_size, seed, epoch)[start:]
    with ThreadPoolExecutor(1, "batches") as pool:
        ahead = [pool.submit(batch_of, data, level, np.sort(rows), shard) for rows in batches[:AHEAD]]
        for rows in [*batches[AHEAD:], *[None] * len(ahead)]:
            batch = ahead.pop(0)
            if rows is not None:
                ahead.append(pool.submit(batch_of, data, level, np.sort(rows), shard))
            yield batch.result()


def choose_parents(predicted: np.ndarray, positives: Ragged, keep: int) -> np.ndarray:
    """The nodes whose children train the next level (paper, "Learning AttentionXML", step 2).

    True nodes first, then the best predicted ones, `keep` in all. Of more than `keep` true nodes, those come first
    that were predicted best.

    Args:
        predicted: int64 [documents, ≥ keep], distinct nodes, best first.
        positives: true nodes of each document.
        keep: C.

    Returns:
        int64 [documents, keep], distinct in each row.
    """
    width = predicted.shape[1]
    documents = len(positives)
    owner = np.repeat(np.arange(documents), positives.lengths)
    # rank of each true node in its document's prediction; unpredicted ones come after all predicted
    nodes = positives.values.astype(np.int64)
    rank = np.full(len(nodes), width, dtype=np.int64)
    is_true = np.zeros(predicted.shape, dtype=bool)
    most = int(positives.lengths.max(initial=0))
    padded = positives.padded(fill=-1, width=most).astype(np.int64)
    starts = positives.offsets[:-1]
    for column in range(most):
        match = predicted == padded[:, column, None]
        is_true |= match
        row = np.flatnonzero(positives.lengths > column)
        hit = match[row].any(axis=1)
        rank[starts[row[hit]] + column] = match[row[hit]].argmax(axis=1)
    false_rank = np.where(is_true, 2 * width + 1, width + 1 + np.arange(width))
    everyone = np.concatenate([padded, predicted], axis=1)
    true_rank = np.full(padded.shape, 2 * width + 2, dtype=np.int64)
    true_rank[owner, np.arange(len(nodes)) - np.repeat(starts, positives.lengths)] = rank
    ranks = np.concatenate([true_rank, false_rank], axis=1)
    order = np.argsort(ranks, axis=1, kind="stable")[:, :keep]
    return np.take_along_axis(everyone, order, axis=1)
