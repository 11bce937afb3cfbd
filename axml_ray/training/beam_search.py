"""Beam search over many documents, and the candidates that it gives to the next level.

`expand_all` makes one step of the search for all documents of a split: for validation, and for the candidates of the
next level. Prediction makes the same step (`LevelNetwork.expand`) level after level, in `NetworkTree.rank`.
`choose_parents` selects the nodes whose children are the next level's candidates in training.

Legend: B documents of a batch, b of them encoded by this worker, C nodes of a beam.
"""

from collections.abc import Iterator

import numpy as np
import torch

from axml_ray.core.ragged import Ragged
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.base import HostCopy, TransferBatch
from axml_ray.network.backends.precision import autocast
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.settings import Precision
from axml_ray.training.batches import CANDIDATE_TENSORS, order_by_worker, padded_tokens, prepared_ahead
from axml_ray.training.distributed import DistributedContext

SINGLE_WORKER = DistributedContext()


@torch.inference_mode()
def expand_all(
    network: LevelNetwork,
    tokens: Ragged,
    beam: Beam | None,
    keep: int,
    *,
    precision: Precision = "auto",
    context: DistributedContext = SINGLE_WORKER,
) -> Iterator[tuple[np.ndarray, Beam]]:
    """Yield the best `keep` nodes of the network's level for each document, batch by batch.

    All workers must iterate together: each encodes its share of a batch and scores the whole batch against its shard of
    the level, and all of them get the merged result.

    Args:
        network: network of the level, on `context.device`; it is put into evaluation mode.
        tokens: word ids of all documents.
        beam: beam of the level above for all documents, on the CPU; None for a level all of whose nodes are scored.
        keep: number of nodes kept for a document.
        precision: number format of matrix products.
        context: the distributed context.

    Yields:
        The documents of a batch, int64 [B], and their beam on the CPU.
    """
    network.eval()
    level, backend = network.level, backend_for(context.device)

    def prepare(rows: np.ndarray) -> tuple[np.ndarray, TransferBatch]:
        rows, encoded = order_by_worker(rows, context.shard)
        lengths = tokens.lengths_of(rows)
        tensors = {
            "tokens": padded_tokens(tokens, encoded, int(lengths.max())),
            "own_lengths": torch.from_numpy(tokens.lengths_of(encoded)),
            "lengths": torch.from_numpy(lengths),
        }
        if beam is not None:
            parents = beam.nodes[torch.from_numpy(rows)].numpy()
            candidates = Candidates.from_parents(parents, level, context.shard)
            tensors |= {name: getattr(candidates, name) for name in CANDIDATE_TENSORS}
            tensors["parent_scores"] = beam.scores[torch.from_numpy(rows)]
        return rows, backend.stage(tensors)

    scored = level.nodes if beam is None else beam.nodes.shape[1] * level.block_size
    waiting: tuple[np.ndarray, HostCopy] | None = None
    for rows, staged in prepared_ahead(prepare, scoring_batches(tokens.lengths, scored, context)):
        local = staged.to(context.device)
        candidates = None
        if beam is not None:
            candidates = Candidates(**{name: local[name] for name in CANDIDATE_TENSORS})
        with autocast(context.device, precision):
            # Barrier: every worker gets the encodings of the whole batch.
            encodings = context.exchange(network.encode(local["tokens"], local["own_lengths"]), len(rows))
            best = network.expand(encodings, local["lengths"], candidates, local.get("parent_scores"), keep)
        best = _merge_shards(best, keep, context)
        fetched = backend.fetch((best.nodes, best.scores.float()))
        # A GPU computes this batch while the CPU waits for the copy of the one before and works on it.
        if waiting is not None:
            yield waiting[0], _fetched_beam(waiting[1], context)
        waiting = rows, fetched
    if waiting is not None:
        yield waiting[0], _fetched_beam(waiting[1], context)


