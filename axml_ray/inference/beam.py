"""A tree's trained levels, and documents sent down them by beam search (paper, prediction of AttentionXML)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from axml_ray.corpus.store import Corpus
from axml_ray.corpus.translation import Translation
from axml_ray.inference.combining import Ballot, Found
from axml_ray.inference.frozen import frozen
from axml_ray.inference.joining import Join
from axml_ray.inference.texts import TextBatch, each_batch, length_batches
from axml_ray.linear import classifiers, name_matches, neighbours
from axml_ray.linear.checked import fingerprint_of
from axml_ray.linear.classifiers import LinearTree, Seen
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.network.precision import autocast
from axml_ray.network.tree_level import Level
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, Precision, SettingsError, fingerprint
from axml_ray.training.level_files import finished, read_level
from axml_ray.training.tree import (
    LINEAR,
    NAME_MATCHES,
    NEIGHBOURS,
    TREE,
    level_directory,
    level_fingerprint,
    linear_fingerprint,
    name_matches_fingerprint,
    neighbours_fingerprint,
    tree_directory,
)
from axml_ray.tree.chain_rule import chain_rule
from axml_ray.tree.label_tree import LabelTree


class TreePredictor:
    """One trained tree.

    Args:
        tree: its shape.
        networks: of its levels, from the top.
        beam: C, nodes of a level whose children are scored.
        precision: of matrix products.
        linear: classifiers of the same labels, and how their scores are joined with the networks'.
        max_tokens: first words of a text that the networks read; all by default.
        translation: in words of which language they read it, where texts are in two.
    """

    def __init__(
        self,
        tree: LabelTree,
        networks: Sequence[LevelNetwork],
        beam: int,
        precision: Precision = "auto",
        linear: tuple[LinearTree, Join] | None = None,
        max_tokens: int | None = None,
        translation: Translation | None = None,
    ):
        self.tree, self.networks, self.beam, self.precision = tree, list(networks), beam, precision
        self.linear, self.max_tokens, self.translation = linear, max_tokens, translation
        self.device = networks[0].attention.weight.device

    @classmethod
    def open(cls, settings: Experiment, corpus: Corpus, number: int) -> "TreePredictor":
        """Tree `number` of a finished run.

        Raises:
            SettingsError: the tree or a level is missing, cut short, or was trained with other settings.
        """
        tree, precision = open_tree(settings, corpus, number), settings.training.precision
        networks = [
            frozen(Level.from_tree(tree, level), state, settings.network, precision)
            for level, state in enumerate(trained_levels(settings, corpus, number, tree), start=1)
        ]
        linear = None
        if settings.linear.weight:
            linear = trained_linear(settings, corpus, number, tree), Join(settings.linear.weight)
        reads = settings.network.max_tokens or settings.corpus.max_tokens, corpus.translation
        return cls(tree, networks, settings.tree.beam, precision, linear, *reads)

    def predict(self, tokens: Ragged, top: int) -> Found:
        """The best labels of each document.

        Args:
            tokens: word ids, at least one a document.
            top: labels wanted.

        Returns:
            Label ids, int32 [documents, top], best first, -1 where the beam held fewer; and their scores
            (`Beam.scores`, not as logarithms), float32 [documents, top]. With linear classifiers, these joined with
            theirs; a label that one of both left out counts 0 for it.
        """
        labels = np.full((len(tokens), top), -1, dtype=np.int32)
        scores = np.zeros((len(tokens), top), dtype=np.float32)

        def work(batch: TextBatch) -> tuple[np.ndarray, Found]:
            return batch.rows, self.predict_batch(batch, top).found

        for rows, found in each_batch(work, length_batches(tokens)):
            labels[rows], scores[rows] = found
        return labels, scores

    @torch.inference_mode()
    def predict_batch(self, batch: TextBatch, top: int, seen: Seen | None = None) -> Ballot:
        """As `predict`, of one batch, of which another tree of the run may have `seen` what classifiers see."""
        found = self._by_networks(batch, top)
        if self.linear is None:
            return Ballot.of_networks(*found)
        linear, join = self.linear
        return join.ranking(found, linear.find(seen or linear.see(batch.ragged()), top), top)

    def see(self, tokens: Ragged) -> Seen | None:
        """What the classifiers see of documents (word ids); None without classifiers."""
        return None if self.linear is None else self.linear[0].see(tokens)

    def by_members(self, tokens: Ragged, top: int) -> tuple[Found, Found]:
        """What `predict` joins: the best labels of each document by the networks, and by the classifiers it must have.

        Args:
            tokens: word ids, at least one a document.
            top: labels wanted of each.
        """
        assert self.linear is not None
        reads = self.max_tokens, self.translation
        networks = TreePredictor(self.tree, self.networks, self.beam, self.precision, None, *reads)
        linear, _ = self.linear
        return networks.predict(tokens, top), linear.find(linear.see(tokens), top)

    def _by_networks(self, batch: TextBatch, top: int) -> Found:
        texts, beam = self._read(batch), None
        for network in self.networks:
            keep = top if network is self.networks[-1] else self.beam
            candidates = above = None
            if beam is not None:
                candidates = Candidates.from_parents(beam.nodes.cpu().numpy(), network.level).to(self.device)
                above = beam.scores
            with autocast(self.device, self.precision):
                encodings = network.encode(texts.tokens, texts.lengths)
                beam = network.expand(encodings, texts.lengths, candidates, above, keep)
        assert isinstance(beam, Beam)
        nodes, logs = beam.nodes.cpu().numpy(), beam.scores.float().cpu().numpy()
        labels = np.where(np.isfinite(logs), self.tree.label_order[nodes], -1).astype(np.int32)
        missing = ((0, 0), (0, max(0, top - labels.shape[1])))
        return np.pad(labels, missing, constant_values=-1), np.pad(np.exp(logs), missing)

    def _read(self, batch: TextBatch) -> TextBatch:
        """What the networks read of texts."""
        if self.translation is not None:
            batch = batch.with_words(self.translation.translated(batch.ragged()))
        return batch.cut(self.max_tokens).to(self.device)

    def score(self, tokens: Ragged, labels: np.ndarray) -> np.ndarray:
        """Scores of given labels, float32 [documents, n]: see `said_of`."""
        scores: np.ndarray = self.said_of(tokens, labels)[..., 0]
        return scores

    @torch.inference_mode()
    def said_of(self, tokens: Ragged, labels: np.ndarray, seen: Seen | None = None) -> np.ndarray:
        """What it says of given labels (`Beam.scores`, not as logarithms), whether or not a beam would reach them.

        Args:
            tokens: word ids, at least one a document.
            labels: integer [n], trained labels, in any order.
            seen: what classifiers see of the documents, where another tree of the run has it already.

        Returns:
            float32 [documents, n, 3], as in a `Ballot`: scores, the networks' and the classifiers'.
        """
        path = self.tree.paths(labels)
        scores = np.empty((len(tokens), len(labels)), dtype=np.float32)
        for batch in length_batches(tokens):
            texts = self._read(batch)
            logs: Tensor | float = 0.0
            for number, network in enumerate(self.networks):
                above = path[number - 1] if number else None
                with autocast(self.device, self.precision):
                    encodings = network.encode(texts.tokens, texts.lengths)
                    own = self.log_probabilities(network, encodings, texts, path[number], above)
                    logs = chain_rule(own, logs, network.path_weight)
            assert isinstance(logs, Tensor)
            scores[batch.rows] = logs.exp().cpu().numpy()
        if self.linear is None:
            return np.stack([scores, scores, np.zeros_like(scores)], axis=2)
        linear, join = self.linear
        by_linear = linear.score(seen or linear.see(tokens), labels)
        return np.stack([join.scores(scores, by_linear).astype(np.float32), scores, by_linear], axis=2)

    def log_probabilities(
        self,
        network: LevelNetwork,
        encodings: Tensor,
        texts: TextBatch,
        nodes: np.ndarray,
        parents: np.ndarray | None,
    ) -> Tensor:
        """Log of the probabilities that the network gives some nodes, float32 [B, n].

        Args:
            network: of the level.
            encodings: what it made of the texts.
            texts: on the tree's device.
            nodes: int64 [n], of the level.
            parents: int64 [n], theirs; None at a level all of whose nodes are scored.
        """
        places, candidates = nodes, None
        if parents is not None:
            assert network.level.first_child is not None
            distinct, which = np.unique(parents, return_inverse=True)
            candidates = Candidates.from_parents(np.tile(distinct, (len(texts.rows), 1)), network.level).to(self.device)
            places = which * network.level.block_size + nodes - network.level.first_child[parents]
        logits = network.logits(encodings, texts.lengths, candidates)
        return torch.nn.functional.logsigmoid(logits[:, torch.from_numpy(places).to(self.device)])


def open_tree(settings: Experiment, corpus: Corpus, number: int) -> LabelTree:
    """The label tree of a run.

    Raises:
        SettingsError: it is missing, cut short, or not of this corpus.
    """
    path = tree_directory(settings.run_directory, number) / TREE
    try:
        tree = LabelTree.load(path)
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(f"{path}: no label tree ({error}); run jobs/train_ensemble.py") from None
    if len(tree.label_order) != corpus.trained:
        raise SettingsError(f"{path}: a tree of another corpus; run jobs/train_ensemble.py under another --name")
    return tree


def trained_linear(settings: Experiment, corpus: Corpus, number: int, tree: LabelTree) -> LinearTree:
    """The linear classifiers of a run's tree, and the texts and names that vote beside them, mapped from their files.

    Raises:
        SettingsError: they are missing, cut short, or were fitted with other settings.
    """
    path = tree_directory(settings.run_directory, number) / LINEAR
    if fingerprint_of(path, classifiers.ABOUT) != linear_fingerprint(settings, corpus, number):
        raise SettingsError(f"{path}: no linear classifiers of these settings; run jobs/train_ensemble.py")
    beside, mark = settings.run_directory / NEIGHBOURS, neighbours_fingerprint(settings, corpus)
    if settings.linear.neighbours and fingerprint_of(beside, neighbours.ABOUT) != mark:
        raise SettingsError(f"{beside}: no training texts of these settings; run jobs/train_ensemble.py")
    names, mark = settings.run_directory / NAME_MATCHES, name_matches_fingerprint(settings, corpus)
    if settings.linear.name_matches_weight and fingerprint_of(names, name_matches.ABOUT) != mark:
        raise SettingsError(f"{names}: no labels' names of these settings; run jobs/train_ensemble.py")
    try:
        linear = LinearTree.load(path, len(tree.label_order), corpus.translation)
        if settings.linear.neighbours:
            linear = linear.beside(beside, settings.linear.neighbours, settings.linear.neighbours_weight)
        if share := settings.linear.name_matches_weight:
            linear = linear.beside_names(names, share)
        return linear
    except (OSError, ValueError) as error:
        raise SettingsError(f"{error}; remove the file and train again") from None


def join_fingerprint(settings: Experiment, corpus: Corpus) -> str:
    """Changes with all that a run's members find for documents, and with what their mean is."""
    numbers = range(settings.ensemble.trees)
    networks = [level_fingerprint(settings, corpus, number, 1) for number in numbers]
    linear = [linear_fingerprint(settings, corpus, number) for number in numbers] if settings.linear.weight else []
    how = settings.linear
    votes: list[Any] = []
    if how.weight and how.neighbours:
        votes += [how.neighbours, how.neighbours_weight, neighbours_fingerprint(settings, corpus)]
    if how.weight and how.name_matches_weight:
        votes += [how.name_matches_weight, name_matches_fingerprint(settings, corpus)]
    return fingerprint(networks, linear, how.weight, settings.ensemble.top_labels, *votes)


def trained_levels(settings: Experiment, corpus: Corpus, number: int, tree: LabelTree) -> list[dict[str, Tensor]]:
    """The weights of a run's tree, level by level from the top, mapped from their files.

    Raises:
        SettingsError: a level is missing, cut short, or was trained with other settings.
    """
    found = []
    for level in range(1, len(tree.level_sizes) + 1):
        saved = level_directory(tree_directory(settings.run_directory, number), level)
        if not finished(saved, level_fingerprint(settings, corpus, number, level)):
            raise SettingsError(f"{saved}: no finished level of these settings; run jobs/train_ensemble.py")
        try:
            found.append(read_level(saved))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise SettingsError(f"{saved}: cannot be read ({error}); remove it and train again") from None
    return found
