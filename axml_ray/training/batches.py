"""Batches of documents of similar length, with their candidates and targets.

- Documents are permuted, sorted by length within pools of `POOL` batches, and the batches are permuted again, so
  batches have little padding and yet hold other documents in every epoch.
- The batches of an epoch depend on the seed alone. Each of W workers encodes every W-th document of a batch and scores
  all documents of the batch against its shard of the nodes, so a step has the same documents for any W.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.tokenizer import PADDING
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.base import Staged
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level

CPU = torch.device("cpu")
POOL = 64
"""Number of batches whose documents are sorted by length together."""
AHEAD = 2
"""Number of batches that are prepared in advance."""
CANDIDATE_TENSORS = tuple(field.name for field in fields(Candidates))


@dataclass(frozen=True)
class LevelData:
    """The training documents of a level with their targets.

    Attributes:
        tokens: word ids of each document.
        positives: true nodes of the level for each document, sorted.
        parents: nodes whose children are candidates, int [documents, C]; None where all nodes are scored.
    """

    tokens: Ragged
    positives: Ragged
    parents: np.ndarray | None = None

    def candidates(self, level: Level) -> float:
        """Return about how many nodes of the level are scored for a document: the mean over parents, times C."""
        if self.parents is None or level.first_child is None:
            return float(level.nodes)
        return self.parents.shape[1] * level.nodes / (len(level.first_child) - 1)

    def positive_rate(self, level: Level) -> float:
        """Return the share of the level's training candidates that are true nodes."""
        return len(self.positives.values) / (len(self.positives) * self.candidates(level))


