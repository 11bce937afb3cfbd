"""Batches of documents of similar length, with their candidates and targets.

- Documents are permuted, sorted by length within pools of `POOL` batches, and the batches are permuted again, so
  batches have little padding and yet hold other documents in every epoch.
- The batches of an epoch depend on the seed alone. Each of W workers encodes every W-th document of a batch and scores
  all documents of the batch against its shard of the nodes, so a step has the same documents for any W.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from axml_ray.core.ragged import Ragged, RaggedView, distinct
from axml_ray.corpus.text.tokenizer import PADDING
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.base import TransferBatch
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.level_network import Beam
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.tree.label_tree import LabelTree

T = TypeVar("T")
CPU = torch.device("cpu")
POOL = 64
"""Number of batches whose documents are sorted by length together."""
AHEAD = 2
"""Number of batches that are prepared in advance."""
COUNTED_DOCUMENTS = 1 << 16
"""Number of documents whose true nodes are counted at a time."""
CANDIDATE_TENSORS = tuple(field.name for field in fields(Candidates))


class TrueNodes(RaggedView):
    """The true nodes of a level, sorted, of each document: the ancestors of its labels (paper, Algorithm 2).

    They are looked up as documents are taken: of all documents, they would take as much memory as the labels in each
    worker, which share the memory-mapped labels.

    Args:
        tree: the label tree.
        number: the level, from 1.
        labels: labels of each document.
    """

    def __init__(self, tree: LabelTree, number: int, labels: Ragged):
        super().__init__(labels, np.arange(len(labels)))
        self.tree, self.number = tree, number

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of true nodes of each document, int64 [documents]."""
        starts = range(0, len(self), COUNTED_DOCUMENTS)
        blocks = [self.rows[start : start + COUNTED_DOCUMENTS] for start in starts]
        return np.concatenate([np.empty(0, np.int64), *map(self.lengths_of, blocks)])

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of true nodes of some documents (int [n]), int64 [n]."""
        return self.take(rows).lengths

    def take(self, rows: np.ndarray, width: int | None = None) -> Ragged:
        """Return the true nodes of some documents (int [n]), in that order, or their first `width` ones."""
        labels = super().take(rows)
        nodes = Ragged(*self.tree.node_labels(self.number, labels.values, labels.offsets))
        return nodes if width is None else nodes.cut(width)


@dataclass(frozen=True)
class LevelData:
    """The training or validation documents of a level with their targets.

    Attributes:
        tokens: word ids of each document.
        positives: true nodes of the level for each document, sorted.
        parents: nodes whose children are candidates, int [documents, C]; None where all nodes are scored, and for
            validation documents, whose candidates follow from the beam.
        beam: best nodes of the level above for each document, from which the level's own beam follows; likewise.
    """

    tokens: Ragged
    positives: Ragged
    parents: np.ndarray | None = None
    beam: Beam | None = None

    def candidates(self, level: Level) -> float:
        """Return about how many nodes of the level are scored for a document: the mean over parents, times C."""
        if self.parents is None or level.first_child is None:
            return float(level.nodes)
        return self.parents.shape[1] * level.nodes / (len(level.first_child) - 1)

    def positive_rate(self, level: Level) -> float:
        """Return the share of the level's training candidates that are true nodes."""
        return int(self.positives.lengths.sum()) / (len(self.positives) * self.candidates(level))


