"""A label tree's networks, trained level by level from the top in one group of workers (paper, Algorithm 3).

There is no Ray here: the workers may be started by Ray Train, a test or a notebook.
"""

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from axml_ray.core import storage
from axml_ray.core.files import check_fences
from axml_ray.core.memory import release_freed_memory
from axml_ray.core.seeds import derived_seed
from axml_ray.corpus.store import Corpus, Split
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.precision import format_name, product_format
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import TABLE, LevelNetwork
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings, Precision, Settings, TrainingSettings, fingerprint
from axml_ray.training.batches import LevelData, TrueNodes
from axml_ray.training.checkpoints import Checkpoints, WorkerGroup
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.document_beams import DocumentBeams, has_document_beams, save_document_beams
from axml_ray.training.label_vector_init import initialise_attention, label_name_features
from axml_ray.training.level import EVALUATED, LevelTraining
from axml_ray.training.level_files import is_saved, load_level, save_level
from axml_ray.training.previous_networks import PreviousNetworks, copy_label_vectors, copy_shared_parameters
from axml_ray.training.progress import Report
from axml_ray.tree.label_tree import LabelTree


class NetworkTreeConfig(Settings):
    """The settings that trained networks depend on, and the interval of checkpoints, which is in no cache key."""

    network: NetworkSettings
    training: TrainingSettings
    beam: int
    """C, the number of nodes of a level whose children are scored."""
    max_tokens: int
    """Number of first words of a text that the networks read."""
    checkpoint_minutes: float = Field(default=5.0, exclude=True)  # neither weights nor scores depend on it


@dataclass(frozen=True)
class TrainingInputs:
    """The inputs of a training besides its settings.

    Attributes:
        corpus: a prepared corpus.
        documents: number of training documents to read; None for all.
        max_tokens: largest number of words of a text that are read.
        seed: seed of first weights, document orders and dropout.
        tree: the label tree of the corpus's trained labels, if there is one.
        context: the distributed context.
        report: called on the first worker with records of progress.
        previous: trained networks of a tree that grew to this one, from which levels continue; by default each level
            starts anew. The cache key must depend on them.
        precision: number format of the networks.
        group: the group of Ray Train that runs the workers, if one does.
    """

    corpus: Corpus
    documents: int | None
    max_tokens: int
    seed: int
    tree: LabelTree | None = None
    context: DistributedContext = field(default_factory=DistributedContext)
    report: Report = lambda record: None
    previous: PreviousNetworks | None = None
    precision: Precision = "auto"
    group: WorkerGroup | None = None

    @cached_property
    def train(self) -> Split:
        """Return the training documents to read."""
        return self.corpus.split("train").part(self.documents)

    @property
    def label_tree(self) -> LabelTree:
        """Return the label tree, of an input that has one."""
        assert self.tree is not None, "only members of scope tree have one"
        return self.tree


def level_directory(directory: Path, number: int) -> Path:
    """Return the directory of a level (numbered from 1) below that of a tree's networks."""
    return directory / f"level-{number}"


def level_key(key: str, number: int) -> str:
    """Return the cache key of a level (numbered from 1), given that of all the tree's networks."""
    return fingerprint(key, number)


