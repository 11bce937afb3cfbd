"""A label tree's networks, trained level by level from the top in one group of workers (paper, Algorithm 3).

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

from axml_ray.core.ragged import Ragged
from axml_ray.core.seeds import derived_seed
from axml_ray.corpus.store import Corpus, Split
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.precision import format_name, product_format
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import TABLE, LevelNetwork
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings, Precision, TrainingSettings, fingerprint
from axml_ray.training.batches import LevelData
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.continuation import PreviousNetworks, copy_label_vectors, copy_shared_parameters
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.document_beams import DocumentBeams, has_document_beams, save_document_beams
from axml_ray.training.label_vector_init import initialise_attention, label_name_features
from axml_ray.training.level import LevelTraining, Validation
from axml_ray.training.level_files import is_saved, load_level, save_level
from axml_ray.tree.label_tree import LabelTree

Report = Callable[[dict[str, Any]], None]


def level_directory(directory: Path, number: int) -> Path:
    """Return the directory of a level (numbered from 1) below that of a tree's networks."""
    return directory / f"level-{number}"


def level_key(key: str, number: int) -> str:
    """Return the cache key of a level (numbered from 1), given that of all the tree's networks."""
    return fingerprint(key, number)


class TreeTraining:
    """The training of all levels of one label tree.

    Args:
        corpus: the prepared corpus.
        train: its training documents, or a part of them.
        tree: the label tree of the corpus's trained labels.
        network: settings of every level's network.
        training: settings of every level's training.
        beam: beam width, C.
        max_tokens: number of words of a text that are read; the rest is cut.
        checkpoint_seconds: least time between two checkpoints, in seconds.
        seed: seed of first weights, document orders and dropout.
        directory: where levels are saved.
        key: cache key of the tree's networks.
        context: the distributed context.
        report: rank-0 progress callback.
        previous: trained networks of a tree that grew to this one, from which levels continue; by default each level
            starts anew. The caller's `key` must depend on them.
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
        context: DistributedContext | None = None,
        report: Report = lambda record: None,
        previous: PreviousNetworks | None = None,
    ):
        self.corpus, self.train, self.tree, self.previous = corpus, train, tree, previous
        self.network, self.training, self.beam, self.max_tokens = network, training, beam, max_tokens
        self.checkpoint_seconds, self.seed, self.directory, self.key = checkpoint_seconds, seed, directory, key
        self.context, self.report = context or DistributedContext(), report

    def run(self) -> None:
        """Train every level from the top, or load it if it is saved (paper, Algorithm 3)."""
        if self._as_first_worker(levels_are_finished(self.directory, self.tree, self.key)):
            # The beams are gone, and must not be computed again, if a kill came before the member was marked as fitted.
            for number in range(1, len(self.tree.level_sizes) + 1):
                self._report({"level": number, "opened": str(level_directory(self.directory, number))})
        else:
            self._train_levels()
        if self.context.is_first:
            drop_intermediate_files(self.directory)

    def _train_levels(self) -> None:
        train = self.train.cut(self.max_tokens)
        valid = self.corpus.split("valid").cut(self.max_tokens)
        vectors = torch.from_numpy(self.corpus.word_vectors())
        precision = self.context.agree_on_precision(self.training.precision)
        levels = len(self.tree.level_sizes)
        shared_parameters: dict[str, Tensor] | None = None
        beams: DocumentBeams | None = None
        for number in range(1, levels + 1):
            torch.manual_seed(derived_seed(self.seed, number))  # all workers start from the same weights
            network = build_network(Level.from_tree(self.tree, number), vectors, self.network, self.context.shard)
            data = LevelData(train.tokens, self._true_nodes(number, train), None if beams is None else beams.parents)
            valid_beam = None if beams is None else beams.valid
            validation = Validation(valid.tokens, self._true_nodes(number, valid), valid_beam)
            is_new = self._train_or_load(network, shared_parameters, data, validation, precision)
            if number < levels:
                beams = self._compute_or_load_beams(network, is_new, data, validation, beams, precision)
            shared_parameters = network.shared_parameters()
            del network  # the label table must not stay in memory while the next level's is built

    def _compute_or_load_beams(
        self,
        network: LevelNetwork,
        is_new: bool,
        data: LevelData,
        validation: Validation,
        beams: DocumentBeams | None,
        precision: Precision,
    ) -> DocumentBeams:
        """Return the beams of all documents at a level, computed now if the level was trained now or none are saved.

        `beams` are those of the level above.
        """
        number = network.level.number
        directory = level_directory(self.directory, number).with_suffix(".scored")
        key = fingerprint(level_key(self.key, number), self.beam)
        if is_new or not self._as_first_worker(has_document_beams(directory, key)):
            began = time.monotonic()
            save_document_beams(
                network, directory, key, train=data.tokens, positives=data.positives,
                train_beam=None if beams is None else beams.train, valid=validation.tokens, valid_beam=validation.beam,
                keep=min(self.beam, network.level.nodes), include_true_parents=self.training.include_true_parents,
                precision=precision, context=self.context, report=partial(self._report_scored, number),
            )  # fmt: skip
            self._report({"level": number, "scored": len(data.tokens), "seconds": time.monotonic() - began})
        return DocumentBeams(directory)

    def _true_nodes(self, number: int, split: Split) -> Ragged:
        """Return the nodes of a level above the true labels of each document of a split."""
        return Ragged(*self.tree.node_labels(number, split.labels.values, split.labels.offsets))

    def _report(self, record: dict[str, Any]) -> None:
        """Report a record of progress from rank 0."""
        if self.context.is_first:
            self.report({"levels": len(self.tree.level_sizes), **record})

    def _report_scored(self, level: int, done: int, documents: int, seconds: float) -> None:
        rate = done / max(seconds, 1e-9)
        self._report({"level": level, "scored_so_far": done, "documents": documents, "documents_per_second": rate})

    def _as_first_worker(self, condition: bool) -> bool:
        """Return rank 0's value of a condition on all workers.

        On a network file system, files may reach other workers later, and all must take the same branch.
        """
        return bool(self.context.from_first(torch.tensor([float(condition)])).item())

    def _train_or_load(
        self,
        network: LevelNetwork,
        shared_parameters: dict[str, Tensor] | None,
        data: LevelData,
        validation: Validation,
        precision: Precision,
    ) -> bool:
        """Give the network the level's trained weights; return whether they were trained now instead of loaded.

        `shared_parameters` are the level above's, from which the level is initialised; None for the first level.
        """
        number = network.level.number
        directory, key = level_directory(self.directory, number), level_key(self.key, number)
        checkpoints = Checkpoints(directory.with_suffix(".checkpoint"), key, self.checkpoint_seconds)
        if self._as_first_worker(is_saved(directory, key)):
            load_level(network, directory)
            network.to(self.context.device)
            checkpoints.drop(self.context)  # a kill between saving a level and dropping its checkpoint leaves one
            self._report({"level": number, "opened": str(directory)})
            return False
        self._report({"level": number, "begun": network.level.nodes})
        trained = None if self.previous is None else self.previous.read(number)
        if trained is None and self.network.output_bias == "positive_rate":
            network.initialise_output_bias(data.positive_rate(network.level))
        if self.previous is not None and trained is not None:
            copy_shared_parameters(network, trained, self.previous.words)
        elif shared_parameters is not None:
            network.initialise_from_parent_level(shared_parameters)
        network.to(self.context.device)
        settings = self.training.model_copy(update={"precision": precision})
        training = LevelTraining(
            network, data, validation, settings, self.seed, self.context, self._report, checkpoints,
            evaluate_start=trained is not None,
        )  # fmt: skip
        if not checkpoints.resume(training):
            self._start_attention(network, data, precision)
            if self.previous is not None and trained is not None:
                copy_label_vectors(network, trained[TABLE], self.previous.tree, self.tree)
        score = training.run()
        about = {
            "level": number,
            "nodes": network.level.nodes,
            "valid_nDCG@5": score,
            "steps": training.state.step,
            "best_step": training.state.best_step,
            "snapshots": training.average.snapshots,
            "seconds": training.state.seconds,
            "computed_in": format_name(product_format(self.context.device, precision)),
            "device": backend_for(self.context.device).device_type,
        }
        save_level(network, directory, key, about, self.context)
        checkpoints.drop(self.context)
        return True

    def _start_attention(self, network: LevelNetwork, data: LevelData, precision: Precision) -> None:
        """Initialise the level's label vectors as `network.label_vector_init` chooses.

        New labels among trained ones start at their features instead of at random, and a level without new labels,
        whose vectors will all be copied, is left as it is.
        """
        start = self.network.label_vector_init
        if self.previous is not None:
            is_leaf_level = network.level.number > self.tree.height
            if not is_leaf_level or len(self.tree.label_order) == len(self.previous.tree.label_order):
                return
            if start == "random" and self.network.kind == "attention":
                start = "features"
        if start != "random":
            use_names = start == "names"
            features = label_name_features(self.corpus, data.tokens) if use_names else self.corpus.label_features()
            initialise_attention(network, self.tree, data.tokens, features, precision, self.context)


def levels_are_finished(directory: Path, tree: LabelTree, key: str) -> bool:
    """Return whether all levels of a tree's networks are saved with this cache key."""
    levels = range(1, len(tree.level_sizes) + 1)
    return all(is_saved(level_directory(directory, level), level_key(key, level)) for level in levels)


def drop_intermediate_files(directory: Path) -> None:
    """Remove beams of all documents, checkpoints and what kills left: they are large, and all levels are saved."""
    for path in (*directory.glob("level-*.*"), *directory.glob(".level-*")):
        shutil.rmtree(path, ignore_errors=True)
