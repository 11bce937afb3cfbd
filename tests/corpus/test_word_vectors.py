from pathlib import Path

import numpy as np
import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.text.word_vectors import random_vectors, read_vectors

WORDS = ["<padding>", "<unknown>", "cat", "dog", "bird", "fish"]


def vector_file(tmp_path: Path, table: np.ndarray, vocabulary: str) -> Path:
    np.save(tmp_path / "v.npy", table)
    (tmp_path / "vocab.txt").write_bytes(vocabulary.encode())
    return tmp_path / "v.npy"


def test_random_vectors_fill_their_range() -> None:
    vectors = random_vectors(2_000, 10, seed=3)
    assert (vectors.shape, vectors.dtype) == ((2_000, 10), np.float32)
    assert (vectors[0] == 0).all()
    assert (np.abs(vectors) < 1).all()
    assert np.abs(vectors).max() > 0.99
    assert abs(vectors.mean()) < 0.02
    np.testing.assert_array_equal(vectors, random_vectors(2_000, 10, seed=3))
    assert not np.array_equal(vectors, random_vectors(2_000, 10, seed=4))


def test_vectors_of_a_file_go_to_their_words(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float16)
    vectors, coverage = read_vectors(vector_file(tmp_path, table, "dog\nhorse\ncat\n\x85\n"), WORDS, seed=1)
    assert (vectors.shape, vectors.dtype) == ((6, 3), np.float32)
    np.testing.assert_array_equal(vectors[3], table[0].astype(np.float32))
    np.testing.assert_array_equal(vectors[2], table[2].astype(np.float32))
    assert (vectors[0] == 0).all()
    assert coverage == pytest.approx(2 / 5)
    assert (vectors[[1, 4, 5]] != 0).all()


def test_unknown_words_have_the_spread_of_the_known_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["<padding>", "<unknown>", *(f"known{i}" for i in range(500)), *(f"unknown{i}" for i in range(500))]
    path = vector_file(tmp_path, rng.normal(scale=0.1, size=(500, 20)), "\n".join(words[2:502]))
    vectors, coverage = read_vectors(path, words, seed=1)
    assert coverage == pytest.approx(500 / 1001)
    assert vectors[502:].std() == pytest.approx(0.1, rel=0.02)
    again, _ = read_vectors(path, words, seed=1)
    np.testing.assert_array_equal(vectors, again)


def test_a_file_that_knows_no_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"v\.npy: knows none of the 6 words of the corpus"):
        read_vectors(vector_file(tmp_path, np.ones((1, 4)), "horse"), WORDS, seed=2)


@pytest.mark.parametrize(
    ("table", "vocabulary", "expected"),
    [
        (np.ones((2, 3)), "cat\n", "has shape (2, 3), "),
        (np.ones((2, 3)), "cat\n", "vocab.txt has 1 lines; expected one row a line"),
        (np.ones(3), "a\nb\nc\n", "expected an .npy array of floats with two dimensions"),
        (np.array([["a"]]), "a\n", "expected an .npy array of floats"),
        (np.array([[None]]), "a\n", "expected an .npy file and vocab.txt"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, table: np.ndarray, vocabulary: str, expected: str) -> None:
    path = vector_file(tmp_path, table, vocabulary)
    with pytest.raises(SettingsError) as caught:
        read_vectors(path, WORDS, seed=0)
    assert str(caught.value).startswith(f"corpus.word_vectors: {path}")
    assert expected in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"cat 0.1 0.2\n", b"PK\x03\x04"])
def test_what_is_no_array_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "glove.npy"
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "vocab.txt").write_text("cat\n")
    with pytest.raises(SettingsError, match=r"corpus\.word_vectors: .*glove\.npy.*expected an \.npy"):
        read_vectors(path, WORDS, seed=0)


def test_an_archive_of_arrays_is_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", np.ones((1, 2)))
    (tmp_path / "vocab.txt").write_text("cat\n")
    with pytest.raises(
        SettingsError, match=r"v\.npz: expected an archive of one file|v\.npz: expected lines of a word"
    ):
        read_vectors(tmp_path / "v.npz", WORDS, seed=0)


def test_a_missing_vocabulary_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones((1, 2)))
    with pytest.raises(SettingsError, match=r"vocab\.txt"):
        read_vectors(tmp_path / "v.npy", WORDS, seed=0)
