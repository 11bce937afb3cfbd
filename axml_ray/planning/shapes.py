"""Sizes of a corpus and of the levels of its trees, from the prepared corpus or from `corpus.expected`.

No tree is built for this: halving gives balanced clusters, so the sizes of the levels follow from the number of labels.
"""

import sys
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.preparation.input_changes import changed_settings
from axml_ray.corpus.preparation.merging import VOCABULARY_SIZE
from axml_ray.corpus.preparation.split_assignment import valid_documents
from axml_ray.corpus.store import MANIFEST, Corpus
from axml_ray.corpus.text.vector_files import dimension_of
from axml_ray.network.tree_level import Level
from axml_ray.settings import Experiment, TreeSettings
from axml_ray.tree.label_tree import level_depths


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Sizes of a corpus."""

    documents: int
    """Number of training documents."""
    valid_documents: int
    labels: int
    """Number of labels with training documents."""
    words: int
    """Number of words of the vocabulary."""
    word_dimension: int
    tokens: float
    """Mean number of words of a training document, after cutting."""
    longest: int
    """Number of words of the longest document, after cutting."""
    source: str
    """Where the counts come from, for the report."""


def count_corpus(settings: Experiment) -> Counts:
    """Return the counts of the prepared corpus; if there is none, those of `corpus.expected`.

    Raises:
        SettingsError: there is neither, the prepared corpus is incomplete, or the network is not the paper's.
    """
    if settings.network.kind != "attention":
        raise SettingsError(
            f"network.kind: {settings.network.kind} cannot be planned; only the kind attention has estimates"
        )
    at_most = settings.training.documents or sys.maxsize
    max_tokens = min(settings.corpus.max_tokens, settings.network.max_tokens or settings.corpus.max_tokens)
    if (settings.corpus_directory / MANIFEST).is_file():
        corpus, total, longest = Corpus.open(settings.corpus_directory), 0, 1
        for file in corpus.files("train"):
            lengths = pc.list_value_length(pq.read_table(file, columns=["tokens"])["tokens"])
            lengths = pc.min_element_wise(lengths, max_tokens)
            total, longest = total + (pc.sum(lengths).as_py() or 0), max(longest, pc.max(lengths).as_py() or 0)
        changed = changed_settings(corpus.manifest, settings.corpus)
        stale = f"; its settings differ ({', '.join(changed)}): training will prepare it anew" if changed else ""
        return Counts(
            documents=min(corpus.documents("train"), at_most),
            valid_documents=corpus.documents("valid"),
            labels=corpus.trained,
            words=int(corpus.manifest["counts"]["words"]),
            word_dimension=int(corpus.manifest["word_vector_dimension"]),
            tokens=total / corpus.documents("train"),
            longest=longest,
            source=f"the prepared corpus {corpus.directory}{stale}",
        )
    expected, vectors = settings.corpus.expected, settings.corpus.word_vectors_path
    if expected.documents is None or expected.labels is None or expected.tokens is None:
        raise SettingsError(
            f"{settings.corpus_directory}: no prepared corpus, and corpus.expected does not say how large it will be; "
            "prepare it with axml-ray prepare, or set corpus.expected.documents, .labels and .tokens"
        )
    has_file = vectors is not None and vectors.is_file()
    return Counts(
        documents=min(expected.documents, at_most),
        valid_documents=valid_documents(settings.corpus, expected.documents),
        labels=expected.labels,
        words=expected.words or VOCABULARY_SIZE,
        word_dimension=dimension_of(vectors) if vectors and has_file else settings.corpus.word_dimension,
        tokens=min(expected.tokens, max_tokens),
        longest=max_tokens,
        source="corpus.expected; the corpus is not prepared yet",
    )


@dataclass(frozen=True, kw_only=True)
class LevelShape:
    """Sizes of one level of a tree."""

    number: int
    """Number of the level, from 1 below the root."""
    nodes: int
    rows: int
    """Rows of the label table: one per node at the first level, one per parent at deeper levels."""
    block: int
    """Vectors of a row, K: the most children of a parent."""
    parents: int | None
    """Rows scored for a document, C; None if all are."""

    @property
    def candidates(self) -> int:
        """Number of vectors scored for a document, including unused ones of incomplete blocks."""
        return self.rows if self.parents is None else self.parents * self.block

    def level(self) -> Level:
        """Return a tree level of these sizes, with the children spread evenly over the parents."""
        if self.parents is None:
            return Level(self.number, self.nodes, None)
        return Level(self.number, self.nodes, np.arange(self.rows + 1, dtype=np.int64) * self.nodes // self.rows)


def level_shapes(labels: int, tree: TreeSettings) -> tuple[LevelShape, ...]:
    """Return the sizes of the levels of a tree over `labels` labels, from the top."""
    depths = level_depths(labels, tree.height, tree.cluster_size)
    sizes = [*(2**depth for depth in depths), labels]
    first = LevelShape(number=1, nodes=sizes[0], rows=sizes[0], block=1, parents=None)
    deeper = [
        LevelShape(number=number, nodes=nodes, rows=above, block=-(-nodes // above), parents=min(tree.beam, above))
        for number, (above, nodes) in enumerate(pairwise(sizes), start=2)
    ]
    return first, *deeper
