"""How large a corpus and the levels of its trees are, known from the prepared corpus or from what is expected of it.

A tree is never built for this: halving balances clusters, so the sizes of levels follow from the number of labels.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from axml_ray.corpus.draws import valid_documents
from axml_ray.corpus.store import MANIFEST, Corpus
from axml_ray.corpus.vector_files import dimension_of
from axml_ray.network.tree_level import Level
from axml_ray.settings import Experiment, SettingsError, TreeSettings
from axml_ray.tree.label_tree import level_depths


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Of a corpus."""

    documents: int
    """Training documents."""
    valid_documents: int
    """Validation documents."""
    labels: int
    """Labels with training documents."""
    words: int
    """Of the vocabulary."""
    word_dimension: int
    """Of word vectors."""
    tokens: float
    """Mean words of a training document, as cut."""
    longest: int
    """Most words of a document."""
    source: str
    """Where the counts are from, for people."""


def counts_of(settings: Experiment) -> Counts:
    """Counts of the prepared corpus; where there is none, those of `corpus.expected`.

    Raises:
        SettingsError: there is neither, the prepared corpus isn't whole, or the network isn't the paper's.
    """
    if settings.network.kind != "attention":
        raise SettingsError(f"network.kind is {settings.network.kind}; only attention can be planned")
    if (settings.corpus_directory / MANIFEST).is_file():
        return _prepared(settings)
    corpus, expected = settings.corpus, settings.corpus.expected
    if expected.documents is None or expected.labels is None or expected.tokens is None:
        raise SettingsError(
            f"{settings.corpus_directory}: no prepared corpus, and corpus.expected does not say how large it will be; "
            "prepare it with jobs/prepare_corpus.py, or set corpus.expected.documents, .labels and .tokens"
        )
    return Counts(
        documents=min(expected.documents, settings.training.documents or expected.documents),
        valid_documents=expected.valid_documents or valid_documents(corpus, expected.documents),
        labels=expected.labels,
        words=expected.words or corpus.vocabulary_size,
        word_dimension=_expected_dimension(settings),
        tokens=min(expected.tokens, _read(settings)),
        longest=_read(settings),
        source="corpus.expected; the corpus is not prepared yet",
    )


def _prepared(settings: Experiment) -> Counts:
    corpus = Corpus.open(settings.corpus_directory)
    total, longest = 0, 1
    for file in corpus.files("train"):
        lengths = pc.list_value_length(pq.read_table(file, columns=["tokens"])["tokens"])
        lengths = pc.min_element_wise(lengths, _read(settings))
        total, longest = total + (pc.sum(lengths).as_py() or 0), max(longest, pc.max(lengths).as_py() or 0)
    now = settings.corpus.model_dump(mode="json")
    made_with = corpus.manifest.get("settings", {})
    changed = sorted(key for key, value in made_with.items() if now.get(key, value) != value)
    stale = f"; its settings differ ({', '.join(changed)}): training will prepare it anew" if changed else ""
    return Counts(
        documents=min(corpus.documents("train"), settings.training.documents or corpus.documents("train")),
        valid_documents=corpus.documents("valid"),
        labels=corpus.trained,
        words=int(corpus.manifest["counts"]["words"]),
        word_dimension=int(corpus.manifest["word_vector_dimension"]),
        tokens=total / corpus.documents("train"),
        longest=longest,
        source=f"the prepared corpus {corpus.directory}{stale}",
    )


def _read(settings: Experiment) -> int:
    """Most words of a text that reach a network."""
    return min(settings.corpus.max_tokens, settings.network.max_tokens or settings.corpus.max_tokens)


def _expected_dimension(settings: Experiment) -> int:
    path = settings.corpus.word_vectors_path
    if path is None or not path.is_file():
        return settings.corpus.word_dimension
    return dimension_of(path)


@dataclass(frozen=True, kw_only=True)
class LevelShape:
    """Of one level of a tree."""

    number: int
    """From 1, below the root."""
    nodes: int
    """To tell apart."""
    rows: int
    """Of the label table: nodes, or below the first level their parents."""
    block: int
    """K: vectors of a row."""
    parents: int | None
    """C: rows scored for a document; None for all."""

    @property
    def candidates(self) -> int:
        """Nodes scored for a document, unused places of blocks included."""
        return self.rows if self.parents is None else self.parents * self.block

    def level(self) -> Level:
        """As a network takes it, the children spread evenly."""
        if self.parents is None:
            return Level(self.number, self.nodes, None)
        return Level(self.number, self.nodes, np.arange(self.rows + 1, dtype=np.int64) * self.nodes // self.rows)


def level_shapes(labels: int, tree: TreeSettings) -> tuple[LevelShape, ...]:
    """The levels of a tree over so many labels, from the top."""
    depths = level_depths(labels, tree.height, tree.cluster_size)
    sizes = [*(2**depth for depth in depths), labels]
    first = LevelShape(number=1, nodes=sizes[0], rows=sizes[0], block=1, parents=None)
    deeper = [
        LevelShape(number=number, nodes=nodes, rows=above, block=-(-nodes // above), parents=min(tree.beam, above))
        for number, (above, nodes) in enumerate(pairwise(sizes), start=2)
    ]
    return first, *deeper
