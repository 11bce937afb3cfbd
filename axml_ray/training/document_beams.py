"""The beams of all training and validation documents at a trained level, saved for the training of the next level.

Computing them is a pass over the whole corpus, as long as an epoch, and is done once: a job that is restarted while the
next level trains reads the files. Workers memory-map the arrays, so those on one machine share their memory.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from axml_ray.core.files import reserve_space
from axml_ray.core.ragged import Ragged
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.settings import Precision
from axml_ray.training.batches import choose_parents
from axml_ray.training.beam_step import expand_all, expand_rows
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level_files import read_manifest, write_together

FORMAT, MANIFEST = "axml-ray scored documents", "scored.json"
NODES, SCORES, PARENTS = "nodes.npy", "scores.npy", "parents.npy"
VALID_NODES, VALID_SCORES = "valid-nodes.npy", "valid-scores.npy"
REPORT_SECONDS = 10.0


class DocumentBeams:
    """The saved beams of all documents at a level, from which the next level's candidates follow.

    Args:
        directory: as `save_document_beams` wrote it.

    Attributes:
        train: beam of the training documents.
        valid: beam of the validation documents.
        parents: int32 [documents, C], nodes whose children are candidates of the next level; -1 where there are fewer.
    """

    def __init__(self, directory: Path):
        def memory_mapped(name: str) -> np.ndarray:
            # Copy-on-write, as PyTorch warns of arrays that cannot be written.
            return np.load(directory / name, mmap_mode="c", allow_pickle=False)

        nodes = memory_mapped(NODES)
        self.train = Beam(torch.from_numpy(nodes), torch.from_numpy(memory_mapped(SCORES)))
        self.valid = Beam(torch.from_numpy(memory_mapped(VALID_NODES)), torch.from_numpy(memory_mapped(VALID_SCORES)))
        self.parents = memory_mapped(PARENTS) if (directory / PARENTS).exists() else nodes


def has_document_beams(directory: Path, key: str) -> bool:
    """Return whether the beams of a level are saved completely, with this cache key."""
    return read_manifest(directory, MANIFEST, FORMAT, key) is not None


def save_document_beams(
    network: LevelNetwork,
    directory: Path,
    key: str,
    *,
    train: Ragged,
    positives: Ragged,
    train_beam: Beam | None,
    valid: Ragged,
    valid_beam: Beam | None,
    keep: int,
    include_true_parents: bool,
    precision: Precision,
    context: DistributedContext,
    report: Callable[[int, int, float], None] = lambda done, documents, seconds: None,
) -> None:
    """Compute and save the beams of all documents at a trained level; all workers call this.

    Args:
        network: network of the level, trained.
        directory: where to write.
        key: cache key of the result.
        train: word ids of the training documents.
        positives: their true nodes of this level.
        train_beam: their beam of the level above; None where all nodes are scored.
        valid: word ids of the validation documents.
        valid_beam: their beam of the level above.
        keep: beam width, C.
        include_true_parents: whether true nodes that a beam missed become parents too; else the parents are the beam.
        precision: number format of matrix products.
        context: the distributed context.
        report: called about every ten seconds with the number of training documents done, their total, and the seconds
            so far.
    """
    with write_together(directory, context, MANIFEST, {"format": FORMAT, "fingerprint": key}) as work:
        arrays = _open_arrays(work, (len(train), keep), include_true_parents) if context.is_first else {}
        began = reported = time.monotonic()
        done = 0
        for rows, best in expand_all(network, train, train_beam, keep, precision=precision, context=context):
            if context.is_first:
                _store(arrays, rows, best, positives, keep)
            done += len(rows)
            if (now := time.monotonic()) - reported > REPORT_SECONDS:
                reported = now
                report(done, len(train), now - began)
        beam = expand_rows(network, valid, valid_beam, keep, precision=precision, context=context)
        if context.is_first:
            np.save(work / VALID_NODES, beam.nodes.numpy().astype(np.int32))
            np.save(work / VALID_SCORES, beam.scores.numpy())
            for array in arrays.values():
                array.flush()


def _open_arrays(work: Path, shape: tuple[int, int], include_true_parents: bool) -> dict[str, np.memmap]:
    """Create the memory-mapped arrays of the training documents' beams, by file name."""
    dtypes: dict[str, type] = {NODES: np.int32, SCORES: np.float32}
    if include_true_parents:
        dtypes[PARENTS] = np.int32
    arrays = {}
    for name, dtype in dtypes.items():
        arrays[name] = np.lib.format.open_memmap(work / name, mode="w+", dtype=dtype, shape=shape)
        reserve_space(work / name)
    return arrays


def _store(arrays: dict[str, np.memmap], rows: np.ndarray, best: Beam, positives: Ragged, keep: int) -> None:
    """Write the beam of a batch of documents (`rows`, int64 [B]) into the arrays."""
    # A beam is narrower than C only where all documents of a batch have fewer candidates.
    width = best.nodes.shape[1]
    nodes = np.pad(best.nodes.numpy(), ((0, 0), (0, keep - width)), constant_values=-1)
    arrays[NODES][rows] = nodes
    arrays[SCORES][rows, :width], arrays[SCORES][rows, width:] = best.scores.numpy(), -np.inf
    if PARENTS in arrays:
        arrays[PARENTS][rows] = choose_parents(nodes, positives.take(rows), keep)
