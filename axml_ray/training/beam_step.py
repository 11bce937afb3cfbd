"""One step of beam search over many documents, shared by validation, the next level's candidates and prediction."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from axml_ray.core.ragged import Ragged
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.base import HostCopy, Staged
from axml_ray.network.backends.precision import autocast
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.settings import Precision
from axml_ray.training.batches import CANDIDATE_TENSORS, order_by_worker, padded_tokens
from axml_ray.training.distributed import DistributedContext

AHEAD = 2
"""Number of batches that are prepared in advance."""

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

    All workers must iterate together: each encodes its part of a batch and scores the whole batch against its shard of
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
    level = network.level
    scored = level.nodes if beam is None else beam.nodes.shape[1] * level.block_size
    batches = scoring_batches(tokens.lengths, scored, context)
    prepare = partial(_prepare, network, tokens, beam, context)
    backend = backend_for(context.device)
    waiting: tuple[np.ndarray, HostCopy] | None = None
    with ThreadPoolExecutor(1, "scoring") as pool:
        ahead = [pool.submit(prepare, rows) for rows in batches[:AHEAD]]
        for rows in [*batches[AHEAD:], *[None] * len(ahead)]:
            prepared = ahead.pop(0).result()
            if rows is not None:
                ahead.append(pool.submit(prepare, rows))
            best = _expand_batch(network, prepared, keep, precision, context)
            fetched = backend.fetch((best.nodes, best.scores.float()))
            # A GPU computes this batch while the CPU waits for the copy of the one before and works on it.
            if waiting is not None:
                yield waiting[0], _fetched_beam(waiting[1], context)
            waiting = prepared[0], fetched
    if waiting is not None:
        yield waiting[0], _fetched_beam(waiting[1], context)


def scoring_batches(lengths: np.ndarray, scored: int, context: DistributedContext) -> list[np.ndarray]:
    """Return the row numbers of batches for inference, each int64, the longest documents first.

    Args:
        lengths: words of all documents.
        scored: nodes that are scored for a document.
        context: the distributed context; a batch has a part for each worker.
    """
    order = np.argsort(-lengths, kind="stable")
    limits, batches, start = backend_for(context.device).limits, [], 0
    while start < len(order):
        documents = limits.documents_to_score(int(lengths[order[start]]), scored) * context.world_size
        batches.append(order[start : start + documents])
        start += documents
    return batches


def _prepare(
    network: LevelNetwork, tokens: Ragged, beam: Beam | None, context: DistributedContext, rows: np.ndarray
) -> tuple[np.ndarray, Staged]:
    """Return the documents of a batch in the order of workers, and their tensors, staged for a copy to the device."""
    rows, encoded = order_by_worker(rows, context.shard)
    lengths = tokens.lengths_of(rows)
    tensors = {
        "tokens": padded_tokens(tokens, encoded, int(lengths.max())),
        "own_lengths": torch.from_numpy(tokens.lengths_of(encoded)),
        "lengths": torch.from_numpy(lengths),
    }
    if beam is not None:
        parents = beam.nodes[torch.from_numpy(rows)].numpy()
        candidates = Candidates.from_parents(parents, network.level, context.shard)
        tensors |= {name: getattr(candidates, name) for name in CANDIDATE_TENSORS}
        tensors["parent_scores"] = beam.scores[torch.from_numpy(rows)]
    return rows, backend_for(context.device).stage(tensors)


def _expand_batch(
    network: LevelNetwork,
    prepared: tuple[np.ndarray, Staged],
    keep: int,
    precision: Precision,
    context: DistributedContext,
) -> Beam:
    """Return the beam of a batch, on the device."""
    rows, staged = prepared
    local = staged.to(context.device)
    candidates = None
    if "parents" in local:
        candidates = Candidates(**{name: local[name] for name in CANDIDATE_TENSORS})
    with autocast(context.device, precision):
        encodings = context.exchange(network.encode(local["tokens"], local["own_lengths"]), len(rows))
        best = network.expand(encodings, local["lengths"], candidates, local.get("parent_scores"), keep)
    return _merge_shards(best, keep, context)


def _fetched_beam(fetched: HostCopy, context: DistributedContext) -> Beam:
    """Return a beam on the CPU, without the columns that merging shards added."""
    best = Beam(*fetched.result())
    if context.world_size == 1:
        return best
    width = int((best.nodes >= 0).sum(1).max())
    return Beam(best.nodes[:, :width], best.scores[:, :width])


def _merge_shards(best: Beam, keep: int, context: DistributedContext) -> Beam:
    """Return the best nodes over the shards of all workers."""
    if context.world_size > 1:
        # Shards may have fewer than `keep` candidates; gathered tensors must have one width.
        missing = (0, keep - best.nodes.shape[1])
        nodes = torch.nn.functional.pad(best.nodes, missing, value=-1)
        scores = torch.nn.functional.pad(best.scores.float(), missing, value=float("-inf"))
        shape = context.world_size, *nodes.shape
        merged = [context.gather(part).view(shape).transpose(0, 1).flatten(1) for part in (nodes, scores)]
        best = Beam(merged[0], merged[1]).top(keep)
    return best


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
