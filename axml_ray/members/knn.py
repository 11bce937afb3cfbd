"""k-nearest neighbours: the labels of the most similar training texts (kind `knn`). Not in the paper.

Networks and linear classifiers learn what many texts have in common; a text that nearly repeats a training text usually
has the same labels, however rare they are. A text is represented by its strongest TF-IDF features; its similarity s to
another is the product of their vectors, of length one, without features of more than a tenth of the training texts. Of
the k most similar training texts (of equals, the first), a label's score is the sum of s⁴ over those that have it,
divided by the sum over all. It does not depend on the other texts of a batch.

Legend: N documents, D training documents, L trained labels, F features of a text.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import SafetensorError
from scipy import sparse

from axml_ray.core.array_file import matrix, open_arrays, save_arrays
from axml_ray.core.ragged import Ragged, is_ragged
from axml_ray.corpus.counts import Counts
from axml_ray.corpus.labels.label_features import indicator_matrix, keep_strongest
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.featurizer import (
    COUNTED_PER_SECOND,
    FEATURE_BYTES,
    WORD_BYTES,
    Featurizer,
    counting_bytes,
    feature_texts,
    matrix_entries,
    text_blocks,
)
from axml_ray.members.member import FitCosts, FitInputs, LoadInputs, MemberSpec, SparseMember
from axml_ray.settings import Experiment, Settings
from axml_ray.settings.members import FeatureSettings, KnnSettings

ABOUT = {"format": "axml-ray nearest neighbours", "version": "1"}
FILE = "texts.safetensors"
FEATURES = 128
"""Number of strongest features of a text that are compared: weaker ones hardly change a similarity, and cost time and
memory."""
COMMON_SHARE, COMMON_TEXTS = 0.1, 1_000
"""Features in more than this share of the training texts, and in more than this number of them, are ignored: they say
little and would take most of the time."""
POWER = 4
"""Exponent of the similarity in a label's score."""
MOST_LENGTH = 1.001
"""Largest length of a row of length one, allowing for rounding."""
BLOCK_PAIRS = 1 << 22
"""About the number of pairs of a feature of a text and a training text with it that are multiplied together."""
INDEXING_BYTES = 24
"""Bytes of an entry of the index while it is made."""
COMPARED_PER_SECOND = 3.5e7
"""Training texts of `FEATURES` features that a core compares a text with in a second; of shorter ones more, in
proportion (`benchmarks/results/knn-scale.json`: 200,000 texts)."""


class KnnConfig(Settings):
    """The settings that the fitted member depends on, and the number of neighbours, which only prediction reads."""

    neighbours: int
    features: FeatureSettings


