"""A tree, level by level from the top, in one group of workers (paper, Algorithm 3).

Each level is trained, saved, and then scores the training and validation documents, which gives the next level its
candidates; encoder and head are handed down. A level that is already saved with the same fingerprint is opened
instead of trained. No Ray in here: whoever starts the workers may be Ray Train, a test or a notebook.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from axml_ray.corpus.store import Corpus, Split
from axml_ray.files import read_json, whole_directory, write_json
from axml_ray.network.attention_xml import AttentionXML, Beam, Level
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, fingerprint
from axml_ray.training.attention_start import start_attention
from axml_ray.training.batches import LevelData, choose_parents
from axml_ray.training.level import LevelTraining, Report, Validation
from axml_ray.training.scoring import expand_all, expand_rows
from axml_ray.training.workers import Workers
from axml_ray.tree.label_tree import LabelTree

TREE = "tree.safetensors"
MANIFEST, MODEL = "level.json", "model.safetensors"
FORMAT, VERSION = "axml-ray level", 1


def tree_directory(run: Path, number: int) -> Path:
    """Where tree `number` (from 0) of a run lies."""
    return run / f"tree-{number}"


def level_directory(tree_directory: Path, number: int) -> Path:
    """Where a level of a tree lies."""
    return tree_directory / f"level-{number}"


def tree_fingerprint(settings: Experiment, corpus: Corpus, number: int) -> str:
    """Changes with all that the shape of tree `number` depends on."""
    return fingerprint(corpus.fingerprint, settings.tree.identity, settings.seed + number)


def level_fingerprint(settings: Experiment, corpus: Corpus, tree: int, level: int) -> str:
    """Changes with all that the weights of a level depend on."""
    return fingerprint(tree_fingerprint(settings, corpus, tree), settings.network, settings.training, level)


def finished(directory: Path, mark: str) -> bool:
    """Whether a level is saved whole, with this fingerprint."""
    try:
        manifest = read_json(directory / MANIFEST)
        size = (directory / MODEL).stat().st_size
    except (OSError, ValueError):
        return False
    return bool(
        isinstance(manifest, dict)
        and manifest.get("format") == FORMAT
        and manifest.get("version") == VERSION
        and manifest.get("fingerprint") == mark
        and manifest.get("model_bytes") == size
    )


def save_level(network: AttentionXML, directory: Path, mark: str, about: dict[str, Any]) -> None:
    """Write a level's weights and, last, its manifest, to appear under `directory` whole or not at all."""
    with whole_directory(directory) as work:
        save_file({name: value.contiguous() for name, value in network.state_dict().items()}, work / MODEL)
        size = (work / MODEL).stat().st_size
        manifest = {"format": FORMAT, "version": VERSION, "fingerprint": mark, "model_bytes": size, **about}
        write_json(work / MANIFEST, manifest)


def load_weights(network: AttentionXML, directory: Path) -> None:
    """Fill the network with a saved level's weights."""
    network.load_state_dict(load_file(directory / MODEL))


