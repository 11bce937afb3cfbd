"""A tree, level by level from the top, in one group of workers (paper, Algorithm 3).

Each level is trained, saved, and then scores the training and validation documents, which gives the next level its
candidates; encoder and head are handed down. A level that is already saved with the same fingerprint is opened
instead of trained, one that was interrupted goes on from its checkpoint. No Ray in here: whoever starts the workers
may be Ray Train, a test or a notebook.
"""

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from axml_ray.corpus.store import Corpus, Split
from axml_ray.linear.label_names import name_texts
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import LevelNetwork
from axml_ray.network.precision import uses_bfloat16
from axml_ray.network.tree_level import Level
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, Precision, fingerprint
from axml_ray.training.attention_start import initialise_attention, label_name_features
from axml_ray.training.batches import LevelData
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.level import LevelTraining, Report, Validation
from axml_ray.training.level_files import finished, load_level, save_level
from axml_ray.training.scored import Scored, is_scored, score_level
from axml_ray.training.workers import Workers
from axml_ray.tree.label_tree import LabelTree

TREE, LINEAR = "tree.safetensors", "linear.safetensors"
NEIGHBOURS = "neighbours.safetensors"
NAME_MATCHES = "name_matches.safetensors"
"""In a run's directory, training texts by their features, for all of its trees."""
PART_SEED = 0  # not the experiment's: trees of other seeds train on the same part


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


def linear_fingerprint(settings: Experiment, corpus: Corpus, tree: int) -> str:
    """Changes with all that a tree's linear classifiers depend on."""
    beside = {"neighbours", "neighbours_weight", "name_matches_weight", "name_stemmer"}
    how = settings.linear.model_dump(exclude={"weight", "learned_join", *beside})
    return fingerprint(tree_fingerprint(settings, corpus, tree), how, settings.training.documents)


def neighbours_fingerprint(settings: Experiment, corpus: Corpus) -> str:
    """Changes with all that the file of a run's neighbours depends on: the texts and their features."""
    of_features = {"lead_words", "lead_weight", "prefix_letters", "lead_letters", "label_names"}
    return fingerprint(corpus.fingerprint, settings.linear.model_dump(include=of_features), settings.training.documents)


def name_matches_fingerprint(settings: Experiment, corpus: Corpus) -> str:
    """Changes with all that the file of a run's names depends on."""
    return fingerprint(corpus.fingerprint, settings.linear.name_stemmer, settings.training.documents)


def linear_texts(settings: Experiment, corpus: Corpus) -> Split:
    """What classifiers are learned from, and what neighbours are: training documents, and labels' names where asked."""
    train = part_of(corpus.split("train"), settings.training.documents)
    if not settings.linear.label_names:
        return train
    return train.and_also(name_texts(corpus.labels, corpus.tokenizer, settings.corpus.max_tokens))


def drop_scored(tree_directory: Path) -> None:
    """Remove what the levels of a finished tree found for all documents; it is large."""
    for path in tree_directory.glob("level-*.scored"):
        shutil.rmtree(path, ignore_errors=True)


