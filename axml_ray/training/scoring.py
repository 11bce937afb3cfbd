"""One level's step of the beam search over many documents: the pass that validation, the next level's candidates and
prediction share.
"""

from collections.abc import Iterator

import numpy as np
import torch

from axml_ray.network.attention_xml import AttentionXML, Beam
from axml_ray.network.precision import autocast
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision
from axml_ray.training.batches import by_length, padded_tokens
from axml_ray.training.workers import CPU

SCORING_BATCH = 64


@torch.inference_mode()
def expand_all(
    network: AttentionXML,
    tokens: Ragged,
    beam: Beam | None,
    keep: int,
    *,
    precision: Precision = "auto",
    device: torch.device = CPU,
    rank: int = 0,
    workers: int = 1,
) -> Iterator[tuple[np.ndarray, Beam]]:
    """The best `keep` nodes of the network's level for each document, batch by batch.

    Args:
        network: of the level; it is put into evaluation mode.
        tokens: word ids of all documents.
        beam: of the level above, for all documents, in memory; None at a level all of whose nodes are scored.
        keep: nodes kept for a document.
        precision: of matrix products.
        device: where the network lies.
        rank: this worker's share of the documents.
        workers: shares in all.

    Yields:
        The documents of a batch, int64 [B], and their beam on the CPU.
    """
    network.eval()
    for rows in by_length(tokens.lengths, SCORING_BATCH, rank, workers):
        chosen = tokens.take(rows)
        padded = padded_tokens(chosen).to(device)
        above = None
        if beam is not None:
            places = torch.from_numpy(rows)
            above = Beam(beam.nodes[places].to(device), beam.scores[places].to(device))
        with autocast(device, precision):
            best = network.expand(padded, torch.from_numpy(chosen.lengths).to(device), above, keep)
        yield rows, Beam(best.nodes.cpu(), best.scores.float().cpu())


def expand_rows(network: AttentionXML, tokens: Ragged, beam: Beam | None, keep: int, **options: object) -> Beam:
    """`expand_all` of every document, put together in their order."""
    found: Beam | None = None
    for rows, best in expand_all(network, tokens, beam, keep, **options):  # type: ignore[arg-type]
        if found is None:
            shape = (len(tokens), best.nodes.shape[1])
            found = Beam(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape))
        places = torch.from_numpy(rows)
        found.nodes[places], found.scores[places] = best.nodes, best.scores
    if found is None:
        raise ValueError("there are no documents to score")
    return found
