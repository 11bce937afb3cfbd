"""One step of beam search over many documents, shared by validation, the next level's candidates and prediction."""

from collections.abc import Iterator

import numpy as np
import torch

from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.network.precision import autocast
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision
from axml_ray.training.batches import batches_by_length, order_by_worker, padded_tokens
from axml_ray.training.distributed import DistributedContext

SCORING_BATCH = 64
"""Documents that a worker encodes at a time."""

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
    device = context.device
    lengths = tokens.lengths
    for rows in batches_by_length(lengths, SCORING_BATCH * context.world_size):
        rows, encoded = order_by_worker(rows, context.shard)
        padded = padded_tokens(tokens, encoded, int(lengths[rows].max())).to(device)
        own_lengths = torch.from_numpy(lengths[encoded]).to(device)
        all_lengths = torch.from_numpy(lengths[rows]).to(device)
        candidates = parent_scores = None
        if beam is not None:
            parents = beam.nodes[torch.from_numpy(rows)].numpy()
            candidates = Candidates.from_parents(parents, network.level, context.shard).to(device)
            parent_scores = beam.scores[torch.from_numpy(rows)].to(device)
        with autocast(device, precision):
            encodings = context.exchange(network.encode(padded, own_lengths), len(rows))
            best = network.expand(encodings, all_lengths, candidates, parent_scores, keep)
        yield rows, _merge_shards(best, keep, context)


def _merge_shards(best: Beam, keep: int, context: DistributedContext) -> Beam:
    """Return the best nodes over the shards of all workers, on the CPU."""
    if context.world_size > 1:
        # Shards may have fewer than `keep` candidates; gathered tensors must have one width.
        missing = (0, keep - best.nodes.shape[1])
        nodes = torch.nn.functional.pad(best.nodes, missing, value=-1)
        scores = torch.nn.functional.pad(best.scores.float(), missing, value=float("-inf"))
        shape = context.world_size, *nodes.shape
        merged = [context.gather(part).view(shape).transpose(0, 1).flatten(1) for part in (nodes, scores)]
        best = Beam(merged[0], merged[1]).top(keep)
        width = int((best.nodes >= 0).sum(1).max())
        best = Beam(best.nodes[:, :width], best.scores[:, :width])
    return Beam(best.nodes.cpu(), best.scores.float().cpu())


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