def part_of(split: Split, documents: int | None) -> Split:
    """So many documents of a split, in its order: the same ones every time, and all of a smaller part in a larger."""
    if documents is None or documents >= len(split):
        return split
    return split.take(np.sort(np.random.default_rng(PART_SEED).permutation(len(split))[:documents]))


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
        read = self.settings.network.max_tokens or self.settings.corpus.max_tokens  # translations may be longer
        translation = self.corpus.translation
        train = part_of(self.corpus.split("train"), self.settings.training.documents).translated(translation).cut(read)
        valid = self.corpus.split("valid").translated(translation).cut(read)
        vectors = torch.from_numpy(self.corpus.word_vectors())
        precision = self.workers.agreed(self.settings.training.precision)
        levels = len(self.tree.level_sizes)
        above: dict[str, Tensor] | None = None
        scored: Scored | None = None
        for number in range(1, levels + 1):
            torch.manual_seed(self.seed * 1_000 + number)  # the same first weights on all workers
            level = Level.from_tree(self.tree, number)
            network = build_network(level, vectors, self.settings.network, self.workers.shard)
            positives = self._nodes(number, train)
            data = LevelData(train.tokens, positives, None if scored is None else scored.parents)
            valid_beam = None if scored is None else scored.valid
            validation = Validation(valid.tokens, self._nodes(number, valid), valid_beam)
            trained = self._train_or_open(network, above, data, validation, precision)
            if number < levels:
                directory = self._scored_directory(number)
                mark = fingerprint(level_fingerprint(self.settings, self.corpus, self.number, number), self.beam)
                if trained or not self._all_see(is_scored(directory, mark)):
                    began = time.monotonic()
                    score_level(
                        network, directory, mark, train=train.tokens, positives=positives,
                        train_beam=None if scored is None else scored.train, valid=valid.tokens, valid_beam=valid_beam,
                        keep=min(self.beam, level.nodes), true_candidates=self.settings.training.true_candidates,
                        precision=precision, workers=self.workers,
                    )  # fmt: skip
                    self._say({"level": number, "scored": len(train), "seconds": time.monotonic() - began})
                scored = Scored(directory)
            above = network.shared_parameters()
            del network  # its table is the largest thing there is
        if self.workers.first:
            drop_scored(self.directory)

    def _scored_directory(self, number: int) -> Path:
        return level_directory(self.directory, number).with_suffix(".scored")

    @property
    def beam(self) -> int:
        """C."""
        return self.settings.tree.beam

    def _nodes(self, number: int, split: Split) -> Ragged:
        return Ragged(*self.tree.node_labels(number, split.labels.values, split.labels.offsets))

    def _say(self, record: dict[str, Any]) -> None:
        if self.workers.first:
            self.report({"levels": len(self.tree.level_sizes), **record})

    def _all_see(self, found: bool) -> bool:
        """What the first worker found: files may reach the others later, and all must do the same."""
        return bool(self.workers.from_first(torch.tensor([float(found)])).item())

    def _train_or_open(
        self,
        network: LevelNetwork,
        above: dict[str, Tensor] | None,
        data: LevelData,
        validation: Validation,
        precision: Precision,
    ) -> bool:
        """Leaves the network with the level's weights; says whether they were trained now."""
        number = network.level.number
        directory = level_directory(self.directory, number)
        mark = level_fingerprint(self.settings, self.corpus, self.number, number)
        checkpoints = Checkpoints(
            directory.with_suffix(".checkpoint"), mark, self.settings.resources.checkpoint_minutes * 60
        )
        if self._all_see(finished(directory, mark)):
            load_level(network, directory)
            network.to(self.workers.device)
            checkpoints.drop(self.workers)  # of a worker that was killed between saving and this
            self._say({"level": number, "opened": str(directory)})
            return False
        # Not in the paper: at its start, from logits of zero, epochs go by in learning how rare labels are.
        scored = network.level.nodes
        if data.parents is not None and network.level.first_child is not None:
            scored = data.parents.shape[1] * network.level.nodes / (len(network.level.first_child) - 1)
        network.initialise_output_bias(len(data.positives.values) / (len(data.positives) * scored))
        if above is not None:
            network.initialise_from_parent_level(above)
        network.to(self.workers.device)
        settings = self.settings.training.model_copy(update={"precision": precision})
        training = LevelTraining(network, data, validation, settings, self.seed, self.workers, self._say, checkpoints)
        start = self.settings.network.attention_start
        if not checkpoints.resume(training) and start != "random":
            named = start == "names"
            features = label_name_features(self.corpus, data.tokens) if named else self.corpus.label_features()
            initialise_attention(network, self.tree, data.tokens, features, precision, self.workers)
        score = training.run()
        about = {
            "tree": self.number,
            "level": number,
            "nodes": network.level.nodes,
            "valid_nDCG@5": score,
            "steps": training.at.step,
            "best_step": training.at.best_step,
            "snapshots": training.average.snapshots,
            "seconds": training.at.seconds,
            "computed_in": "bfloat16" if uses_bfloat16(self.workers.device, precision) else "float32",
        }
        save_level(network, directory, mark, about, self.workers)
        checkpoints.drop(self.workers)
        return True
