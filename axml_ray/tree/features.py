"""The label features that trees are built from: one sparse row for each label, as `tree.features` chooses.

Rows may have any length or be empty; clustering scales them to length one. Only labels that occur in the training split
have a row, since only these are in a tree.

Legend: L labels, F features, V words, E dimension of the word vectors.
"""

import numpy as np
from scipy import sparse

from axml_ray.corpus.store import Corpus
from axml_ray.settings import LabelFeatures

NGRAM_LETTERS = (3, 5)
"""Shortest and longest letter n-gram of a label's name. Names are short: n-grams make "woodland" similar to "wood"."""


def clustering_features(corpus: Corpus, kind: LabelFeatures) -> sparse.csr_matrix:
    """Return features of the corpus's trained labels, float CSR [L, F].

    Args:
        corpus: a prepared corpus.
        kind: `tfidf`, the TF-IDF centroid of a label's documents (paper); `word_vectors`, the mean word vector of that
            centroid, less the mean of all labels; or `label_text`, TF-IDF of the letter n-grams of a label's name.
    """
    if kind == "label_text":
        return name_ngrams(corpus.labels.names[: corpus.trained])
    centroids = corpus.label_features()
    return centroids if kind == "tfidf" else vector_centroids(centroids, corpus.word_vectors())


def name_ngrams(names: tuple[str, ...]) -> sparse.csr_matrix:
    """Return the TF-IDF of the letter n-grams of each name, float64 CSR [L, F].

    A name without a letter or digit has an empty row.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import, and only this kind needs it

    cleaned = [" ".join(_words(name)) for name in names]
    if not any(cleaned):
        return sparse.csr_matrix((len(names), 1))  # the vectorizer refuses an empty vocabulary
    return TfidfVectorizer(analyzer="char_wb", ngram_range=NGRAM_LETTERS, sublinear_tf=True).fit_transform(cleaned)


def vector_centroids(centroids: sparse.csr_matrix, vectors: np.ndarray) -> sparse.csr_matrix:
    """Return the mean word vector of each label, weighted by its TF-IDF, less the mean of all labels.

    Args:
        centroids: TF-IDF centroids, float32 CSR [L, V].
        vectors: word vectors, float32 [V, E].

    Returns:
        float32 CSR [L, E] with all values stored; zero for a label without features.
    """
    from sklearn.preprocessing import normalize  # slow to import, and only this kind needs it

    dense = normalize(centroids @ vectors)
    known = dense.any(axis=1)
    if known.any():
        # Every text has the frequent words, so all labels share their direction, which tells none of them apart.
        dense[known] -= dense[known].mean(axis=0)
    return sparse.csr_matrix(dense)


def _words(name: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
