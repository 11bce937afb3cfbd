"""Sizes of a corpus, from its files or from `corpus.expected`, from which memory and time are estimated."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.memory import PROCESS_BYTES
from axml_ray.settings import Experiment, stored
from axml_ray.settings.corpus import INPUTS

if TYPE_CHECKING:  # an opened model, which knows only `Counts`, imports none of this
    from axml_ray.corpus.store import Corpus

LABELS_PER_DOCUMENT = 5.0
"""Mean number of labels of a document where it is not known."""
PREPARING_BYTES = 1_100 << 20
"""Memory that a task of preparation reserves: it holds a block of texts, or counts of words and labels
(`benchmarks/results/scale.json`: two tasks and the driver took 3.1 GiB at 2.8 million labels)."""
MERGED_BYTES = 700
"""Bytes of a label in the one task that merges the labels of all blocks (`benchmarks/results/paper-scale-*.json`)."""


def merging_bytes(distinct: int) -> int:
    """Return the memory that the task reserves which merges the labels, or words, of all blocks."""
    return max(PREPARING_BYTES, PROCESS_BYTES + MERGED_BYTES * distinct)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Sizes of a corpus."""

    documents: int
    """Number of documents that a run trains on."""
    corpus_documents: int | None = None
    """Number of all training documents of the corpus, of which label trees are built; None if these are `documents`."""
    valid_documents: int
    test_documents: int = 0
    labels: int
    """Number of labels with training documents."""
    words: int
    """Number of words of the vocabulary."""
    word_dimension: int
    tokens: float
    """Mean number of words of a training document, as members without networks read it."""
    network_share: float = 1.0
    """Share of these words that networks read, which cut documents at `network.max_tokens`."""
    longest: int
    """Number of words of the longest document, as networks read it."""
    labels_per_document: float = LABELS_PER_DOCUMENT
    """Mean number of labels of a training document."""
    source: str
    """Where the counts come from, for the report."""

    @property
    def network_tokens(self) -> float:
        """Mean number of words of a training document that networks read."""
        return self.network_share * self.tokens

    @property
    def all_documents(self) -> int:
        """Number of all training documents of the corpus."""
        return self.documents if self.corpus_documents is None else self.corpus_documents

    @property
    def pairs(self) -> int:
        """Number of pairs of a training document and a label of it."""
        return round(self.documents * self.labels_per_document)


def count_corpus(settings: Experiment) -> Counts:
    """Return the counts of the prepared corpus; if there is none, those of `corpus.expected`.

    Raises:
        SettingsError: there is neither, or the prepared corpus is incomplete.
    """
    from axml_ray.corpus.preparation.merging import VOCABULARY_SIZE
    from axml_ray.corpus.preparation.split_assignment import valid_documents
    from axml_ray.corpus.store import MANIFEST, Corpus
    from axml_ray.corpus.text.vector_files import dimension_of

    storage.fetch(settings.corpus_directory, [MANIFEST])
    if (settings.corpus_directory / MANIFEST).is_file():
        return counts_of(Corpus.open(settings.corpus_directory), settings)
    expected, vectors = settings.corpus.expected, settings.corpus.word_vectors_path
    if expected.documents is None or expected.labels is None or expected.tokens is None:
        raise SettingsError(
            f"{settings.corpus_directory}: no prepared corpus, and corpus.expected does not say how large it will be; "
            "prepare it with axml-ray prepare, or set corpus.expected.documents, .labels and .tokens"
        )
    has_file = vectors is not None and vectors.is_file()
    share, longest = settings.corpus.test_share, _longest(settings)
    tokens = min(expected.tokens, settings.corpus.max_tokens)
    documents = min(expected.documents, settings.corpus.max_train_documents or sys.maxsize)
    return Counts(
        documents=min(documents, settings.training.documents or sys.maxsize),
        corpus_documents=documents,
        valid_documents=valid_documents(settings.corpus, expected.documents),  # drawn before the limit
        test_documents=round(expected.documents * share / (1 - share)) if share < 1 else 0,
        labels=expected.labels,
        words=expected.words or VOCABULARY_SIZE,
        word_dimension=dimension_of(vectors) if vectors and has_file else settings.corpus.word_dimension,
        tokens=tokens,
        network_share=min(1, longest / tokens),
        longest=longest,
        labels_per_document=expected.labels_per_document or LABELS_PER_DOCUMENT,
        source="corpus.expected; the corpus is not prepared yet",
    )


def counts_of(corpus: "Corpus", settings: Experiment) -> Counts:
    """Return the counts of a corpus as a run with these settings reads it."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from axml_ray.corpus.preparation.input_changes import changed_settings

    total, read, pairs, longest = 0, 0, 0, 1
    for file in corpus.files("train"):
        table = pq.read_table(file, columns=["tokens", "labels"])
        whole = pc.min_element_wise(pc.list_value_length(table["tokens"]), settings.corpus.max_tokens)
        cut = pc.min_element_wise(whole, _longest(settings))
        total, read = total + (pc.sum(whole).as_py() or 0), read + (pc.sum(cut).as_py() or 0)
        longest = max(longest, pc.max(cut).as_py() or 0)
        pairs += pc.sum(pc.list_value_length(table["labels"])).as_py() or 0
    changed = changed_settings(corpus.manifest, settings.corpus)
    stale = f"; its settings differ ({', '.join(changed)}): training will prepare it anew" if changed else ""
    now, before = stored(settings.corpus), corpus.manifest.get("settings", {})
    inputs = [name for name in (*INPUTS, "word_vectors") if name in before and name not in changed]
    if others := [name for name in inputs if before[name] != now.get(name)]:
        names = " and ".join(f"corpus.{name}" for name in others)
        stale += f"; {names} named other files: unless their content is the same, training will prepare it anew"
    documents = corpus.documents("train")
    return Counts(
        documents=min(documents, settings.training.documents or sys.maxsize),
        corpus_documents=documents,
        valid_documents=corpus.documents("valid"),
        test_documents=corpus.documents("test"),
        labels=corpus.trained,
        words=int(corpus.manifest["counts"]["words"]),
        word_dimension=int(corpus.manifest["word_vector_dimension"]),
        tokens=total / documents,
        network_share=read / max(1, total),
        longest=longest,
        labels_per_document=pairs / documents,
        source=f"the prepared corpus {corpus.directory}{stale}",
    )


def _longest(settings: Experiment) -> int:
    """Return the largest number of words of a text that the networks read."""
    return min(settings.corpus.max_tokens, settings.network.max_tokens or settings.corpus.max_tokens)