@dataclass(frozen=True, eq=False)
class NearestNeighbours(SparseMember):
    """An inverted index from features to training texts, memory-mapped, and the labels of these.

    Attributes:
        texts: float32 CSR [F, D], the strongest features of each training text.
        labels: float32 CSR [D, L], 1 for each label of a training text.
        count: k, the number of neighbours.
        featurizer: featurizer of the run.
    """

    texts: sparse.csr_matrix
    labels: sparse.csr_matrix
    count: int
    featurizer: Featurizer

    config_class: ClassVar[type[Settings]] = KnnConfig
    uses_features: ClassVar[bool] = True
    holds_texts: ClassVar[bool] = True
    not_fitted: ClassVar[frozenset[str]] = frozenset({"neighbours"})

    @classmethod
    def configure(cls, experiment: Experiment, settings: KnnSettings) -> KnnConfig:
        """Return the number of neighbours and the settings of the features."""
        return KnnConfig(neighbours=settings.neighbours, features=experiment.features)

    @classmethod
    def fit(cls, spec: MemberSpec, inputs: FitInputs) -> None:
        """Index the training texts by their features and write the index."""
        config = spec.config
        assert isinstance(config, KnnConfig)
        texts = feature_texts(inputs.corpus, inputs.train, config.features, inputs.max_tokens)
        rows = map(inputs.features.matrix, text_blocks(texts.tokens))
        cls.of(rows, texts.labels, inputs.corpus.trained, config.neighbours, inputs.features).save(
            spec.directory / FILE, spec.key
        )

    @classmethod
    def costs(cls, experiment: Experiment, own: KnnSettings, counts: Counts) -> FitCosts:
        """Estimate what indexing takes, and a search, whose time grows with the number of training texts."""
        entries = matrix_entries(counts, experiment.features)
        kept = min(entries, FEATURES * counts.documents)
        return FitCosts(
            memory=counting_bytes(counts, experiment.features) + INDEXING_BYTES * kept,
            files=FEATURE_BYTES * kept + 4 * counts.pairs + 8 * (counts.documents + counts.words),
            moved=WORD_BYTES * round(counts.documents * counts.tokens) + FEATURE_BYTES * kept,
            seconds=2 * entries / COUNTED_PER_SECOND,
            text_seconds=kept / FEATURES / COMPARED_PER_SECOND,
        )

    @classmethod
    def of(
        cls, rows: Iterable[sparse.csr_matrix], labels: Ragged, trained: int, count: int, featurizer: Featurizer
    ) -> "NearestNeighbours":
        """Index training texts by their features, given as `Featurizer.matrix` of blocks of texts.

        Labels of `trained` and above are ignored.
        """
        blocks = [keep_strongest(block[:, :-1], FEATURES) for block in rows]
        counts = (np.bincount(block.indices, minlength=block.shape[1]) for block in blocks)
        frequency = sum(counts, start=np.zeros((), np.int64))
        is_common = frequency > max(COMMON_TEXTS, COMMON_SHARE * len(labels))
        for block in blocks:
            block.data[is_common[block.indices]] = 0
            block.eliminate_zeros()
        texts = sparse.vstack(blocks, format="csr")
        del blocks
        return cls(texts.T.tocsr(), indicator_matrix(labels, trained), count, featurizer)

    def scores_of(self, texts: TextViews) -> sparse.csr_matrix:
        """Return the scores of the labels of the most similar training texts, float32 CSR [N, L]."""
        return self.scores(self.featurizer.of(texts))

    def scores(self, rows: sparse.csr_matrix) -> sparse.csr_matrix:
        """Return the score of each label, float32 CSR [N, L]; empty for a text without a feature of a training text.

        `rows` are features of the texts, as returned by `Featurizer.matrix`.
        """
        words = keep_strongest(rows[:, :-1], FEATURES)
        offsets = self.texts.indptr
        pairs = np.cumsum(offsets[words.indices + 1] - offsets[words.indices], dtype=np.int64)
        pairs = np.concatenate([[0], pairs])[words.indptr]  # of all texts before each
        ends = np.searchsorted(pairs, np.arange(BLOCK_PAIRS, pairs[-1], BLOCK_PAIRS))
        blocks = [sparse.csr_matrix((0, self.labels.shape[0]), dtype=np.float32)]
        for first, last in pairwise(np.unique([0, *ends, words.shape[0]]).tolist()):
            nearest = keep_strongest(words[first:last] @ self.texts, self.count)
            nearest.data **= POWER
            total = np.maximum(nearest.sum(axis=1).A1, np.finfo(np.float32).tiny).astype(np.float32)
            nearest.data /= np.repeat(total, np.diff(nearest.indptr))
            blocks.append(nearest)
        scores = sparse.vstack(blocks, format="csr") @ self.labels
        np.minimum(scores.data, 1, out=scores.data)  # a sum of shares may be above 1 by rounding
        return scores

    def save(self, path: Path, key: str) -> None:
        """Write the texts and their labels, atomically, with the cache key of everything that they depend on."""
        arrays = {
            "values": self.texts.data.astype(np.float32, copy=False),
            "texts": self.texts.indices.astype(np.int32, copy=False),
            "offsets": self.texts.indptr.astype(np.int64),
            "labels": self.labels.indices.astype(np.int32, copy=False),
            "labels.offsets": self.labels.indptr.astype(np.int64),
        }
        save_arrays(arrays, path, ABOUT, key)

    @classmethod
    def load(cls, directory: Path, config: Any, inputs: LoadInputs) -> "NearestNeighbours":
        """Open what `fit` wrote.

        Raises:
            OSError, ValueError: the file is missing, is not an index of this version, or has other features or labels.
        """
        path, features = directory / FILE, inputs.features
        try:
            arrays, _ = open_arrays(path, ABOUT)
            labels = Ragged(arrays["labels"], arrays["labels.offsets"])
            if not is_ragged(labels) or labels.values.max(initial=-1) >= inputs.labels:
                raise ValueError(f"its texts have labels beyond the {inputs.labels:,} there are")
            parts = (arrays[name] for name in ("values", "texts", "offsets"))
            texts = matrix(parts, (len(features), len(labels)), "the table of its features")
            if texts.data.min(initial=0) < 0 or texts.data.max(initial=0) > MOST_LENGTH:
                raise ValueError("its texts do not have length one")
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} holds no training texts of these features and labels: {error}") from None
        ones = np.ones(len(labels.values), np.float32)
        of_texts = sparse.csr_matrix((ones, labels.values, labels.offsets), shape=(len(labels), inputs.labels))
        return cls(texts, of_texts, config.neighbours, features)
