import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.preparation.passes import count_cooccurrences
from axml_ray.corpus.text import cooccurrence
from axml_ray.corpus.text.cooccurrence import WINDOW, cooccurrences, factorise, number_of_stripes, ppmi

WORDS = 31


def documents(seed: int = 0, words: int = WORDS, number: int = 60) -> list[list[int]]:
    """Random documents with a few frequent and many rare words, some empty or of one word."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 3 * WINDOW, number)
    return [
        (2 + rng.integers(0, words - 2, length) * rng.random(length) ** 2).astype(int).tolist() for length in lengths
    ]


def literal_counts(rows: list[list[int]]) -> Counter[tuple[int, int]]:
    counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        for here, word in enumerate(row):
            for there, context in enumerate(row):
                if 0 < abs(here - there) <= WINDOW:
                    counts[word, context] += WINDOW + 1 - abs(here - there)
    return counts


def literal_ppmi(counts: Counter[tuple[int, int]], words: int = WORDS) -> np.ndarray:
    of_word, of_context = Counter[int](), Counter[int]()
    for (word, context), count in counts.items():
        of_word[word] += count
        of_context[context] += count
    total = sum(count**0.75 for count in of_context.values())
    table = np.zeros((words, words))
    for (word, context), count in counts.items():
        table[word, context] = max(0, math.log(count * total / (of_word[word] * of_context[context] ** 0.75)))
    return table


def counted(directory: Path, rows: list[list[int]], stripes: int, files: int = 3, words: int = WORDS) -> list[Path]:
    """Count the contexts of documents in several Parquet files, in stripes."""
    parts = []
    for number in range(files):
        parts.append(directory / f"{number}.parquet")
        tokens = Ragged.from_rows(rows[number * len(rows) // files : (number + 1) * len(rows) // files])
        pq.write_table(pa.table({"tokens": tokens.to_arrow()}), parts[-1])
    paths = [directory / f"{stripes}-{stripe}.npz" for stripe in range(stripes)]
    for stripe in range(stripes):
        count_cooccurrences(stripe, paths, parts, words)
    return paths


@pytest.mark.parametrize("stripes", [1, 3, WORDS])
def test_counts_are_those_of_a_plain_loop(stripes: int) -> None:
    rows, found = documents(), Counter[tuple[int, int]]()
    parts = [Ragged.from_rows(rows[:20]), Ragged.from_rows(rows[20:])]
    for stripe in range(stripes):
        counts = cooccurrences(parts, stripe, stripes, WORDS).tocoo()
        assert counts.dtype == np.int64
        words = (stripe + counts.row * stripes).tolist()
        found.update(dict(zip(zip(words, counts.col.tolist(), strict=True), counts.data.tolist(), strict=True)))
    assert found == literal_counts(rows)


@pytest.mark.parametrize("stripes", [1, 4])
def test_ppmi_is_that_of_the_formula(tmp_path: Path, stripes: int) -> None:
    rows = documents()
    matrix = ppmi(counted(tmp_path, rows, stripes))
    assert (matrix.dtype, matrix.data.min() > 0) == (np.float32, True)
    order = np.concatenate([np.arange(stripe, WORDS, stripes) for stripe in range(stripes)])
    np.testing.assert_allclose(matrix.toarray(), literal_ppmi(literal_counts(rows))[order], rtol=1e-6)


@pytest.mark.parametrize("stripes", [1, 4])
def test_vectors_are_those_of_an_exact_svd(tmp_path: Path, stripes: int) -> None:
    rows = documents()
    exact = literal_ppmi(literal_counts(rows))
    left, singular, _ = np.linalg.svd(exact)
    known, vectors = factorise(counted(tmp_path, rows, stripes), 6, seed=0)
    assert (vectors.dtype, vectors.shape) == (np.float32, (known.sum(), 6))
    assert known.tolist() == exact.any(axis=1).tolist()
    assert vectors.std() == pytest.approx(cooccurrence.STANDARD_DEVIATION, rel=1e-5)
    expected = (left[:, :6] * singular[:6] ** 0.5)[known]
    expected *= cooccurrence.STANDARD_DEVIATION / expected.std()
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-2)


def test_vectors_depend_neither_on_threads_nor_on_files(tmp_path: Path) -> None:
    rows = documents(number=600, words=400)
    found = []
    for threads, files in ((1, 1), (2, 5)):
        directory = tmp_path / f"{threads}"
        directory.mkdir()
        with threadpool_limits(threads):
            known, vectors = factorise(counted(directory, rows, 2, files, words=400), 32, seed=0)
        found.append((known.tobytes(), vectors.tobytes()))
    assert found[0] == found[1]


def test_words_of_the_same_topic_get_like_vectors(tmp_path: Path) -> None:
    """Every other document is of words 2 to 101, those between of words 102 to 201."""
    rng = np.random.default_rng(0)
    rows = [(rng.integers(0, 100, 12) + 2 + 100 * (row % 2)).tolist() for row in range(2_000)]
    _, vectors = factorise(counted(tmp_path, rows, 2, words=202), 16, seed=0)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    within, across = (unit[:100] @ unit[:100].T).mean(), (unit[:100] @ unit[100:].T).mean()
    assert within > across + 0.3


def test_contexts_are_the_first_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = documents()
    whole = ppmi(counted(tmp_path, rows, 2))
    monkeypatch.setattr(cooccurrence, "MAX_CONTEXTS", 10)
    paths = counted(tmp_path, rows, 2)
    assert whole.shape == (WORDS, WORDS) and ppmi(paths).shape == (WORDS, 10)
    assert {word for word, context in literal_counts(rows) if context < 10} == _rows_of(paths)


def _rows_of(paths: list[Path]) -> set[int]:
    counts = [sparse.load_npz(path) for path in paths]
    return {stripe + len(paths) * int(row) for stripe, one in enumerate(counts) for row in one.nonzero()[0]}


def test_pairs_with_the_smallest_counts_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = documents()
    paths, counts = counted(tmp_path, rows, 1), literal_counts(rows)
    limit = len(counts) // 2
    monkeypatch.setattr(cooccurrence, "MAX_PAIRS", limit)
    least = min(count for count in counts.values() if sum(other >= count for other in counts.values()) <= limit)
    kept = np.zeros((WORDS, WORDS), dtype=bool)
    for pair, count in counts.items():
        kept[pair] = count >= least
    found = ppmi(paths).toarray()
    np.testing.assert_allclose(found, np.where(kept, literal_ppmi(counts), 0), rtol=1e-6)
    assert 0 < (found > 0).sum() <= limit


@pytest.mark.parametrize("rows", [[[]], [[1], [1]], [[2, 2]]])
def test_next_to_nothing_has_finite_vectors(tmp_path: Path, rows: list[list[int]]) -> None:
    known, vectors = factorise(counted(tmp_path, rows, 3, files=1, words=3), 4, seed=0)
    assert known.shape == (3,) and vectors.shape == (known.sum(), 4) and np.isfinite(vectors).all()


def test_tasks_are_bounded() -> None:
    assert number_of_stripes(0, 5) == 1
    assert number_of_stripes(10**9, 3) == 3
    assert number_of_stripes(10**9, 500_000) * cooccurrence.STRIPE_PAIRS >= 10**9 * 2 * WINDOW
