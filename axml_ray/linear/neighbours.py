"""The labels of the training texts that are most like a text, as votes beside the classifiers.

Not in the paper. Networks and classifiers learn what many texts have in common; a text that nearly repeats another has
that one's labels, however rare they are, and this needs no training.

A text is its strongest features by TF-IDF, and like another by the cosine s of those that aren't in every tenth text.
Of the k training texts that are most like it (the first of equals), a label's vote is Σ s⁴ over those that have it,
divided by Σ s⁴ over all of them. A share of the classifiers' scores is these votes.

- **A file** of safetensors, whole or not there, checked when it is opened, mapped and shared by the processes of a
  machine: for each feature, the texts that hold it.
- **Nothing depends on the batch**: a text is scored by itself.

Legend: N documents, D training documents, L trained labels, F features of a text.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from scipy import sparse

from axml_ray.corpus.label_features import indicators, strongest
from axml_ray.linear.checked import matrix, open_arrays, save_arrays
from axml_ray.ragged import Ragged, is_ragged

ABOUT = {"format": "axml-ray neighbours", "version": "1"}
FEATURES = 128
"""Strongest features of a text that are compared: those beyond tell next to nothing, and take time and room."""
SHARE, FEW = 0.1, 1_000
"""Features that more than this share of the training texts hold, and more than a few, are passed over: they tell little
and take most of the time."""
POWER = 4
"""Of likeness in a vote."""
LONGEST = 1.001
"""A text of length one, but for rounding."""
MOST_LIKENESSES = 1 << 22
"""Pairs of a text and a training text that are held at a time, at most."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Training texts, to be found by what they hold, and their labels.

    Attributes:
        texts: float32 CSR [F, D], the strongest features of each training text: cosines with a text of length one.
        labels: float32 CSR [D, L], 1 for each of its labels.
        count: k.
        share: of the votes in the classifiers' scores.
    """

    texts: sparse.csr_matrix
    labels: sparse.csr_matrix
    count: int
    share: float

    @classmethod
    def fit(cls, rows: sparse.csr_matrix, labels: Ragged, trained: int, count: int, share: float) -> "Neighbours":
        """The neighbours among given texts.

        Args:
            rows: of the training texts, as of `TextFeatures.rows`.
            labels: theirs; those from `trained` on are left out.
            trained: L.
            count: k.
            share: of the votes.
        """
        texts = strongest(rows[:, :-1], FEATURES).T.tocsr()
        rare = np.diff(texts.indptr) <= max(FEW, SHARE * len(labels))
        texts = sparse.diags(rare.astype(np.float32)) @ texts
        texts.eliminate_zeros()
        texts.sort_indices()
        return cls(texts, indicators(labels, trained), count, share)

    def votes(self, rows: sparse.csr_matrix) -> sparse.csr_matrix:
        """What the nearest training texts say, float32 CSR [N, L]; nothing where none has a feature of the text.

        Args:
            rows: of the texts, as of `TextFeatures.rows`.
        """
        words = strongest(rows[:, :-1], FEATURES)
        step = max(1, MOST_LIKENESSES // max(1, self.labels.shape[0]))
        parts = [self._votes(words[start : start + step]) for start in range(0, words.shape[0], step)]
        empty = sparse.csr_matrix((0, self.labels.shape[1]), dtype=np.float32)
        return sparse.vstack([empty, *parts], format="csr")

    def _votes(self, words: sparse.csr_matrix) -> sparse.csr_matrix:
        near = strongest(words @ self.texts, self.count)
        near.data **= POWER
        total = np.maximum(near.sum(axis=1).A1, np.finfo(np.float32).tiny).astype(np.float32)
        near.data /= np.repeat(total, np.diff(near.indptr))
        return near @ self.labels

    def save(self, path: Path, fingerprint: str) -> None:
        """Write the texts and their labels; a reader sees the old file or the whole new one.

        Args:
            path: where to.
            fingerprint: of what they depend on.
        """
        arrays = {
            "values": self.texts.data.astype(np.float32),
            "texts": self.texts.indices.astype(np.int32),
            "offsets": self.texts.indptr.astype(np.int64),
            "labels": self.labels.indices.astype(np.int32),
            "labels.offsets": self.labels.indptr.astype(np.int64),
        }
        save_arrays(arrays, path, ABOUT, fingerprint)

    @classmethod
    def load(cls, path: Path, features: int, trained: int, count: int, share: float) -> "Neighbours":
        """Open what `save` wrote.

        Args:
            path: of the file.
            features: F, that it should have.
            trained: L, likewise.
            count: k.
            share: of the votes.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file doesn't hold neighbours of this version, or of other features or labels.
        """
        try:
            arrays, _ = open_arrays(path, ABOUT)
            labels = Ragged(arrays["labels"], arrays["labels.offsets"])
            if not is_ragged(labels) or labels.values.max(initial=-1) >= trained:
                raise ValueError(f"its texts haven't labels of the {trained:,} there are")
            parts = (arrays[name] for name in ("values", "texts", "offsets"))
            texts = matrix(parts, (features, len(labels)), "the table of its features")
            if texts.data.min(initial=0) < 0 or texts.data.max(initial=0) > LONGEST:
                raise ValueError("its texts aren't of length one")
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} holds no training texts of these features and labels: {error}") from None
        return cls(texts, indicators(labels, trained), count, share)