@dataclass(frozen=True)
class Batch:
    """The documents of a training step as one worker sees them.

    The step has B documents, in the order of the workers that encode them; this worker encodes b of them, of T tokens,
    and scores all of them against its shard of the nodes.

    Attributes:
        rows: the documents' row numbers, int64 [B].
        encoded: row numbers of the documents that this worker encodes, int64 [b].
        documents: the same, as a tensor.
        tokens: word ids, int64 [b, T], padded with 0 on the right.
        words: the distinct words of the step's documents, int64 [U], equal on all workers, and the index of each of
            this worker's tokens among them, int64 [b·T].
        own_lengths: number of words of the documents that this worker encodes, int64 [b].
        lengths: number of words of all documents, int64 [B].
        candidates: the nodes that this worker scores; None where all nodes are scored.
        positives: document, and position among its candidates, of each true node of this shard, int64 [2, P].
        count: number of pairs of document and node that all workers score; the loss is divided by it.
        staged: the tensors prepared for a copy to the device; None if they are not yet.
    """

    rows: np.ndarray
    encoded: np.ndarray
    documents: Tensor
    tokens: Tensor
    words: tuple[Tensor, Tensor]
    own_lengths: Tensor
    lengths: Tensor
    candidates: Candidates | None
    positives: Tensor
    count: int
    staged: Staged | None = None

    @property
    def size(self) -> int:
        """The number of documents of the step, B."""
        return len(self.rows)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with its tensors on `device`, after one copy that the CPU does not wait for."""
        staged = self.staged or self.stage(device).staged
        assert staged is not None
        moved: dict[str, Any] = staged.to(device)
        words = moved.pop("words"), moved.pop("word_index")
        if self.candidates is not None:
            moved["candidates"] = Candidates(**{name: moved.pop(f"candidates.{name}") for name in CANDIDATE_TENSORS})
        return replace(self, words=words, **moved)

    def stage(self, device: torch.device) -> "Batch":
        """Return the batch with its tensors prepared for a copy to `device`."""
        tensors = {name: getattr(self, name) for name in ("documents", "tokens", "own_lengths", "lengths", "positives")}
        tensors["words"], tensors["word_index"] = self.words
        if self.candidates is not None:
            tensors |= {f"candidates.{name}": getattr(self.candidates, name) for name in CANDIDATE_TENSORS}
        return replace(self, staged=backend_for(device).stage(tensors))


def shuffle_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the row numbers of an epoch's batches, each int64 [≤ batch_size]; every document is in exactly one."""
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), batch_size * POOL):
        pool = order[start : start + batch_size * POOL]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def padded_tokens(tokens: Ragged, rows: np.ndarray, width: int) -> Tensor:
    """Return the word ids of some rows, int64 [b, T], padded with 0.

    T is `width` rounded up to a multiple of 8, since oneDNN compiles a kernel for each new T.
    """
    return torch.from_numpy(tokens.take(rows).padded(PADDING, -(-width // 8) * 8).astype(np.int64))


def order_by_worker(rows: np.ndarray, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """Assign every W-th document of a step to each worker.

    Returns:
        All documents grouped by worker, int64 [B], and those that this worker encodes, int64 [b]. A worker that has
        none, because B < W, encodes the first document, whose encoding is then ignored: collective operations need
        every worker.
    """
    parts = [rows[rank :: shard.count] for rank in range(shard.count)]
    own = parts[shard.rank]
    return np.concatenate(parts), own if len(own) else rows[:1]


def make_batch(data: LevelData, level: Level, rows: np.ndarray, shard: Shard = WHOLE) -> Batch:
    """Return the batch of some documents.

    Args:
        data: all documents of the level.
        level: the level whose nodes are scored.
        rows: row numbers of the documents, int64 [B].
        shard: this worker's part of the documents to encode, and of the level's table.
    """
    rows, encoded = order_by_worker(rows, shard)
    lengths = data.tokens.lengths_of(rows)
    tokens = padded_tokens(data.tokens, encoded, int(lengths.max()))
    words, places = _distinct_words(data.tokens, rows, tokens.numpy(), shard)
    true = data.positives.take(rows)
    document = np.repeat(np.arange(len(rows)), true.lengths)
    nodes = true.values.astype(np.int64)
    if data.parents is None or level.first_child is None:
        candidates = None
        # Worker r of W holds the nodes r, r + W, ..., so node n is at position n div W of the shard n mod W.
        own = nodes % shard.count == shard.rank
        positives = torch.from_numpy(np.stack([document[own], nodes[own] // shard.count]))
        count = len(rows) * level.nodes
    else:
        parents = np.asarray(data.parents[rows], dtype=np.int64)
        candidates = Candidates.from_parents(parents, level, shard)
        # A true node whose parent is not among them (the beam missed it, or more than C are true) is not trained on.
        positives = candidates.positives(level, document, nodes)
        count = int(level.children_counts(parents).sum())
    return Batch(
        rows,
        encoded,
        torch.from_numpy(encoded),
        tokens,
        (torch.from_numpy(words), torch.from_numpy(places)),
        torch.from_numpy(data.tokens.lengths_of(encoded)),
        torch.from_numpy(lengths),
        candidates,
        positives,
        count,
    )


def _distinct_words(
    documents: Ragged, rows: np.ndarray, tokens: np.ndarray, shard: Shard
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct words of a step and the index of each of this worker's tokens among them, both int64.

    All workers compute the same words, so that they can sum the words' gradients without exchanging which they are.
    """
    if shard.count == 1:
        words, places = np.unique(tokens, return_inverse=True)
        return words, places.ravel()
    words = np.unique(documents.take(rows).values).astype(np.int64)
    if int(documents.lengths_of(rows).min()) < tokens.shape[1] and (not len(words) or words[0] != PADDING):
        words = np.concatenate([np.array([PADDING], dtype=np.int64), words])
    return words, np.searchsorted(words, tokens.ravel())


def training_batches(
    data: LevelData,
    level: Level,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    shard: Shard = WHOLE,
    device: torch.device = CPU,
) -> Iterator[Batch]:
    """Yield an epoch's batches from batch `start` on, as one worker sees them, staged for a copy to `device`.

    A thread prepares the next batches while the caller trains on one. The other arguments are those of
    `shuffle_batches` and `make_batch`.
    """
    prepare = partial(_make_staged, data, level, shard, device)
    batches = shuffle_batches(data.tokens.lengths, batch_size, seed, epoch)[start:]
    with ThreadPoolExecutor(1, "batches") as pool:
        ahead = [pool.submit(prepare, np.sort(rows)) for rows in batches[:AHEAD]]
        for rows in [*batches[AHEAD:], *[None] * len(ahead)]:
            batch = ahead.pop(0)
            if rows is not None:
                ahead.append(pool.submit(prepare, np.sort(rows)))
            yield batch.result()


def _make_staged(data: LevelData, level: Level, shard: Shard, device: torch.device, rows: np.ndarray) -> Batch:
    return make_batch(data, level, rows, shard).stage(device)


def choose_parents(predicted: np.ndarray, positives: Ragged, keep: int) -> np.ndarray:
    """Return the nodes whose children are candidates of the next level (paper, "Learning AttentionXML", step 2).

    They are the true nodes, followed by the best predicted ones, `keep` in all. If more than `keep` nodes are true,
    those are kept that were predicted best.

    Args:
        predicted: distinct nodes, best first, int64 [documents, ≥ keep].
        positives: true nodes of each document.
        keep: number of parents of a document, C.

    Returns:
        int64 [documents, keep], distinct in each row.
    """
    width = predicted.shape[1]
    documents = len(positives)
    owner = np.repeat(np.arange(documents), positives.lengths)
    # The rank of each true node in its document's prediction; nodes that were not predicted come after all predicted.
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
    # Sort key: true nodes have 0 to width, predicted ones that are not true width + 1 and on. A true node among the
    # predicted ones (2 width + 1) and padding (2 width + 2) come last, as they are duplicates or no nodes.
    false_rank = np.where(is_true, 2 * width + 1, width + 1 + np.arange(width))
    nodes_by_key = np.concatenate([padded, predicted], axis=1)
    true_rank = np.full(padded.shape, 2 * width + 2, dtype=np.int64)
    # The position of a true node within its row is its index in the flat array minus the row's start.
    true_rank[owner, np.arange(len(nodes)) - np.repeat(starts, positives.lengths)] = rank
    ranks = np.concatenate([true_rank, false_rank], axis=1)
    order = np.argsort(ranks, axis=1, kind="stable")[:, :keep]
    return np.take_along_axis(nodes_by_key, order, axis=1)
