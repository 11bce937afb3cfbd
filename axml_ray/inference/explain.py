"""Why a label: which words it looked at, at the leaf and at each cluster above it, in every tree.

The attention weights of a node over a text's words (paper, equation 2) sum to one. They are not kept while many texts
are tagged, but computed again for the texts and labels that are asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.tokenizer import Tokenizer
from axml_ray.inference.beam import TreePredictor
from axml_ray.inference.texts import length_batches
from axml_ray.network.attention_xml import AttentionXML
from axml_ray.network.precision import autocast
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError
from axml_ray.tree.inspection import label_starts

TYPICAL = 3
"""Labels that a cluster is named by: its most frequent ones."""
NOTHING_TO_EXPLAIN = "explain: networks without attention (network.kind bilstm or xml_cnn) can't explain"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A node of the path to a label."""

    level: int
    """d, from 1 below the root; the last one is the label itself."""
    labels: tuple[str, ...]
    """Names of the most frequent labels below the node, at most three; at the leaf, the label's."""
    size: int
    """Labels below the node."""
    probability: float
    """That the level's network gives the node."""
    weights: np.ndarray = field(compare=False)
    """float32 [words], attention of the node to each word of the text; 0 beyond `network.max_tokens`."""

    @property
    def name(self) -> str:
        """The labels and how many there are beyond, as one line."""
        beyond = self.size - len(self.labels)
        return ", ".join(self.labels) + (f" and {beyond:,} more" if beyond else "")


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a text got a label."""

    text: str
    """The text, blanks in the place of what can't be stored."""
    label: str
    """As the corpus writes it."""
    name: str
    """What a person reads."""
    spans: tuple[tuple[int, int], ...]
    """First character of each word that was read, and the one after its last. Longer texts are cut."""
    paths: tuple[tuple[Step, ...], ...]
    """Of each tree, from the top."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words that were read."""
        return tuple(self.text[start:end] for start, end in self.spans)

    @cached_property
    def weights(self) -> np.ndarray:
        """float32 [words]: attention of the label itself, the mean over the trees; sums to one unless empty."""
        return np.stack([path[-1].weights for path in self.paths]).mean(axis=0)

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "label": self.label,
            "name": self.name,
            "words": [
                {"word": word, "start": start, "end": end, "weight": float(weight)}
                for word, (start, end), weight in zip(self.words, self.spans, self.weights, strict=True)
            ],
            "trees": [
                [
                    {
                        "level": step.level,
                        "name": step.name,
                        "probability": step.probability,
                        "weights": step.weights.tolist(),
                    }
                    for step in path
                ]
                for path in self.paths
            ],
        }


def explain(
    trees: Sequence[TreePredictor],
    tokenizer: Tokenizer,
    index: LabelIndex,
    text: str,
    labels: Sequence[int],
    max_tokens: int,
) -> list[Explanation]:
    """Explain some labels of one text.

    Args:
        trees: whose attention is asked for.
        tokenizer: of the trees.
        index: names of the labels.
        text: storable, see `records.storable`.
        labels: ids.
        max_tokens: words of a text that are read.

    Raises:
        SettingsError: the networks have no attention.
    """
    words, spans = tokenizer.encode_with_spans(text, max_tokens)
    return assembled(text, spans, labels, index, [paths(tree, words, len(spans), labels, index) for tree in trees])


def assembled(
    text: str,
    spans: Sequence[tuple[int, int]],
    labels: Sequence[int],
    index: LabelIndex,
    of_trees: Sequence[Sequence[tuple[Step, ...]]],
) -> list[Explanation]:
    """What trees say of some labels of one text, put together; the trees may be in other processes.

    Args:
        text: storable.
        spans: of its words, as of `Tokenizer.encode_with_spans`.
        labels: ids.
        index: names of the labels.
        of_trees: `paths` of each tree.
    """
    return [
        Explanation(
            text=text,
            label=index.labels[label],
            name=index.names[label],
            spans=tuple(spans),
            paths=tuple(of_tree[place] for of_tree in of_trees),
        )
        for place, label in enumerate(labels)
    ]


@torch.inference_mode()
def paths(
    tree: TreePredictor, words: np.ndarray, real: int, labels: Sequence[int], index: LabelIndex
) -> list[tuple[Step, ...]]:
    """The path to each label in one tree, from the top.

    Args:
        tree: whose attention is asked for.
        words: int32 [n], ids, at least one.
        real: words of them that are of the text; 0 for an empty one, which is read as one unknown word.
        labels: ids.
        index: names of the labels.

    Raises:
        SettingsError: the networks have no attention.
    """
    if not all(isinstance(network, AttentionXML) for network in tree.networks):
        raise SettingsError(NOTHING_TO_EXPLAIN)
    if not labels:
        return []
    nodes_of_level = tree.tree.paths(np.array(labels))
    tokens, stands_for = Ragged.from_rows([words]), np.arange(len(words))
    if tree.translation is not None:
        tokens, stands_for = tree.translation.with_places(tokens)
    read, stands_for = tokens[0][: tree.max_tokens], stands_for[: tree.max_tokens]
    texts = next(length_batches(Ragged.from_rows([read]))).to(tree.device)
    of_words = torch.from_numpy(stands_for).to(tree.device)
    steps: list[list[Step]] = [[] for _ in labels]
    for level, (network, nodes) in enumerate(zip(tree.networks, nodes_of_level, strict=True), start=1):
        assert isinstance(network, AttentionXML)
        parents = nodes_of_level[level - 2] if level > 1 else None
        with autocast(tree.device, tree.precision):
            encodings = network.encode(texts.tokens, texts.lengths)
            logs = tree.log_probabilities(network, encodings, texts, nodes, parents)[0]
        attention = network.attention_weights(encodings[0, : len(read)], torch.from_numpy(nodes).to(tree.device))
        # What a node gives to a translation, it gives to the word.
        weights = attention.new_zeros(len(nodes), len(words)).index_add_(1, of_words, attention).cpu().numpy()
        starts = label_starts(tree.tree, level)
        for place, node in enumerate(nodes.tolist()):
            below = np.sort(tree.tree.label_order[starts[node] : starts[node + 1]])  # ids are ranked by frequency
            steps[place].append(
                Step(
                    level=level,
                    labels=tuple(index.names[label] for label in below[:TYPICAL].tolist()),
                    size=len(below),
                    probability=float(logs[place].exp()),
                    weights=weights[place, :real],
                )
            )
    return [tuple(path) for path in steps]
