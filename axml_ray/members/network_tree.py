"""AttentionXML itself (kind `network_tree`): one network per level of a label tree, and beam search.

The paper's ensemble is three of these members and their mean. `fit` is `training/tree.py`; `rank` is the paper's
prediction, Algorithm 4.

Legend: N texts, C nodes of a beam, n given labels or nodes, k best labels.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from axml_ray.core.topk import TopK
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.explanation import ExplainedText, Step, TreePath
from axml_ray.members.member import FitInputs, LoadInputs, Member, MemberSpec, Scope
from axml_ray.members.weight_files import Weights, load_weights, save_weights
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.precision import autocast
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.frozen import WORDS, frozen
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.network.paper.attention_xml import AttentionXML
from axml_ray.network.tree_level import Level
from axml_ray.settings import Experiment, Precision, Settings
from axml_ray.settings.members import NetworkTreeSettings
from axml_ray.training.level_files import LEVEL_MANIFEST, MODEL, read_level
from axml_ray.training.tree import NetworkTreeConfig, level_directory, train_tree
from axml_ray.tree.chain_rule import chain_rule
from axml_ray.tree.inspection import label_starts
from axml_ray.tree.label_tree import LabelTree

ACCELERATOR = Lock()
"""Held while a network predicts on an accelerator: batches of several threads would share its time, and add memory."""
NAMED = 3
"""Number of labels, the most frequent ones, that name a cluster in an explanation."""


class NetworkTree(Member):
    """The networks of one label tree, ready to predict.

    Args:
        tree: the label tree.
        networks: networks of the levels, from the top.
        beam: C, the number of nodes of a level whose children are scored.
        max_tokens: number of first words of a text that the networks read; None for all.
        precision: number format of matrix products.
    """

    config_class: ClassVar[type[Settings]] = NetworkTreeConfig
    scope: ClassVar[Scope] = "tree"
    trained_by_workers: ClassVar[bool] = True
    continues: ClassVar[bool] = True

    def __init__(
        self,
        tree: LabelTree,
        networks: Sequence[LevelNetwork],
        beam: int,
        max_tokens: int | None = None,
        precision: Precision = "auto",
    ):
        self.tree, self.networks, self.beam = tree, list(networks), beam
        self.max_tokens, self.precision = max_tokens, precision
        self.device = networks[0].attention.weight.device
        self.on_accelerator = backend_for(self.device).runs_ahead
        self._turn = ACCELERATOR if self.on_accelerator else nullcontext()

    @classmethod
    def configure(cls, experiment: Experiment, settings: NetworkTreeSettings) -> NetworkTreeConfig:
        """Return the settings of the networks and of their training."""
        return NetworkTreeConfig(
            network=experiment.network,
            training=experiment.training,
            beam=experiment.tree.beam,
            max_tokens=experiment.network.max_tokens or experiment.corpus.max_tokens,
            checkpoint_minutes=experiment.resources.checkpoint_minutes,
        )

    @classmethod
    def fit(cls, spec: MemberSpec, inputs: FitInputs) -> None:
        """Train all levels from the top, on all workers. Finished levels are loaded, not trained again."""
        assert isinstance(spec.config, NetworkTreeConfig)
        train_tree(spec.config, inputs, spec.directory, spec.key)

    @classmethod
    def load(cls, directory: Path, config: Any, inputs: LoadInputs) -> "NetworkTree":
        """Open trained networks, from a run or from a bundle; their weights are memory-mapped.

        Raises:
            OSError, ValueError: a level is missing or broken, or has other labels or words.
        """
        tree, networks, precision = inputs.label_tree, [], inputs.precision
        if len(tree.label_order) != inputs.labels:
            raise ValueError(f"{directory}: a tree of {len(tree.label_order):,} labels, not {inputs.labels:,}")
        for number in range(1, len(tree.level_sizes) + 1):
            path = level_directory(directory, number)
            try:
                # A bundle has one file of weights; a run also has a manifest and the rows of each worker.
                state = read_level(path) if (path / LEVEL_MANIFEST).is_file() else load_weights(path / MODEL)
                if WORDS not in state and inputs.word_vectors is not None:
                    state[WORDS] = inputs.word_vectors()
                if WORDS not in state or len(state[WORDS]) != inputs.words:
                    raise ValueError(f"vectors of {len(state.get(WORDS, ())):,} words, not {inputs.words:,}")
                network = frozen(Level.from_tree(tree, number), state, config.network, precision, inputs.device)
            except (ValueError, KeyError, SafetensorError) as error:
                raise ValueError(f"{path}: cannot be used ({error})") from None
            networks.append(network)
        return cls(tree, networks, config.beam, config.max_tokens, precision)

    @classmethod
    def export(cls, spec: MemberSpec, to: Path, weights: Weights, word_vectors: torch.Tensor) -> bool:
        """Write the weights of all levels in a bundle's number format.

        Word vectors that training left as they were are left out of the levels: a bundle has the corpus's vectors once.
        Frozen ones of a continued run may be those that the other run trained.
        """
        needs_vectors = False
        for path in sorted(spec.directory.glob("level-*")):
            if (path / LEVEL_MANIFEST).is_file():
                state = read_level(path)
                if torch.equal(state[WORDS], word_vectors):
                    del state[WORDS]
                    needs_vectors = True
                copy = to / path.name
                copy.mkdir()
                save_weights(state, copy / MODEL, weights)
        return needs_vectors

    @torch.inference_mode()
    def rank(self, texts: TextViews, k: int) -> TopK:
        """Return the best labels, found by beam search, with their probabilities."""
        if not len(texts):
            return TopK.empty(0, k)
        beam: Beam | None = None
        with self._turn:
            tokens, lengths = self._read_texts(texts)
            for network in self.networks:
                keep = k if network is self.networks[-1] else self.beam
                candidates = parent_scores = None
                if beam is not None:
                    assert network.first_child is not None
                    candidates = Candidates.from_beam(beam.nodes, network.level, network.first_child)
                    parent_scores = beam.scores
                with autocast(self.device, self.precision):
                    encodings = network.encode(tokens, lengths)
                    beam = network.expand(encodings, lengths, candidates, parent_scores, keep)
            assert beam is not None
            fetched = backend_for(self.device).fetch((beam.nodes, beam.scores.float())).result()
        nodes, logs = (tensor.numpy() for tensor in fetched)
        labels = np.where(np.isfinite(logs), self.tree.label_order[nodes], -1).astype(np.int32)
        return TopK(labels, np.exp(logs)).padded(k)

    @torch.inference_mode()
    def score(self, texts: TextViews, labels: np.ndarray) -> np.ndarray:
        """Return the probabilities of given labels along their paths, whether or not beam search would find them."""
        if not len(texts):
            return np.zeros((0, len(labels)), np.float32)
        path = self.tree.paths(labels)
        logs: Tensor | float = 0.0
        with self._turn:
            tokens, lengths = self._read_texts(texts)
            for number, network in enumerate(self.networks):
                parents = path[number - 1] if number else None
                with autocast(self.device, self.precision):
                    encodings = network.encode(tokens, lengths)
                    of_level = self._log_probabilities(network, encodings, lengths, path[number], parents)
                    logs = chain_rule(of_level, logs, network.parent_score_exponent)
            assert isinstance(logs, Tensor)
            scores: np.ndarray = logs.exp().float().cpu().numpy()
        return scores

    def _read_texts(self, texts: TextViews) -> tuple[Tensor, Tensor]:
        tokens, lengths = texts.padded(self.max_tokens)
        staged = backend_for(self.device).stage(
            {"tokens": torch.from_numpy(tokens), "lengths": torch.from_numpy(lengths)}
        )
        moved = staged.to(self.device)
        return moved["tokens"], moved["lengths"]

    def _log_probabilities(
        self, network: LevelNetwork, encodings: Tensor, lengths: Tensor, nodes: np.ndarray, parents: np.ndarray | None
    ) -> Tensor:
        """Return the log-probabilities of `nodes` (int64 [n]) of a network's level given their parents, float32 [N, n].

        `parents` (int64 [n]) is None at the first level.
        """
        columns, candidates = nodes, None
        if parents is not None:
            assert network.level.first_child is not None
            distinct, which = np.unique(parents, return_inverse=True)
            candidates = Candidates.from_parents(np.tile(distinct, (len(lengths), 1)), network.level).to(self.device)
            # The children of the i-th distinct parent are in columns i·K, i·K + 1, … of the logits.
            columns = which * network.level.block_size + nodes - network.level.first_child[parents]
        logits = network.logits(encodings, lengths, candidates)
        return torch.nn.functional.logsigmoid(logits[:, torch.from_numpy(columns).to(self.device)])

    @torch.inference_mode()
    def explain(self, text: ExplainedText, labels: Sequence[int], index: LabelIndex) -> list[TreePath] | None:
        """Return the path to each label with the nodes' attention (equation 2); None for networks without attention."""
        if not all(isinstance(network, AttentionXML) for network in self.networks):
            return None
        if not labels:
            return []
        nodes_of_level = self.tree.paths(np.array(labels))
        tokens, lengths = self._read_texts(TextViews(text.tokens))
        length = int(lengths[0])
        steps: list[list[Step]] = [[] for _ in labels]
        for level, (network, nodes) in enumerate(zip(self.networks, nodes_of_level, strict=True), start=1):
            assert isinstance(network, AttentionXML)
            parents = nodes_of_level[level - 2] if level > 1 else None
            with autocast(self.device, self.precision):
                encodings = network.encode(tokens, lengths)
                logs = self._log_probabilities(network, encodings, lengths, nodes, parents)[0]
            weights = np.zeros((len(nodes), len(text.words)), np.float32)
            attention = network.attention_weights(encodings[0, :length], torch.from_numpy(nodes).to(self.device))
            weights[:, :length] = attention.cpu().numpy()
            starts = label_starts(self.tree, level)
            for index_of_label, node in enumerate(nodes.tolist()):
                below = index.by_frequency(self.tree.label_order[starts[node] : starts[node + 1]])
                steps[index_of_label].append(
                    Step(
                        level=level,
                        labels=tuple(index.names[label] for label in below[:NAMED]),
                        size=len(below),
                        probability=float(logs[index_of_label].exp()),
                        weights=weights[index_of_label, : text.real],
                    )
                )
        return [tuple(path) for path in steps]
