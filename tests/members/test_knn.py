"""Scores of the nearest training texts against their formula. Run: pytest tests/members/test_knn.py"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from members.small_texts import LABELS, VOCABULARY, WORDS, WORDS_ALONE, inputs, read_arrays
from safetensors.numpy import save_file
from scipy import sparse

from axml_ray.core.array_file import key_of
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members import knn as module
from axml_ray.members.featurizer import Featurizer
from axml_ray.members.knn import ABOUT, FILE, KnnConfig, NearestNeighbours

TRAINED = 5
FOUR = KnnConfig(neighbours=4, features=WORDS_ALONE)
FEATURIZER = Featurizer.fit(Ragged.from_rows([[2, 3]]), VOCABULARY[:4], WORDS_ALONE)
"""For tests that give feature rows themselves."""


def with_ones(rows: np.ndarray) -> sparse.csr_matrix:
    return sparse.csr_matrix(np.c_[rows, np.ones(len(rows))].astype(np.float32))


def of(rows: np.ndarray | sparse.csr_matrix, labels: list[list[int]], k: int) -> NearestNeighbours:
    rows = rows if sparse.issparse(rows) else with_ones(rows)
    return NearestNeighbours.of([rows], Ragged.from_rows(labels), TRAINED, k, FEATURIZER)


def literal_scores(
    texts: np.ndarray, training: np.ndarray, labels: list[list[int]], features: int, k: int
) -> np.ndarray:
    """float64 [N, L], by the module's formula."""

    def cut(row: np.ndarray) -> np.ndarray:
        row = np.where(row >= np.sort(row)[-min(features, len(row))], row, 0)
        return row / (np.linalg.norm(row) or 1)

    known, scores = [cut(row) for row in training], np.zeros((len(texts), TRAINED))
    for row, text in enumerate(texts):
        cosines = [float(cut(text) @ other) for other in known]
        order = sorted(range(len(cosines)), key=lambda place: -cosines[place])
        near = [place for place in order[:k] if cosines[place] > 0]
        for place in near:
            for label in labels[place]:
                if label < TRAINED:
                    scores[row, label] += cosines[place] ** 4 / sum(cosines[other] ** 4 for other in near)
    return scores


