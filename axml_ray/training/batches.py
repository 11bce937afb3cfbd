"""Documents as batches of like length, with their targets.

- Shuffling stays sound: documents are permuted, sorted by length within pools of some batches only, and the batches
  are permuted again; which documents meet changes with every epoch.
- The batches of an epoch depend on the seed alone. Each of W workers takes every W-th document of a batch, so the
  same documents make a step whatever W is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from axml_ray.corpus.tokenizer import PADDING
from axml_ray.network.attention_xml import Level
from axml_ray.ragged import Ragged

POOL = 64  # batches that are sorted together


@dataclass(frozen=True)
class LevelData:
    """What a level is trained on.

    Attributes:
        tokens: word ids of each document.
        positives: true nodes of the level, sorted.
        parents: int64 [documents, C], the nodes whose children are candidates; None where all nodes are scored.
    """

    tokens: Ragged
    positives: Ragged
    parents: np.ndarray | None = None


@dataclass(frozen=True)
class Batch:
    """A step's documents on one worker. B documents, T tokens, C parents.

    Attributes:
        rows: int64 [B], which documents they are.
        tokens: int64 [B, T], padded with 0 on the right.
        lengths: int64 [B].
        parents: int64 [B, C] or None.
        positives: int64 [2, P], document of the batch and place among its scored nodes of each true node.
        size: documents of the step, over all workers.
    """

    rows: Tensor
    tokens: Tensor
    lengths: Tensor
    parents: Tensor | None
    positives: Tensor
    size: int

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        parents = None if self.parents is None else self.parents.to(device)
        return Batch(self.rows, self.tokens.to(device), self.lengths.to(device), parents,
                     self.positives.to(device), self.size)  # fmt: skip


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


def by_length(lengths: np.ndarray, batch_size: int, rank: int = 0, workers: int = 1) -> list[np.ndarray]:
    """Batches for scoring: a worker's share of all documents, longest first."""
    order = np.argsort(-lengths, kind="stable")[rank::workers]
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def padded_tokens(tokens: Ragged) -> Tensor:
    """int64 [B, T] word ids, padded with 0; T is a multiple of 8, since each new T costs the CPU's library a kernel."""
    width = -(-int(tokens.lengths.max()) // 8) * 8
    return torch.from_numpy(tokens.padded(PADDING, width).astype(np.int64))


def batch_of(data: LevelData, level: Level, rows: np.ndarray, size: int | None = None) -> Batch:
    """The batch of the documents `rows` (int64 [B]).

    Args:
        data: all documents of the level.
        level: the level whose nodes are scored.
        rows: documents.
        size: documents of the step over all workers, by default B.
    """
    tokens = data.tokens.take(rows)
    parents = None if data.parents is None else data.parents[rows]
    positives = _places(level, data.positives.take(rows), parents)
    return Batch(
        torch.from_numpy(rows),
        padded_tokens(tokens),
        torch.from_numpy(tokens.lengths),
        None if parents is None else torch.from_numpy(parents),
        torch.from_numpy(positives),
        len(rows) if size is None else size,
    )


def _places(level: Level, positives: Ragged, parents: np.ndarray | None) -> np.ndarray:
    document = np.repeat(np.arange(len(positives)), positives.lengths)
    nodes = positives.values.astype(np.int64)
    if parents is None or level.first_child is None:
        return np.stack([document, nodes])
    parent = np.searchsorted(level.first_child, nodes, side="right") - 1
    # A true node whose parent isn't a candidate (more than C are true) is not trained on.
    which, column = np.nonzero(parents[document] == parent[:, None])
    block = int(np.diff(level.first_child).max())
    place = column * block + nodes[which] - level.first_child[parent[which]]
    return np.stack([document[which], place])


def training_batches(
    data: LevelData, level: Level, *, batch_size: int, seed: int, epoch: int, rank: int = 0, workers: int = 1
) -> Iterator[Batch]:
    """One worker's share of an epoch's batches, each with at least one document.

    Every worker yields the same number of batches: a last small batch is dropped where it has fewer documents than
    there are workers.
    """
    for rows in shuffled(data.tokens.lengths, batch_size, seed, epoch):
        if len(rows) >= workers:
            yield batch_of(data, level, np.sort(rows)[rank::workers], len(rows))


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
