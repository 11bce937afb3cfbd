"""A label tree's networks, trained level by level from the top in one group of workers (paper, Algorithm 2).

Each level is trained and saved, and then scores the training and validation documents, which gives the next level its
candidates; the shared (non-attention) parameters initialise the next level. A level that is already saved with the same
cache key is opened instead of trained; an interrupted one resumes from its checkpoint. There is no Ray here: the
workers may be started by Ray Train, a test or a notebook.
"""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from axml_ray.corpus.store import Corpus, Split
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import LevelNetwork
from axml_ray.network.precision import uses_bfloat16
from axml_ray.network.tree_level import Level
from axml_ray.ragged import Ragged
from axml_ray.settings import NetworkSettings, Precision, TrainingSettings, fingerprint
from axml_ray.training.attention_start import initialise_attention, label_name_features
from axml_ray.training.batches import LevelData
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.level import LevelTraining, Validation
from axml_ray.training.level_files import finished, load_level, save_level
from axml_ray.training.scored import Scored, is_scored, score_level
from axml_ray.training.workers import Workers
from axml_ray.tree.label_tree import LabelTree

Report = Callable[[dict[str, Any]], None]


def level_directory(directory: Path, number: int) -> Path:
    """Where a level (from 1) of a tree's networks lies."""
    return directory / f"level-{number}"


def level_key(key: str, number: int) -> str:
    """Cache key of a level (from 1), from that of all the tree's networks."""
    return fingerprint(key, number)


