"""Linear classifiers of a label tree's nodes, by the TF-IDF of a text.

Not in the paper, whose networks learn what a rare word means from few texts or not at all. Every node of a tree has
a classifier against its siblings, trained on the documents of its parent, as in Parabel (Prabhu et al., 2018); its
margin m is taken as the probability exp(-max(0, 1 - m)²) of the node given its parent, so a label's is the product
along its path. Trees average it with what their networks give.

- **Wider families than the networks'**, of about `linear.cluster_size` labels, see `families`.
- **A file** of safetensors, whole or not there, checked when it is opened; its weights are mapped and shared by the
  processes of a machine, but for those of the first and of small levels, which each turns round.
- **Nothing depends on the batch**: a text is scored by itself.

Legend: N documents, F features of a text, n_d nodes of level d.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from scipy import sparse

from axml_ray.corpus.translation import Translation
from axml_ray.linear.checked import matrix, open_arrays, save_arrays
from axml_ray.linear.name_matches import NameMatches
from axml_ray.linear.neighbours import Neighbours
from axml_ray.linear.text_features import TextFeatures, kinds
from axml_ray.linear.votes import joined_ranking, joined_scores
from axml_ray.ragged import Ragged, is_ragged
from axml_ray.tree.chain_rule import chain_rule
from axml_ray.tree.label_tree import LabelTree

ABOUT = {"format": "axml-ray linear classifiers", "version": "3"}
FREQUENCY, BEGINNINGS, RUNS, LABEL_ORDER = "frequency", "beginnings", "runs", "label_order"
TRANSLATED = "translated"
CHILDREN = 4096
"""Nodes of a level that are scored for a text, those of the best parents; about as many."""
MOST_SCORES = 1 << 22
"""Scores of a level that are held at a time."""
WHOLE_LEVEL = 1 << 16
"""Levels of so many nodes are scored whole, which takes a text less than to gather the nodes that it needs."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What classifiers see of some texts, the same for all trees of a run.

    Attributes:
        rows: float32 CSR [N, F + 1], as of `TextFeatures.rows`.
        votes: float32 CSR [N, L], of neighbours and of names times their shares; None where neither votes.
    """

    rows: sparse.csr_matrix
    votes: sparse.csr_matrix | None


@dataclass(frozen=True, eq=False)
class LinearTree:
    """The classifiers of all nodes of a tree.

    Attributes:
        tree: its shape.
        weights: for levels 1 to H + 1, float32 CSR [n_d, F + 1]; the last column is the bias.
        features: of the texts.
        neighbours: training texts whose labels vote too, if they do; they have a file of their own.
        names: of labels, likewise.
    """

    tree: LabelTree
    weights: Sequence[sparse.csr_matrix]
    features: TextFeatures
    neighbours: Neighbours | None = None
    names: NameMatches | None = None

    @property
    def share(self) -> float:
        """Of the classifiers in what they find, where others vote beside them."""
        return 1 - sum(voter.share for voter in (self.neighbours, self.names) if voter is not None)

    def sees_like(self, other: "LinearTree") -> bool:
        """Whether `see` of the other is good for this one. Those of a run share their neighbours and names."""
        beside, others = ([tree.neighbours is None, tree.names is None] for tree in (self, other))
        return beside == others and self.features.same_as(other.features)

    def see(self, tokens: Ragged) -> Seen:
        """What `find` and `score` need of documents (word ids), made once for all trees of a run."""
        rows = self.features.rows(tokens)
        votes = []
        if self.neighbours is not None:
            votes.append(self.neighbours.votes(rows) * np.float32(self.neighbours.share))
        if self.names is not None:
            votes.append(self.names.votes(self.features.translated(tokens)) * np.float32(self.names.share))
        return Seen(rows, sum(votes[1:], votes[0]) if votes else None)

    def find(self, seen: Seen, top: int, children: int = CHILDREN) -> tuple[np.ndarray, np.ndarray]:
        """The best labels of each document, by beam search; where others vote beside, of those and of theirs.

        Args:
            seen: of the documents.
            top: labels wanted.
            children: of the best nodes of a level that are scored, at most, or of one.

        Returns:
            Label ids, int32 [N, top], best first, -1 where the beam held fewer; and their probabilities, float32
            [N, top], 0 there.
        """
        rows = seen.rows
        sizes = self.tree.level_sizes
        families = (self.tree.max_children(level) for level in range(len(sizes)))
        whole = (size for size in sizes if size <= WHOLE_LEVEL)
        step = max(1, MOST_SCORES // max(children, *families, *whole))
        found = [self._find(rows[start : start + step], children, top) for start in range(0, rows.shape[0], step)]
        labels = np.concatenate([np.empty((0, top), np.int32), *(labels for labels, _ in found)])
        scores = np.concatenate([np.empty((0, top), np.float32), *(scores for _, scores in found)])
        if seen.votes is None:
            return labels, scores
        return joined_ranking(seen.votes, self.share, labels, scores)

    def _find(self, rows: sparse.csr_matrix, most: int, top: int) -> tuple[np.ndarray, np.ndarray]:
        document = np.arange(rows.shape[0])[:, None]
        nodes = np.broadcast_to(np.arange(self.tree.level_sizes[0]), (rows.shape[0], self.tree.level_sizes[0]))
        logs = log_probability(self._margins(0, rows, nodes))
        for level, first_child in enumerate(self.tree.first_child[1:], start=1):
            kept = _best(logs, max(1, most // self.tree.max_children(level)))
            parents, above = nodes[document, kept], logs[document, kept]
            children = first_child[parents][..., None] + np.arange(self.tree.max_children(level))
            none = (children >= first_child[parents + 1][..., None]).reshape(len(document), -1)
            nodes = np.where(none, 0, children.reshape(none.shape))
            own = log_probability(self._margins(level, rows, nodes))
            logs = chain_rule(own, np.repeat(above, children.shape[2], axis=1))
            logs[none] = -np.inf
        kept = _best(logs, top)
        kept = np.take_along_axis(kept, np.argsort(-logs[document, kept], axis=1, kind="stable"), axis=1)
        labels, best = self.tree.label_order[nodes[document, kept]], logs[document, kept]
        missing = ((0, 0), (0, top - kept.shape[1]))
        labels = np.where(np.isfinite(best), labels, -1).astype(np.int32)
        return np.pad(labels, missing, constant_values=-1), np.pad(np.exp(best), missing)

    def score(self, seen: Seen, labels: np.ndarray) -> np.ndarray:
        """Probabilities of given labels, float32 [N, n], whether or not a beam would reach them.

        Args:
            seen: of the documents.
            labels: integer [n], trained labels, in any order.
        """
        logs = np.zeros((seen.rows.shape[0], len(labels)), dtype=np.float32)
        for weights, nodes in zip(self.weights, self.tree.paths(labels), strict=True):
            distinct, which = np.unique(nodes, return_inverse=True)  # labels share the nodes above them
            logs = chain_rule(log_probability((seen.rows @ weights[distinct].T).toarray())[:, which], logs)
        found: np.ndarray = np.exp(logs)
        if seen.votes is None:
            return found
        return joined_scores(seen.votes, self.share, labels, found)

    def _margins(self, level: int, rows: sparse.csr_matrix, nodes: np.ndarray) -> np.ndarray:
        """Margins of some nodes (int64 [N, n]) of `weights[level]` for each document, float32 [N, n]."""
        if level == 0 or self.tree.level_sizes[level] <= WHOLE_LEVEL:
            every = (rows @ self._by_word[level]).toarray()
            return every if level == 0 else np.take_along_axis(every, nodes, axis=1)
        margins = np.empty(nodes.shape, dtype=np.float32)
        words = np.zeros(rows.shape[1], dtype=np.float32)
        for document, wanted in enumerate(nodes):
            inside = slice(rows.indptr[document], rows.indptr[document + 1])
            words[rows.indices[inside]] = rows.data[inside]
            margins[document] = self.weights[level][wanted] @ words
            words[rows.indices[inside]] = 0
        return margins

    @cached_property
    def _by_word(self) -> list[sparse.csr_matrix]:
        """The weights of levels that are scored whole, a row a feature: a text has few of them."""
        small = (level == 0 or size <= WHOLE_LEVEL for level, size in enumerate(self.tree.level_sizes))
        return [weights.T.tocsr() for weights, whole in zip(self.weights, small, strict=True) if whole]

    def beside(self, path: Path, count: int, share: float) -> "LinearTree":
        """The same with neighbours, of the same texts' features.

        Args:
            path: of their file.
            count: of the training texts that vote on a text.
            share: of the votes in the scores.

        Raises:
            FileNotFoundError, ValueError: as of `Neighbours.load`.
        """
        found = Neighbours.load(path, len(self.features), len(self.tree.label_order), count, share)
        return replace(self, neighbours=found)

    def beside_names(self, path: Path, share: float) -> "LinearTree":
        """The same with labels' names.

        Args:
            path: of their file.
            share: of their votes in the scores.

        Raises:
            FileNotFoundError, ValueError: as of `NameMatches.load`.
        """
        found = NameMatches.load(path, len(self.features.beginnings), len(self.tree.label_order), share)
        return replace(self, names=found)

    def save(self, path: Path, fingerprint: str) -> None:
        """Write the classifiers; a reader sees the old file or the whole new one.

        Args:
            path: where to.
            fingerprint: of what they depend on.
        """
        features = self.features
        about = {name: str(getattr(features, name)) for name in ("documents", "lead_words", "lead_weight")}
        if features.translation is not None:
            about[TRANSLATED] = "yes"
        arrays = {FREQUENCY: features.frequency, LABEL_ORDER: self.tree.label_order}
        of_words = {BEGINNINGS: features.beginnings, RUNS: features.runs}
        for name, parts in of_words.items():
            arrays |= {name: parts.values, f"{name}.offsets": parts.offsets}
        for level, weights in enumerate(self.weights, start=1):
            arrays |= {
                f"children.{level}": self.tree.first_child[level - 1],
                f"values.{level}": weights.data.astype(np.float32),
                f"words.{level}": weights.indices.astype(np.int32),
                f"offsets.{level}": weights.indptr.astype(np.int64),
            }
        save_arrays(arrays, path, {**ABOUT, **about}, fingerprint)

    @classmethod
    def load(cls, path: Path, labels: int, translation: Translation | None = None) -> "LinearTree":
        """Open classifiers that `save` wrote.

        Args:
            path: of the file.
            labels: that they should have.
            translation: by which they were fitted.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file doesn't hold classifiers of this version, or not of so many labels.
        """
        try:
            arrays, about = open_arrays(path, ABOUT)
            parts = [Ragged(arrays.pop(name), arrays.pop(f"{name}.offsets")) for name in (BEGINNINGS, RUNS)]
            if (TRANSLATED in about) != (translation is not None):
                raise ValueError("they were fitted " + ("with" if TRANSLATED in about else "without") + " a dictionary")
            features = _features(arrays.pop(FREQUENCY), parts, about, translation)
            order, levels = arrays.pop(LABEL_ORDER), range(1, len(arrays) // 4 + 1)
            if len(order) != labels:
                raise ValueError(f"it has {len(order):,} labels, not {labels:,}")
            tree = LabelTree(label_order=order, first_child=tuple(arrays[f"children.{level}"] for level in levels))
            weights = [
                matrix(
                    (arrays[f"{part}.{level}"] for part in ("values", "words", "offsets")),
                    (nodes, len(features) + 1),
                    f"level {level}",
                )
                for level, nodes in zip(levels, tree.level_sizes, strict=True)
            ]
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} holds no linear classifiers of these labels: {error}") from None
        return cls(tree, weights, features)


def log_probability(margins: np.ndarray) -> np.ndarray:
    """Log of the probability that a margin is taken as."""
    short = np.maximum(0, 1 - margins)
    found: np.ndarray = -short * short
    return found


def _best(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest of each row of `values` (float32 [N, n]), or of all, ascending: int64 [N, k]."""
    if count >= values.shape[1]:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)


def _features(
    frequency: np.ndarray, parts: Sequence[Ragged], about: Mapping[str, str], translation: Translation | None
) -> TextFeatures:
    documents, lead = int(about["documents"]), (int(about["lead_words"]), float(about["lead_weight"]))
    counted = frequency.dtype == np.int64 and frequency.ndim == 1 and 1 <= documents < 2**31
    if not counted or frequency.min(initial=0) < 0 or frequency.max(initial=0) > documents:
        raise ValueError("it doesn't say how many documents hold each feature")
    if not all(map(is_ragged, parts)) or parts[0].offsets.shape != parts[1].offsets.shape:
        raise ValueError("it doesn't say what parts words have")
    if len(parts[0]) + sum(kinds(each) for each in parts) != len(frequency):
        raise ValueError("it doesn't say what parts words have")
    if lead[0] < 0 or not 1 <= lead[1] < np.inf:
        raise ValueError(f"its first {lead[0]} words count {lead[1]} times")
    return TextFeatures(frequency, documents, parts[0], parts[1], *lead, translation)