def expand_rows(
    network: LevelNetwork,
    tokens: Ragged,
    beam: Beam | None,
    keep: int,
    *,
    precision: Precision = "auto",
    context: DistributedContext = SINGLE_WORKER,
) -> Beam:
    """Return the best nodes of all documents in their order: int64 and float32 [documents, keep], padded with -1, -inf.

    The arguments are those of `expand_all`.

    Raises:
        ValueError: there are no documents.
    """
    if not len(tokens):
        raise ValueError("tokens: there are no documents to score; pass at least one")
    shape = len(tokens), keep
    result = Beam(torch.full(shape, -1, dtype=torch.int64), torch.full(shape, -torch.inf))
    for rows, best in expand_all(network, tokens, beam, keep, precision=precision, context=context):
        places = torch.from_numpy(rows)
        width = best.nodes.shape[1]
        result.nodes[places, :width], result.scores[places, :width] = best.nodes, best.scores
    return result


def scoring_batches(lengths: np.ndarray, scored: int, context: DistributedContext) -> list[np.ndarray]:
    """Return the row numbers of batches for inference, each int64, the longest documents first.

    Args:
        lengths: words of all documents.
        scored: nodes that are scored for a document.
        context: the distributed context; every worker has a share of a batch.
    """
    order = np.argsort(-lengths, kind="stable")
    limits, batches, start = backend_for(context.device).limits, [], 0
    while start < len(order):
        documents = limits.documents_to_score(int(lengths[order[start]]), scored) * context.world_size
        batches.append(order[start : start + documents])
        start += documents
    return batches


def _merge_shards(best: Beam, keep: int, context: DistributedContext) -> Beam:
    """Return the best nodes over the shards of all workers."""
    if context.world_size == 1:
        return best
    # Shards may have fewer than `keep` candidates; gathered tensors must have one width.
    missing = (0, keep - best.nodes.shape[1])
    nodes = torch.nn.functional.pad(best.nodes, missing, value=-1)
    scores = torch.nn.functional.pad(best.scores.float(), missing, value=float("-inf"))
    # From [W·B, keep], in the order of ranks, to [B, W·keep]: all shards' nodes of a document side by side.
    shape = context.world_size, *nodes.shape
    merged = [context.gather(values).view(shape).transpose(0, 1).flatten(1) for values in (nodes, scores)]
    return Beam(merged[0], merged[1]).top(keep)


def _fetched_beam(fetched: HostCopy, context: DistributedContext) -> Beam:
    """Return a beam on the CPU, without the columns that merging shards added."""
    best = Beam(*fetched.result())
    if context.world_size == 1:
        return best
    width = int((best.nodes >= 0).sum(1).max())
    return Beam(best.nodes[:, :width], best.scores[:, :width])


def choose_parents(predicted: np.ndarray, positives: Ragged, keep: int) -> np.ndarray:
    """Return the nodes whose children are the candidates of each document, int64 [documents, keep]; -1 fills up.

    They are its true nodes, followed by the best predicted ones, `keep` in all (paper, "Learning AttentionXML", step
    2). If more than `keep` nodes are true, those are kept that were predicted best.

    Args:
        predicted: distinct nodes, best first, then -1 where a document has fewer, int64 [documents, ≥ keep].
        positives: true nodes of each document, sorted.
        keep: number of parents of a document, C.
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
        match = (predicted == padded[:, column, None]) & (predicted >= 0)
        is_true |= match
        row = np.flatnonzero(positives.lengths > column)
        hit = match[row].any(axis=1)
        rank[starts[row[hit]] + column] = match[row[hit]].argmax(axis=1)
    # Sort key: true nodes have 0 to width, predicted ones that are not true width + 1 and on. Padding, and true nodes
    # among the predicted ones, which would be there twice, are no nodes (-1) and come last.
    is_none = is_true | (predicted < 0)
    false_rank = np.where(is_none, 2 * width + 1, width + 1 + np.arange(width))
    nodes_by_key = np.concatenate([padded, np.where(is_none, -1, predicted)], axis=1)
    true_rank = np.full(padded.shape, 2 * width + 1, dtype=np.int64)
    # The position of a true node within its row is its index in the flat array minus the row's start.
    true_rank[owner, np.arange(len(nodes)) - np.repeat(starts, positives.lengths)] = rank
    ranks = np.concatenate([true_rank, false_rank], axis=1)
    order = np.argsort(ranks, axis=1, kind="stable")[:, :keep]
    return np.take_along_axis(nodes_by_key, order, axis=1)
