"""What a trained level found for every training and validation document: kept on disk for the level below.

A pass over the whole corpus, as long as an epoch, made once: a job that is started again while the next level trains
finds it here. Workers map the arrays instead of holding them, so those of one machine share their memory.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision
from axml_ray.training.batches import choose_parents
from axml_ray.training.level_files import manifest_of, written_together
from axml_ray.training.scoring import expand_all, expand_rows
from axml_ray.training.workers import Workers

FORMAT, MANIFEST = "axml-ray scored documents", "scored.json"
NODES, SCORES, PARENTS = "nodes.npy", "scores.npy", "parents.npy"
REPORT_SECONDS = 10.0
VALID_NODES, VALID_SCORES = "valid-nodes.npy", "valid-scores.npy"


class Scored:
    """The beams of all documents at a level, and what the next level is trained on.

    Attributes:
        train: beam of the training documents.
        valid: beam of the validation documents.
        parents: int32 [documents, C], nodes whose children are candidates of the next level; -1 where there are fewer.
    """

    def __init__(self, directory: Path):
        def mapped(name: str) -> np.ndarray:
            # copy-on-write: PyTorch wants arrays that could be written
            return np.load(directory / name, mmap_mode="c", allow_pickle=False)

        nodes = mapped(NODES)
        self.train = Beam(torch.from_numpy(nodes), torch.from_numpy(mapped(SCORES)))
        self.valid = Beam(torch.from_numpy(mapped(VALID_NODES)), torch.from_numpy(mapped(VALID_SCORES)))
        self.parents = mapped(PARENTS) if (directory / PARENTS).exists() else nodes


def is_scored(directory: Path, mark: str) -> bool:
    """Whether a level's documents are scored, with these settings."""
    return manifest_of(directory, MANIFEST, FORMAT, mark) is not None


def score_level(
    network: LevelNetwork,
    directory: Path,
    mark: str,
    *,
    train: Ragged,
    positives: Ragged,
    train_beam: Beam | None,
    valid: Ragged,
    valid_beam: Beam | None,
    keep: int,
    true_candidates: bool,
    precision: Precision,
    workers: Workers,
    report: Callable[[int, int, float], None] = lambda done, documents, seconds: None,
) -> None:
    """Score all documents with a trained level, together with the other workers.

    Args:
        network: trained.
        directory: where the result goes.
        mark: fingerprint of the settings.
        train: word ids of the training documents.
        positives: their true nodes of this level.
        train_beam: their beam of the level above.
        valid: word ids of the validation documents.
        valid_beam: their beam of the level above.
        keep: C.
        true_candidates: whether the true nodes that a beam missed are parents too; else the beam is.
        precision: of matrix products.
        workers: rank, world size and device of this worker.
        report: called about every ten seconds with the training documents scored so far, their number and the seconds
            that it took.
    """
    began = reported = time.monotonic()
    done = 0
    shape = len(train), keep
    with written_together(directory, workers, MANIFEST, {"format": FORMAT, "fingerprint": mark}) as work:
        arrays: dict[str, np.ndarray] = {}
        if workers.first:
            kinds: dict[str, type] = {NODES: np.int32, SCORES: np.float32}
            if true_candidates:
                kinds[PARENTS] = np.int32
            arrays = {
                name: np.lib.format.open_memmap(work / name, mode="w+", dtype=kind, shape=shape)
                for name, kind in kinds.items()
            }
        for rows, best in expand_all(network, train, train_beam, keep, precision=precision, workers=workers):
            if workers.first:
                # A beam is narrower than C only where a worker's documents have fewer candidates.
                nodes = np.pad(best.nodes.numpy(), ((0, 0), (0, keep - best.nodes.shape[1])), constant_values=-1)
                width = best.scores.shape[1]
                arrays[NODES][rows] = nodes
                arrays[SCORES][rows, :width], arrays[SCORES][rows, width:] = best.scores.numpy(), -np.inf
                if true_candidates:
                    arrays[PARENTS][rows] = choose_parents(nodes, positives.take(rows), keep)
            done += len(rows)
            if (now := time.monotonic()) - reported > REPORT_SECONDS:
                reported = now
                report(done, len(train), now - began)
        found = expand_rows(network, valid, valid_beam, keep, precision=precision, workers=workers)
        if workers.first:
            np.save(work / VALID_NODES, found.nodes.numpy().astype(np.int32))
            np.save(work / VALID_SCORES, found.scores.numpy())
            for array in arrays.values():
                array.flush()  # type: ignore[attr-defined]
