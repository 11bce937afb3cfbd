"""What labels are clustered by: one sparse row a label, by `tree.features`.

Rows may have any length, and none; clustering scales them. Labels that occur in training only, as trees are built over.
"""

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from axml_ray.corpus.store import Corpus
from axml_ray.settings import LabelFeatures

LETTERS = (3, 5)
"""Label names are short: parts of words of 3 to 5 letters let "woodland" meet "wood"."""


def clustering_features(corpus: Corpus, kind: LabelFeatures) -> sparse.csr_matrix:
    """Features of the corpus's trained labels, float CSR [L, F].

    - `tfidf`: the corpus's TF-IDF centroids (paper).
    - `word_vectors`: their words' vectors, weighted as there, less the mean of all labels.
    - `label_text`: TF-IDF of the letters of the labels' names; texts play no part.
    """
    if kind == "label_text":
        return name_features(corpus.labels.names[: corpus.trained])
    centroids = corpus.label_features()
    return centroids if kind == "tfidf" else vector_centroids(centroids, corpus.word_vectors())


def name_features(names: tuple[str, ...]) -> sparse.csr_matrix:
    """TF-IDF of the parts of each name, float64 CSR [L, F]; a name without a letter or digit has an empty row."""
    shown = [" ".join(_words(name)) for name in names]
    if not any(shown):
        return sparse.csr_matrix((len(names), 1))
    return TfidfVectorizer(analyzer="char_wb", ngram_range=LETTERS, sublinear_tf=True).fit_transform(shown)


def vector_centroids(centroids: sparse.csr_matrix, vectors: np.ndarray) -> sparse.csr_matrix:
    """The mean word vector of each label, float32 CSR [L, E] with all values kept.

    Args:
        centroids: TF-IDF centroids, float32 CSR [L, V].
        vectors: word vectors, float32 [V, E].
    """
    dense = normalize(centroids @ vectors)
    known = dense.any(axis=1)
    if known.any():
        # Every text has the frequent words; what all labels share tells none of them apart.
        dense[known] -= dense[known].mean(axis=0)
    return sparse.csr_matrix(dense)


def _words(name: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