@given(st.data(), st.integers(1, 6), st.integers(0, 4), st.integers(1, 5), st.integers(1, 7))
def test_scores_are_the_formula(data: st.DataObject, documents: int, texts: int, features: int, k: int) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    known, new = (random.uniform(0.5, 1, (n, 4)) * random.integers(0, 2, (n, 4)) for n in (documents, texts))
    labels = [sorted(data.draw(st.sets(st.integers(0, TRAINED + 1), max_size=3))) for _ in range(documents)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEATURES", features)
        patch.setattr(module, "BLOCK_PAIRS", data.draw(st.sampled_from([1, 3, 1 << 22])))
        scores = of(known, labels, k).scores(with_ones(new))
    assert scores.shape == (texts, TRAINED) and scores.dtype == np.float32
    np.testing.assert_allclose(scores.toarray(), literal_scores(new, known, labels, features, k), rtol=1e-3, atol=1e-6)


def test_of_equally_similar_texts_the_first_count() -> None:
    rows = with_ones(np.array([[0, 1], [3, 4], [3, 4], [3, 4.0]]))
    scores = of(rows, [[0], [1], [2], [3]], 2).scores(rows[3])
    np.testing.assert_allclose(scores.toarray(), [[0, 0.5, 0.5, 0, 0]])


def test_no_score_is_above_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that thousands of neighbours have gets the sum of their shares, which float32 rounds."""
    monkeypatch.setattr(module, "COMMON_TEXTS", 3_000)
    rows = np.random.default_rng(0).random((3_000, 4)).astype(np.float32)
    scores = of(rows, [[0]] * 3_000, 3_000).scores(with_ones(rows[:50]))
    assert 0.999 < scores.max() <= 1


def test_features_of_every_tenth_text_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMON_TEXTS", 2)
    rows = np.eye(40, 40) + np.eye(40)[:, [0]].T * 0.5  # the first feature is in all, each has one of its own
    rows[:4, 1] = 1  # and four of forty have the second
    texts = np.diff(of(rows, [[0]] * 40, 20).texts.indptr)
    assert not texts[0] and texts[1] == 4 and (texts[2:] == 1).all()
    monkeypatch.setattr(module, "COMMON_TEXTS", 40)
    assert np.diff(of(rows, [[0]] * 40, 20).texts.indptr)[0] == 40


@given(st.integers(1, 40))
def test_blocks_of_training_texts_change_nothing(size: int) -> None:
    tokens, labels = training_texts()
    featurizer = Featurizer.fit(tokens, VOCABULARY, WORDS_ALONE)
    rows = featurizer.matrix(tokens)
    blocks = [rows[first : first + size] for first in range(0, len(tokens), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COMMON_TEXTS", 5)
        whole, parts = (NearestNeighbours.of(some, labels, LABELS, 4, featurizer) for some in ([rows], blocks))
    assert (whole.texts != parts.texts).nnz == 0 and whole.texts.nnz == parts.texts.nnz > 0


@pytest.fixture(scope="module")
def member() -> NearestNeighbours:
    tokens, labels = training_texts()
    featurizer = Featurizer.fit(tokens, VOCABULARY, WORDS_ALONE)
    return NearestNeighbours.of([featurizer.matrix(tokens)], labels, LABELS, 4, featurizer)


def training_texts() -> tuple[Ragged, Ragged]:
    random = np.random.default_rng(3)
    labels = [np.unique(random.integers(0, LABELS + 2, random.integers(1, 4))) for _ in range(90)]
    tokens = [np.r_[2 + 2 * row % 50, random.integers(1, WORDS, 5)] for row in labels]
    return Ragged.from_rows(tokens), Ragged.from_rows(labels)


def new_texts() -> Ragged:
    """Twenty texts much like training ones, and two without a known word."""
    tokens, _ = training_texts()
    rows = [np.r_[row, row[:1]] for row in tokens.take(np.arange(20))]
    return Ragged.from_rows([*rows, np.array([0, 1]), np.array([1])])


def test_ranks_by_the_scores(member: NearestNeighbours) -> None:
    tokens = new_texts()
    scores = member.scores(member.featurizer.matrix(tokens)).toarray()
    assert scores[:20].any(axis=1).all() and not scores[20:].any()
    given_labels = np.array([5, 0, 17])
    assert np.array_equal(member.score(TextViews(tokens), given_labels), scores[:, given_labels])
    labels, points = member.rank(TextViews(tokens), 6)
    assert (labels.dtype, points.dtype, labels.shape) == (np.int32, np.float32, (len(tokens), 6))
    for row, own in enumerate(scores):
        best = [label for label in np.lexsort((np.arange(LABELS), -own))[:6] if own[label] > 0]
        assert labels[row].tolist() == best + [-1] * (6 - len(best))
        assert points[row].tolist() == own[best].tolist() + [0.0] * (6 - len(best))


def test_a_text_is_scored_by_itself(member: NearestNeighbours) -> None:
    tokens = new_texts()
    labels, scores = member.rank(TextViews(tokens), 6)
    for row in range(len(tokens)):
        one, points = member.rank(TextViews(tokens.take(np.array([row]))), 6)
        assert np.array_equal(one[0], labels[row]) and np.array_equal(points[0], scores[row])
    nothing = TextViews(tokens.take(np.array([], np.int64)))
    assert [each.shape for each in member.rank(nothing, 6)] == [(0, 6), (0, 6)]
    assert member.score(nothing, np.arange(3)).shape == (0, 3)


def test_a_file_keeps_everything(member: NearestNeighbours, tmp_path: Path) -> None:
    path, rows = tmp_path / FILE, member.featurizer.matrix(new_texts())
    assert key_of(path, ABOUT) is None
    member.save(path, "its key")
    assert key_of(path, ABOUT) == "its key"
    opened = NearestNeighbours.load(tmp_path, FOUR, inputs(member.featurizer))
    assert (opened.scores(rows) != member.scores(rows)).nnz == 0
    fewer = NearestNeighbours.load(tmp_path, FOUR.model_copy(update={"neighbours": 1}), inputs(member.featurizer))
    assert (fewer.scores(rows) != member.scores(rows)).nnz > 0
    path.unlink()
    with pytest.raises(FileNotFoundError):
        NearestNeighbours.load(tmp_path, FOUR, inputs(member.featurizer))


def test_damage_to_a_file_is_refused(member: NearestNeighbours, tmp_path: Path) -> None:
    path = tmp_path / FILE
    member.save(path, "its key")

    def refused(said: str, featurizer: Featurizer | None = member.featurizer, labels: int = LABELS) -> None:
        with pytest.raises(ValueError, match=rf"texts\.safetensors holds no training texts of these.*{said}"):
            NearestNeighbours.load(tmp_path, FOUR, inputs(featurizer, labels))

    refused("rows", featurizer=FEATURIZER)
    refused("labels beyond the 3", labels=3)
    arrays, metadata = read_arrays(path)
    for name, array, said in (
        ("texts", arrays["texts"] + np.int32(500), "columns beyond"),
        ("offsets", arrays["offsets"][::-1].copy(), "rows"),
        ("values", arrays["values"] * np.float32(np.nan), "finite"),
        ("values", arrays["values"] * np.float32(1e30), "length one"),
        ("values", -arrays["values"], "length one"),
        ("values", arrays["values"].astype(np.float64), "other types"),
        ("labels", arrays["labels"] - np.int32(9), "labels beyond the 24"),
        ("labels.offsets", np.zeros(1, np.int64), "labels beyond the 24"),
        ("labels.offsets", arrays["labels.offsets"][:-1], "labels beyond the 24"),
    ):
        save_file({**arrays, name: array}, path, metadata)
        refused(said)
    save_file({name: array for name, array in arrays.items() if name != "labels"}, path, metadata)
    refused("labels")
    save_file(arrays, path, {**metadata, "format": "axml-ray linear classifiers"})
    refused("its format is 'axml-ray linear classifiers'")
    save_file(arrays, path, metadata)
    path.write_bytes(path.read_bytes()[:-8])
    assert key_of(path, ABOUT) is None
    refused("")


def test_a_featurizer_is_needed(member: NearestNeighbours, tmp_path: Path) -> None:
    member.save(tmp_path / FILE, "its key")
    with pytest.raises(ValueError, match="featurizer"):
        NearestNeighbours.load(tmp_path, FOUR, inputs(None))