def train_tree(config: NetworkTreeConfig, inputs: TrainingInputs, directory: Path, key: str) -> None:
    """Train the networks of all levels from the top (paper, Algorithm 3); all workers call this together.

    A level that is saved with the same cache key is loaded instead; an interrupted one resumes from its checkpoint.

    Args:
        config: settings of the networks and of their training.
        inputs: corpus, label tree and worker.
        directory: where the levels are saved.
        key: cache key of the tree's networks.
    """
    tree, context = inputs.label_tree, inputs.context
    levels = range(1, len(tree.level_sizes) + 1)

    def report(record: dict[str, Any]) -> None:
        if context.is_first:
            inputs.report({"levels": len(levels), **record})

    if context.agree(levels_are_finished(directory, tree, key)):
        # An earlier start saved all levels and was killed before the member was marked as fitted. It may have removed
        # the beams already, and without this they would be computed again.
        for number in levels:
            report({"level": number, "opened": str(level_directory(directory, number))})
        _drop_intermediate_files(directory, context)
        return

    valid = inputs.corpus.split("valid").part(EVALUATED)
    train, valid = (split.cut(config.max_tokens) for split in (inputs.train, valid))
    word_vectors = torch.from_numpy(inputs.corpus.word_vectors())
    precision = context.agree_on_precision(inputs.precision)
    config = config.model_copy(update={"training": config.training.model_copy(update={"precision": precision})})
    parent_level: dict[str, Tensor] | None = None  # its shared parameters
    beams: DocumentBeams | None = None  # of the parent level

    for number in levels:
        place, this_key = level_directory(directory, number), level_key(key, number)
        seconds = 60 * config.checkpoint_minutes
        checkpoints = Checkpoints(place.with_suffix(".checkpoint"), this_key, seconds, inputs.group)
        torch.manual_seed(derived_seed(inputs.seed, number))  # all workers start from the same weights
        network = build_network(Level.from_tree(tree, number), word_vectors, config.network, context.shard)

        # The documents' true nodes are those above their labels. Below the first level, candidates are the children
        # of the nodes that the parent level chose (`parents`, which may include true nodes); its beam, the nodes with
        # their scores, is what the chain rule continues in validation and in the next level's candidates.
        parents, beam, valid_beam = (beams.parents, beams.train, beams.valid) if beams else (None, None, None)
        data = LevelData(train.tokens, TrueNodes(tree, number, train.labels), parents, beam)
        validation = LevelData(valid.tokens, TrueNodes(tree, number, valid.labels), beam=valid_beam)

        is_trained = context.agree(is_saved(place, this_key))
        if is_trained:
            load_level(network, place)
            network.to(context.device)
            report({"level": number, "opened": str(place)})
        else:
            report({"level": number, "begun": network.level.nodes})
            previous = None if inputs.previous is None else inputs.previous.read(number)
            # Parameters start from the trained level that is continued, else from the parent level's, else at random.
            if config.network.output_bias == "positive_rate":  # which remains that of new labels
                network.initialise_output_bias(data.positive_rate(network.level))
            if inputs.previous is not None and previous is not None:
                copy_shared_parameters(network, previous, inputs.previous.previous_ids)
            elif parent_level is not None:
                network.initialise_from_parent_level(parent_level)
            parent_level = None  # a word table that the training must not hold as well
            network.to(context.device)
            training = LevelTraining(
                network, data, validation, config.training, inputs.seed, context, report, checkpoints,
                evaluate_start=previous is not None,
            )  # fmt: skip
            # Label vectors come after `resume`: computing them takes a pass over the texts, which a checkpoint spares.
            if not checkpoints.resume(training):
                _start_label_vectors(network, config, inputs, data, previous, report)
            # Scoring and first label vectors leave small free blocks, which moments and averages do not fit into.
            release_freed_memory()
            score = training.run()
            about = {
                "level": number,
                "nodes": network.level.nodes,
                "valid_nDCG@5": score,
                "steps": training.state.step,
                "best_step": training.state.best_step,
                "snapshots": training.average.snapshots,
                "seconds": training.state.seconds,
                "computed_in": format_name(product_format(context.device, precision)),
                "device": backend_for(context.device).device_type,
            }
            del training  # its moments and averages, more than the weights, which the files now take as well
            release_freed_memory()
            save_level(network, place, this_key, about, context)
        checkpoints.drop(context)  # a kill between saving a level and dropping its checkpoint leaves one

        # Score all documents for the candidates of the next level, unless a start before this one has done it. A level
        # that was trained just now may have other weights than one of the same key, whose beams a kill left.
        if number < levels[-1]:
            scored, scored_key = place.with_suffix(".scored"), fingerprint(this_key, config.beam, len(valid))
            if not is_trained or not context.agree(has_document_beams(scored, scored_key)):
                began = time.monotonic()
                keep = min(config.beam, network.level.nodes)
                save_document_beams(
                    network, data, validation, keep, config.training, scored, scored_key, context, report
                )
                report({"level": number, "scored": len(data.tokens), "seconds": time.monotonic() - began})
            beams = DocumentBeams(scored)
        parent_level = network.shared_parameters()
        del network  # the label table must not stay in memory while the next level's is built
    _drop_intermediate_files(directory, context)


def _start_label_vectors(
    network: LevelNetwork,
    config: NetworkTreeConfig,
    inputs: TrainingInputs,
    data: LevelData,
    previous: dict[str, Tensor] | None,
    report: Report,
) -> None:
    """Initialise the level's label vectors as `network.label_vector_init` chooses, or from those that are continued.

    New labels among trained ones start at their features instead of at random, and a level without new labels, whose
    vectors will all be copied, is left as it is.
    """
    tree, start, corpus = inputs.label_tree, config.network.label_vector_init, inputs.corpus
    if inputs.previous is not None:
        is_leaf_level = network.level.number > tree.height
        if not is_leaf_level or len(tree.label_order) == len(inputs.previous.tree.label_order):
            start = "random"  # there are no new vectors
        elif start == "random" and config.network.kind == "attention":
            start = "features"
    if start != "random":
        features = label_name_features(corpus, data.tokens) if start == "names" else corpus.label_features()
        initialise_attention(network, tree, data.tokens, features, config.training.precision, inputs.context, report)
    if inputs.previous is not None and previous is not None:
        copy_label_vectors(network, previous[TABLE], inputs.previous.tree, tree)


def levels_are_finished(directory: Path, tree: LabelTree, key: str) -> bool:
    """Return whether all levels of a tree's networks are saved with this cache key."""
    levels = range(1, len(tree.level_sizes) + 1)
    return all(is_saved(level_directory(directory, level), level_key(key, level)) for level in levels)


def _drop_intermediate_files(directory: Path, context: DistributedContext) -> None:
    """Remove beams of all documents, checkpoints and what kills left: they are large, and all levels are saved."""
    if context.is_first:
        check_fences(directory)
        for path in storage.children(directory):
            if path.name.startswith(".level-") or (path.name.startswith("level-") and path.suffix):
                storage.remove(path)
