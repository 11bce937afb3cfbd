"""One step of the beam search over many documents: the pass that validation, the next level's candidates and
prediction share.
"""

from collections.abc import Iterator

import numpy as np
import torch

from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.network.precision import autocast
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision
from axml_ray.training.batches import by_length, in_workers_order, padded_tokens
from axml_ray.training.workers import Workers

SCORING_BATCH = 64
"""Documents that a worker encodes at a time."""

ALONE = Workers()


@torch.inference_mode()
def expand_all(
    network: LevelNetwork,
    tokens: Ragged,
    beam: Beam | None,
    keep: int,
    *,
    precision: Precision = "auto",
    workers: Workers = ALONE,
) -> Iterator[tuple[np.ndarray, Beam]]:
    """The best `keep` nodes of the network's level for each document, batch by batch.

    Several workers score together: each encodes its part of a batch and scores all of it against its shard of the
    level, and all of them get the result.

    Args:
        network: of the level, on `workers.device`; it is put into evaluation mode.
        tokens: word ids of all documents.
        beam: of the level above, for all documents, on the CPU; None at a level all of whose nodes are scored.
        keep: nodes kept for a document.
        precision: of matrix products.
        workers: this worker and its like.

    Yields:
        The documents of a batch, int64 [B], and their beam on the CPU.
    """
    network.eval()
    device = workers.device
    lengths = tokens.lengths
    for rows in by_length(lengths, SCORING_BATCH * workers.count):
        rows, encoded = in_workers_order(rows, workers.shard)
        padded = padded_tokens(tokens, encoded, int(lengths[rows].max())).to(device)
        own = torch.from_numpy(lengths[encoded]).to(device)
        counts = torch.from_numpy(lengths[rows]).to(device)
        candidates = above = None
        if beam is not None:
            parents = beam.nodes[torch.from_numpy(rows)].numpy()
            candidates = Candidates.from_parents(parents, network.level, workers.shard).to(device)
            above = beam.scores[torch.from_numpy(rows)].to(device)
        with autocast(device, precision):
            encodings = workers.exchange(network.encode(padded, own), len(rows))
            best = network.expand(encodings, counts, candidates, above, keep)
        yield rows, _joined(best, keep, workers)


def _joined(best: Beam, keep: int, workers: Workers) -> Beam:
    """The best of what the shards found, on the CPU."""
    if workers.count > 1:
        missing = (0, keep - best.nodes.shape[1])
        nodes = torch.nn.functional.pad(best.nodes, missing, value=-1)
        scores = torch.nn.functional.pad(best.scores.float(), missing, value=float("-inf"))
        shape = workers.count, *nodes.shape
        every = [workers.gather(part).view(shape).transpose(0, 1).flatten(1) for part in (nodes, scores)]
        best = Beam(every[0], every[1]).top(keep)
        found = int((best.nodes >= 0).sum(1).max())
        best = Beam(best.nodes[:, :found], best.scores[:, :found])
    return Beam(best.nodes.cpu(), best.scores.float().cpu())


def expand_rows(
    network: LevelNetwork,
    tokens: Ragged,
    beam: Beam | None,
    keep: int,
    *,
    precision: Precision = "auto",
    workers: Workers = ALONE,
) -> Beam:
    """`expand_all` of every document, put together in their order."""
    found = None
    for rows, best in expand_all(network, tokens, beam, keep, precision=precision, workers=workers):
        if found is None:
            found = Beam(
                torch.full((len(tokens), keep), -1, dtype=torch.int64), torch.full((len(tokens), keep), -torch.inf)
            )
        places = torch.from_numpy(rows)
        width = best.nodes.shape[1]
        found.nodes[places, :width], found.scores[places, :width] = best.nodes, best.scores
    if found is None:
        raise ValueError("there are no documents to score")
    return found