class TreeTraining:
    """The training of all levels of one label tree.

    Args:
        corpus: prepared.
        train: its training documents, or a part of them.
        tree: built over the corpus's trained labels.
        network: settings of every level's network.
        training: settings of every level's training.
        beam: C.
        max_tokens: first words of a text that are read.
        checkpoint_seconds: least time between two checkpoints.
        seed: of first weights, orders and dropout.
        directory: where levels are saved.
        key: cache key of the tree's networks.
        workers: the distributed context.
        report: called on the first worker with records of progress.
    """

    def __init__(
        self,
        corpus: Corpus,
        train: Split,
        tree: LabelTree,
        *,
        network: NetworkSettings,
        training: TrainingSettings,
        beam: int,
        max_tokens: int,
        checkpoint_seconds: float,
        seed: int,
        directory: Path,
        key: str,
        workers: Workers | None = None,
        report: Report = lambda record: None,
    ):
        self.corpus, self.train, self.tree = corpus, train, tree
        self.network, self.training, self.beam, self.max_tokens = network, training, beam, max_tokens
        self.checkpoint_seconds, self.seed, self.directory, self.key = checkpoint_seconds, seed, directory, key
        self.workers, self.report = workers or Workers(), report

    def run(self) -> None:
        """Train, or open, every level from the top."""
        translation = self.corpus.translation
        # Cut after the translation, which may be longer than the text.
        train = self.train.translated(translation).cut(self.max_tokens)
        valid = self.corpus.split("valid").translated(translation).cut(self.max_tokens)
        vectors = torch.from_numpy(self.corpus.word_vectors())
        precision = self.workers.agreed(self.training.precision)
        levels = len(self.tree.level_sizes)
        above: dict[str, Tensor] | None = None
        scored: Scored | None = None
        for number in range(1, levels + 1):
            torch.manual_seed(self.seed * 1_000 + number)  # the same first weights on all workers
            level = Level.from_tree(self.tree, number)
            network = build_network(level, vectors, self.network, self.workers.shard)
            positives = self._nodes(number, train)
            data = LevelData(train.tokens, positives, None if scored is None else scored.parents)
            valid_beam = None if scored is None else scored.valid
            validation = Validation(valid.tokens, self._nodes(number, valid), valid_beam)
            trained = self._train_or_open(network, above, data, validation, precision)
            if number < levels:
                directory = level_directory(self.directory, number).with_suffix(".scored")
                key = fingerprint(level_key(self.key, number), self.beam)
                if trained or not self._first_worker_finds(is_scored(directory, key)):
                    began = time.monotonic()
                    score_level(
                        network, directory, key, train=train.tokens, positives=positives,
                        train_beam=None if scored is None else scored.train, valid=valid.tokens, valid_beam=valid_beam,
                        keep=min(self.beam, level.nodes), true_candidates=self.training.true_candidates,
                        precision=precision, workers=self.workers, report=partial(self._report_scored, number),
                    )  # fmt: skip
                    self._report({"level": number, "scored": len(train), "seconds": time.monotonic() - began})
                scored = Scored(directory)
            above = network.shared_parameters()
            del network  # its table is the largest thing there is
        if self.workers.first:
            drop_scored_documents(self.directory)

    def _nodes(self, number: int, split: Split) -> Ragged:
        return Ragged(*self.tree.node_labels(number, split.labels.values, split.labels.offsets))

    def _report(self, record: dict[str, Any]) -> None:
        if self.workers.first:
            self.report({"levels": len(self.tree.level_sizes), **record})

    def _report_scored(self, level: int, done: int, documents: int, seconds: float) -> None:
        rate = done / max(seconds, 1e-9)
        self._report({"level": level, "scored_so_far": done, "documents": documents, "documents_per_second": rate})

    def _first_worker_finds(self, found: bool) -> bool:
        """The first worker's finding, on all: files may reach the others later, and all must do the same."""
        return bool(self.workers.from_first(torch.tensor([float(found)])).item())

    @staticmethod
    def _positive_rate(level: Level, data: LevelData) -> float:
        """The share of candidates that are true in training."""
        candidates = float(level.nodes)
        if data.parents is not None and level.first_child is not None:
            candidates = data.parents.shape[1] * level.nodes / (len(level.first_child) - 1)
        return len(data.positives.values) / (len(data.positives) * candidates)

    def _train_or_open(
        self,
        network: LevelNetwork,
        above: dict[str, Tensor] | None,
        data: LevelData,
        validation: Validation,
        precision: Precision,
    ) -> bool:
        """Give the network the level's trained weights; returns whether they were trained now."""
        number = network.level.number
        directory, key = level_directory(self.directory, number), level_key(self.key, number)
        checkpoints = Checkpoints(directory.with_suffix(".checkpoint"), key, self.checkpoint_seconds)
        if self._first_worker_finds(finished(directory, key)):
            load_level(network, directory)
            network.to(self.workers.device)
            checkpoints.drop(self.workers)  # of a worker that was killed between saving the level and dropping it
            self._report({"level": number, "opened": str(directory)})
            return False
        self._report({"level": number, "begun": network.level.nodes})
        if self.network.output_bias == "positive_rate":
            network.initialise_output_bias(self._positive_rate(network.level, data))
        if above is not None:
            network.initialise_from_parent_level(above)
        network.to(self.workers.device)
        settings = self.training.model_copy(update={"precision": precision})
        training = LevelTraining(
            network, data, validation, settings, self.seed, self.workers, self._report, checkpoints
        )
        start = self.network.attention_start
        if not checkpoints.resume(training) and start != "random":
            names = start == "names"
            features = label_name_features(self.corpus, data.tokens) if names else self.corpus.label_features()
            initialise_attention(network, self.tree, data.tokens, features, precision, self.workers)
        score = training.run()
        about = {
            "level": number,
            "nodes": network.level.nodes,
            "valid_nDCG@5": score,
            "steps": training.at.step,
            "best_step": training.at.best_step,
            "snapshots": training.average.snapshots,
            "seconds": training.at.seconds,
            "computed_in": "bfloat16" if uses_bfloat16(self.workers.device, precision) else "float32",
        }
        save_level(network, directory, key, about, self.workers)
        checkpoints.drop(self.workers)
        return True


def levels_are_finished(directory: Path, tree: LabelTree, key: str) -> bool:
    """Whether all levels of a tree's networks are saved with this cache key."""
    levels = range(1, len(tree.level_sizes) + 1)
    return all(finished(level_directory(directory, level), level_key(key, level)) for level in levels)


def drop_scored_documents(directory: Path) -> None:
    """Remove the beams of all documents that finished levels left for the next; they are large."""
    for path in directory.glob("level-*.scored"):
        shutil.rmtree(path, ignore_errors=True)