@dataclass(frozen=True)
class Batch:
    """The documents of a training step as one worker sees them.

    The step has B documents, in the order of the workers that encode them; this worker encodes b of them, of T tokens,
    and scores all of them against its shard of the nodes.

    Attributes:
        rows: the documents' row numbers, int64 [B].
        documents: row numbers of the documents that this worker encodes, int64 [b].
        tokens: word ids, int64 [b, T], padded with 0 on the right.
        unique_ids: the distinct words of the step's documents, int64 [U], equal on all workers, and the index of each
            of this worker's tokens among them, int64 [b·T].
        own_lengths: number of words of the documents that this worker encodes, int64 [b].
        lengths: number of words of all documents, int64 [B].
        candidates: the nodes that this worker scores; None where all nodes are scored.
        positives: document, and position among its candidates, of each true node of this shard, int64 [2, P].
        count: number of pairs of document and node that all workers score; the loss is divided by it.
        staged: the tensors prepared for a copy to the device; None if they are not yet.
    """

    rows: np.ndarray
    documents: Tensor
    tokens: Tensor
    unique_ids: tuple[Tensor, Tensor]
    own_lengths: Tensor
    lengths: Tensor
    candidates: Candidates | None
    positives: Tensor
    count: int
    staged: TransferBatch | None = None

    @property
    def size(self) -> int:
        """The number of documents of the step, B."""
        return len(self.rows)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with its tensors on `device`, after one copy that the CPU does not wait for."""
        staged = self.staged or self.stage(device).staged
        assert staged is not None
        moved: dict[str, Any] = staged.to(device)
        unique_ids = moved.pop("words"), moved.pop("word_index")
        if self.candidates is not None:
            moved["candidates"] = Candidates(**{name: moved.pop(f"candidates.{name}") for name in CANDIDATE_TENSORS})
        return replace(self, unique_ids=unique_ids, **moved)

    def stage(self, device: torch.device) -> "Batch":
        """Return the batch with its tensors prepared for a copy to `device`."""
        tensors = {name: getattr(self, name) for name in ("documents", "tokens", "own_lengths", "lengths", "positives")}
        tensors["words"], tensors["word_index"] = self.unique_ids
        if self.candidates is not None:
            tensors |= {f"candidates.{name}": getattr(self.candidates, name) for name in CANDIDATE_TENSORS}
        return replace(self, staged=backend_for(device).stage(tensors))


def shuffle_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the row numbers of an epoch's batches, each int64 [≤ batch_size]; every document is in exactly one.

    Documents of similar length share a batch, among `POOL` batches of a random order. The last pool takes the rest,
    too, and the sizes of its batches differ by at most one: were one of them small, it would be that of the longest
    documents, which would weigh more than the others in every epoch.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    batches: list[np.ndarray] = []
    pools = np.split(order, range(batch_size * POOL, len(order) - batch_size * POOL + 1, batch_size * POOL))
    for pool in filter(len, pools):
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += np.array_split(pool, -(-len(pool) // batch_size))
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
    by_worker = [rows[rank :: shard.count] for rank in range(shard.count)]
    encoded = by_worker[shard.rank]
    return np.concatenate(by_worker), encoded if len(encoded) else rows[:1]


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
    unique_ids, inverse = _distinct_words(data.tokens, rows, tokens.numpy(), shard)
    true = data.positives.take(rows)
    document = np.repeat(np.arange(len(rows)), true.lengths)
    nodes = true.values.astype(np.int64)
    if data.parents is None or level.first_child is None:
        candidates = None
        # Worker r of W holds the nodes r, r + W, ..., so node n is at position n div W of the shard n mod W.
        is_held = nodes % shard.count == shard.rank
        positives = torch.from_numpy(np.stack([document[is_held], nodes[is_held] // shard.count]))
        count = len(rows) * level.nodes
    else:
        parents = np.asarray(data.parents[rows], dtype=np.int64)
        candidates = Candidates.from_parents(parents, level, shard)
        # A true node whose parent is not among them (the beam missed it, or more than C are true) is not trained on.
        positives = candidates.positives(level, document, nodes)
        count = int(level.children_counts(parents).sum())
    return Batch(
        rows,
        torch.from_numpy(encoded),
        tokens,
        (torch.from_numpy(unique_ids), torch.from_numpy(inverse)),
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
        unique_ids, inverse = np.unique(tokens, return_inverse=True)
        return unique_ids, inverse.ravel()
    unique_ids = distinct(documents.take(rows).values).astype(np.int64)
    # Padding is a word of the step if any document of it is shorter than the batch is wide, on whichever worker.
    is_padded = int(documents.lengths_of(rows).min()) < tokens.shape[1]
    if is_padded and (not len(unique_ids) or unique_ids[0] != PADDING):
        unique_ids = np.concatenate([np.array([PADDING], dtype=np.int64), unique_ids])
    return unique_ids, np.searchsorted(unique_ids, tokens.ravel())


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

    def prepare(rows: np.ndarray) -> Batch:
        return make_batch(data, level, np.sort(rows), shard).stage(device)

    return prepared_ahead(prepare, shuffle_batches(data.tokens.lengths, batch_size, seed, epoch)[start:])


def prepared_ahead(prepare: Callable[[np.ndarray], T], batches: Iterable[np.ndarray]) -> Iterator[T]:
    """Yield `prepare` of each batch of row numbers; a thread works up to `AHEAD` batches in advance."""
    with ThreadPoolExecutor(1, "batches") as pool:
        ahead: deque[Future[T]] = deque()
        for rows in batches:
            ahead.append(pool.submit(prepare, rows))
            if len(ahead) > AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
