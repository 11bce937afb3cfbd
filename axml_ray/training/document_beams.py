"""The beams of all training and validation documents at a trained level, saved for the training of the next level.

Computing them is a pass over the whole corpus, as long as an epoch, and is done once: a job that is restarted while the
next level trains reads the files. Workers memory-map the arrays, so those on one machine share their memory.
"""

from pathlib import Path

import numpy as np
import torch

from axml_ray.core import storage
from axml_ray.core.files import reserve_space
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.settings import TrainingSettings
from axml_ray.training.batches import LevelData
from axml_ray.training.beam_search import choose_parents, expand_all, expand_rows
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level_files import read_manifest, write_together
from axml_ray.training.progress import PassProgress, Report

FORMAT, MANIFEST = "axml-ray scored documents", "scored.json"
NODES, SCORES, PARENTS = "nodes.npy", "scores.npy", "parents.npy"
VALID_NODES, VALID_SCORES = "valid-nodes.npy", "valid-scores.npy"


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
        storage.fetch(directory)

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
    data: LevelData,
    validation: LevelData,
    keep: int,
    training: TrainingSettings,
    directory: Path,
    key: str,
    context: DistributedContext,
    report: Report = lambda record: None,
) -> None:
    """Compute and save the beams of all documents at a trained level; all workers call this.

    Args:
        network: network of the level, trained.
        data: the training documents, with their beam of the level above.
        validation: the validation documents, likewise.
        keep: beam width, C.
        training: number format, and whether true nodes that a beam missed become parents too.
        directory: where to write.
        key: cache key of the result.
        context: the distributed context.
        report: called at times with a record of progress.
    """
    documents, precision = len(data.tokens), training.precision
    dtypes: dict[str, type] = {NODES: np.int32, SCORES: np.float32}
    if training.include_true_parents:
        dtypes[PARENTS] = np.int32
    # Rank 0 writes all rows, so no worker has a file of its own.
    with write_together(directory, context, MANIFEST, {"format": FORMAT, "fingerprint": key, "workers": 0}) as work:
        arrays = {}
        if context.is_first:
            for name, dtype in dtypes.items():
                arrays[name] = np.lib.format.open_memmap(work / name, "w+", dtype, (documents, keep))
                reserve_space(work / name)
        progress = PassProgress(report, network.level.number, "scored_so_far", documents)
        for rows, best in expand_all(network, data.tokens, data.beam, keep, precision=precision, context=context):
            if context.is_first:
                # A beam is narrower than C only where all documents of a batch have fewer candidates.
                width = best.nodes.shape[1]
                nodes = np.pad(best.nodes.numpy(), ((0, 0), (0, keep - width)), constant_values=-1)
                arrays[NODES][rows] = nodes
                arrays[SCORES][rows, :width], arrays[SCORES][rows, width:] = best.scores.numpy(), -np.inf
                if training.include_true_parents:
                    arrays[PARENTS][rows] = choose_parents(nodes, data.positives.take(rows), keep)
            progress.add(len(rows))
        beam = expand_rows(network, validation.tokens, validation.beam, keep, precision=precision, context=context)
        if context.is_first:
            np.save(work / VALID_NODES, beam.nodes.numpy().astype(np.int32))
            np.save(work / VALID_SCORES, beam.scores.numpy())
            for array in arrays.values():
                array.flush()