class TreeTraining:
    """The walk down one tree.

    Args:
        settings: the experiment.
        corpus: prepared.
        tree: built over the corpus's trained labels.
        number: which tree of the ensemble, from 0.
        directory: of the tree in the run.
        workers: this worker and its like.
        report: called on the first worker with what a person follows.
    """

    def __init__(
        self,
        settings: Experiment,
        corpus: Corpus,
        tree: LabelTree,
        number: int,
        directory: Path,
        workers: Workers,
        report: Report = lambda record: None,
    ):
        self.settings, self.corpus, self.tree, self.number = settings, corpus, tree, number
        self.directory, self.workers, self.report = directory, workers, report
        self.seed = settings.seed + number

    def run(self) -> None:
        """Train, or open, every level from the top."""
        train, valid = self.corpus.split("train"), self.corpus.split("valid")
        vectors = torch.from_numpy(self.corpus.word_vectors())
        levels = len(self.tree.level_sizes)
        above: AttentionXML | None = None
        parents: np.ndarray | None = None
        train_beam: Beam | None = None
        valid_beam: Beam | None = None
        for number in range(1, levels + 1):
            torch.manual_seed(self.seed * 1_000 + number)  # the same first weights on all workers
            network = AttentionXML(Level.of(self.tree, number), vectors, self.settings.network)
            data = LevelData(train.tokens, self._nodes(number, train), parents)
            validation = Validation(valid.tokens, self._nodes(number, valid), valid_beam)
            self._train_or_open(network, above, data, validation)
            if number < levels:
                keep = min(self.settings.tree.beam, network.level.nodes)
                began = time.monotonic()
                valid_beam = expand_rows(network, valid.tokens, valid_beam, keep, **self._how())
                train_beam, parents = self._candidates(network, data, train_beam, keep)
                self._say({"level": number, "scored": len(train), "seconds": time.monotonic() - began})
            above = network

    def _nodes(self, number: int, split: Split) -> Ragged:
        return Ragged(*self.tree.node_labels(number, split.labels.values, split.labels.offsets))

    def _how(self) -> dict[str, Any]:
        return {"precision": self.settings.training.precision, "device": self.workers.device}

    def _say(self, record: dict[str, Any]) -> None:
        if self.workers.first:
            self.report({"levels": len(self.tree.level_sizes), **record})

    def _train_or_open(
        self, network: AttentionXML, above: AttentionXML | None, data: LevelData, validation: Validation
    ) -> None:
        number = network.level.number
        directory = level_directory(self.directory, number)
        mark = level_fingerprint(self.settings, self.corpus, self.number, number)
        is_finished = finished(directory, mark)
        self.workers.barrier()  # nobody looks after the first worker has begun to write
        if is_finished:
            load_weights(network, directory)
            network.to(self.workers.device)
            self._say({"level": number, "opened": str(directory)})
            return
        if above is not None:
            network.inherit(above)
        else:
            # Not in the paper: at its start, from logits of zero, epochs go by in learning how rare labels are.
            network.head.expect(len(data.positives.values) / (len(data.positives) * network.level.nodes))
        network.to(self.workers.device)
        if self.settings.network.attention_start == "features":
            features = self.corpus.label_features()
            start_attention(network, self.tree, data.tokens, features, self.settings.training.precision, self.workers)
        training = LevelTraining(network, data, validation, self.settings.training, self.seed, self.workers, self._say)
        began = time.monotonic()
        score = training.run()
        if self.workers.first:
            about = {
                "tree": self.number,
                "level": number,
                "nodes": network.level.nodes,
                "valid_nDCG@5": score,
                "steps": len(training.losses),
                "snapshots": training.average.snapshots,
                "seconds": time.monotonic() - began,
            }
            save_level(network, directory, mark, about)
        self.workers.barrier()

    def _candidates(
        self, network: AttentionXML, data: LevelData, beam: Beam | None, keep: int
    ) -> tuple[Beam, np.ndarray]:
        """The pure beam of the training documents, and the parents whose children train the next level."""
        found: list[tuple[np.ndarray, Beam, np.ndarray]] = []
        share = {"rank": self.workers.rank, "workers": self.workers.count}
        for rows, best in expand_all(network, data.tokens, beam, keep, **self._how(), **share):  # type: ignore[arg-type]
            chosen = choose_parents(best.nodes.numpy(), data.positives.take(rows), keep)
            found.append((rows, best, chosen))
        gather = self.workers.gather
        order = gather(torch.from_numpy(np.concatenate([rows for rows, _, _ in found]))).cpu().argsort()
        nodes = gather(torch.cat([best.nodes for _, best, _ in found])).cpu()
        scores = gather(torch.cat([best.scores for _, best, _ in found])).cpu()
        parents = gather(torch.from_numpy(np.concatenate([chosen for _, _, chosen in found]))).cpu()
        return Beam(nodes[order], scores[order]), parents[order].numpy()
