import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from label_centroids import label_centroids

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_features import bag_of_words

# Words 0 and 1 are padding and unknown.
TOKENS = [[2, 3, 2, 1, 2], [3, 4], [1, 1], [5, 4, 1, 5, 2]]
LABELS = [[0, 1], [0], [2], [1]]


def literal(tokens: list[list[int]], labels: list[list[int]], words: int, trained: int) -> np.ndarray:
    """The definition, word by word, float64 dense: (1 + ln tf) · (1 + ln((1 + n) / (1 + df)))."""
    documents = np.zeros((len(tokens), words))
    for row, document in enumerate(tokens):
        for word in range(2, words):
            tf = document.count(word)
            df = sum(word in other for other in tokens)
            if tf:
                documents[row, word] = (1 + np.log(tf)) * (1 + np.log((1 + len(tokens)) / (1 + df)))
    centroids = np.zeros((trained, words))
    for row, given_labels in enumerate(labels):
        length = np.linalg.norm(documents[row])
        for label in given_labels:
            centroids[label] += documents[row] / length if length else 0
    for centroid in centroids:
        length = np.linalg.norm(centroid)
        centroid /= length or 1
    return centroids


def test_counts_leave_out_padding_and_unknown_words() -> None:
    counts = bag_of_words(Ragged.from_rows(TOKENS), 6)
    assert counts.dtype == np.float32
    expected = [[0, 0, 3, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0] * 6, [0, 0, 1, 0, 1, 2]]
    np.testing.assert_array_equal(counts.toarray(), expected)
    assert counts.nnz == 7


def test_the_order_of_the_tokens_is_left_alone() -> None:
    tokens = Ragged.from_rows(TOKENS)
    before = tokens.values.copy()
    label_centroids(tokens, Ragged.from_rows(LABELS), 6, 3)
    np.testing.assert_array_equal(tokens.values, before)


def test_centroids_are_as_defined() -> None:
    centroids = label_centroids(Ragged.from_rows(TOKENS), Ragged.from_rows(LABELS), 6, 3)
    assert (centroids.format, centroids.dtype, centroids.shape) == ("csr", np.float32, (3, 6))
    np.testing.assert_allclose(centroids.toarray(), literal(TOKENS, LABELS, 6, 3), atol=1e-6)
    lengths = np.linalg.norm(centroids.toarray(), axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 0], atol=1e-6)  # label 2 has no known word


def ragged(lengths: st.SearchStrategy[int], least: int, most: int) -> st.SearchStrategy[list[list[int]]]:
    row = lengths.flatmap(lambda n: arrays.arrays(np.int32, n, elements=st.integers(least, most)))
    return st.lists(row.map(lambda row: row.tolist()), min_size=6, max_size=6)


@settings(max_examples=100, deadline=None)
@given(tokens=ragged(st.integers(1, 8), 1, 9), labels=ragged(st.integers(0, 3), 0, 4))
def test_centroids_of_any_corpus_are_as_defined(tokens: list[list[int]], labels: list[list[int]]) -> None:
    labels = [sorted(set(row)) for row in labels]
    centroids = label_centroids(Ragged.from_rows(tokens), Ragged.from_rows(labels), 10, 5)
    np.testing.assert_allclose(centroids.toarray(), literal(tokens, labels, 10, 5), atol=2e-6)
