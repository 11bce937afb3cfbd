"""Votes of the nearest training texts against their formula. Run: pytest tests/linear/test_neighbours.py"""

from pathlib import Path

import numpy as np
import pytest
from axml_ray.linear import neighbours as module
from axml_ray.linear.checked import fingerprint_of
from axml_ray.linear.classifiers import LinearTree
from axml_ray.linear.fitting import fit_linear
from axml_ray.linear.neighbours import ABOUT, Neighbours
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy import sparse
from test_linear import DEEP, LABELS, VOCABULARY, WORDS

from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings

TRAINED = 5


def with_ones(rows: np.ndarray) -> sparse.csr_matrix:
    return sparse.csr_matrix(np.c_[rows, np.ones(len(rows))].astype(np.float32))


def literal_votes(
    texts: np.ndarray, training: np.ndarray, labels: list[list[int]], features: int, k: int
) -> np.ndarray:
    """float64 [N, L], by the module's formula."""

    def cut(row: np.ndarray) -> np.ndarray:
        row = np.where(row >= np.sort(row)[-min(features, len(row))], row, 0)
        return row / (np.linalg.norm(row) or 1)

    known, found = [cut(row) for row in training], np.zeros((len(texts), TRAINED))
    for row, text in enumerate(texts):
        like = [float(cut(text) @ other) for other in known]
        near = [place for place in sorted(range(len(like)), key=lambda place: -like[place])[:k] if like[place] > 0]
        for place in near:
            for label in labels[place]:
                if label < TRAINED:
                    found[row, label] += like[place] ** 4 / sum(like[other] ** 4 for other in near)
    return found


@given(st.data(), st.integers(1, 6), st.integers(0, 4), st.integers(1, 5), st.integers(1, 7))
def test_votes(data: st.DataObject, documents: int, texts: int, features: int, k: int) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    known, asked = (random.uniform(0.5, 1, (n, 4)) * random.integers(0, 2, (n, 4)) for n in (documents, texts))
    labels = [sorted(data.draw(st.sets(st.integers(0, TRAINED + 1), max_size=3))) for _ in range(documents)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEATURES", features)
        patch.setattr(module, "MOST_LIKENESSES", data.draw(st.sampled_from([1, 1 << 22])))
        neighbours = Neighbours.fit(with_ones(known), Ragged.from_rows(labels), TRAINED, k, 0.3)
        votes = neighbours.votes(with_ones(asked))
    assert votes.shape == (texts, TRAINED) and votes.dtype == np.float32
    np.testing.assert_allclose(votes.toarray(), literal_votes(asked, known, labels, features, k), rtol=1e-3, atol=1e-6)


def test_the_first_of_equals_votes() -> None:
    rows = with_ones(np.array([[0, 1], [3, 4], [3, 4], [3, 4.0]]))
    votes = Neighbours.fit(rows, Ragged.from_rows([[0], [1], [2], [3]]), TRAINED, 2, 0.3).votes(rows[3])
    np.testing.assert_allclose(votes.toarray(), [[0, 0.5, 0.5, 0, 0]])


@pytest.fixture(scope="module")
def parts() -> tuple[LinearTree, Neighbours, Ragged]:
    random = np.random.default_rng(3)
    labels = [np.unique(random.integers(0, LABELS + 2, random.integers(1, 4))) for _ in range(90)]
    tokens = Ragged.from_rows([np.r_[2 + 2 * row % 50, random.integers(1, WORDS, 5)] for row in labels])
    linear = fit_linear(DEEP, tokens, Ragged.from_rows(labels), VOCABULARY, LinearSettings(cluster_size=None))
    neighbours = Neighbours.fit(linear.features.rows(tokens), Ragged.from_rows(labels), LABELS, 4, 0.25)
    texts = [*(np.r_[row, row[:1]] for row in tokens.take(np.arange(20))), np.array([0, 1]), np.array([1])]
    return linear, neighbours, Ragged.from_rows(texts)


@pytest.fixture
def file(parts: tuple[LinearTree, Neighbours, Ragged], tmp_path: Path) -> Path:
    path = tmp_path / "neighbours.safetensors"
    parts[1].save(path, "mark")
    return path


def test_features_of_every_tenth_text_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 2)
    rows = np.eye(40, 40) + np.eye(40)[:, [0]].T * 0.5  # the first feature is in all, each has one of its own
    rows[:4, 1] = 1  # and four of forty have the second
    found = Neighbours.fit(with_ones(rows), Ragged.from_rows([[0]] * 40), TRAINED, 20, 0.2)
    held = np.diff(found.texts.indptr)
    assert not held[0] and held[1] == 4 and (held[2:] == 1).all()
    monkeypatch.setattr(module, "FEW", 40)
    assert (
        np.diff(Neighbours.fit(with_ones(rows), Ragged.from_rows([[0]] * 40), TRAINED, 20, 0.2).texts.indptr)[0] == 40
    )


class TestBesideClassifiers:
    def test_scores_and_rankings_are_shares(self, parts: tuple[LinearTree, Neighbours, Ragged], file: Path) -> None:
        linear, neighbours, tokens = parts
        both, labels = linear.beside(file, 4, 0.25), np.array([5, 0, 17])
        votes = neighbours.votes(linear.features.rows(tokens)).toarray().astype(np.float64)
        assert votes[:20].any(axis=1).all() and not votes[20:].any()
        expected = 0.75 * linear.score(linear.see(tokens), labels) + 0.25 * votes[:, labels]
        np.testing.assert_allclose(both.score(both.see(tokens), labels), expected, rtol=1e-5, atol=1e-7)
        own, points = linear.find(linear.see(tokens), 6, children=9)
        mixed, joined = both.find(both.see(tokens), 6, children=9)
        assert mixed.dtype == np.int32 and joined.dtype == np.float32
        for row in range(len(tokens)):
            total = 0.25 * votes[row]
            total[own[row][own[row] >= 0]] += 0.75 * points[row][own[row] >= 0]
            best = np.lexsort((np.arange(LABELS), -total.astype(np.float32)))[:6]
            best = best[total[best] > 0]
            np.testing.assert_allclose(joined[row], np.pad(total[best], (0, 6 - len(best))), rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(total[mixed[row][: len(best)]], total[best], rtol=1e-5)
            assert (mixed[row][len(best) :] == -1).all()

    def test_a_text_is_scored_by_itself(self, parts: tuple[LinearTree, Neighbours, Ragged], file: Path) -> None:
        linear, _, tokens = parts
        both = linear.beside(file, 4, 0.25)
        labels, scores = both.find(both.see(tokens), 6)
        for row in range(len(tokens)):
            one, points = both.find(both.see(tokens.take(np.array([row]))), 6)
            assert np.array_equal(one[0], labels[row]) and np.array_equal(points[0], scores[row])
        nothing = both.find(both.see(tokens.take(np.array([], np.int64))), 6)
        assert nothing[0].shape == nothing[1].shape == (0, 6)

    def test_a_file_keeps_everything_and_is_checked(
        self, parts: tuple[LinearTree, Neighbours, Ragged], file: Path
    ) -> None:
        linear, neighbours, tokens = parts
        assert fingerprint_of(file, ABOUT) == "mark" and fingerprint_of(file.with_name("none"), ABOUT) is None
        rows, features = linear.features.rows(tokens), len(linear.features)
        opened = Neighbours.load(file, features, LABELS, 4, 0.25)
        assert (opened.votes(rows) != neighbours.votes(rows)).nnz == 0
        for sizes in ((features - 1, LABELS), (features, 3)):
            with pytest.raises(ValueError, match=r"neighbours\.safetensors holds no training texts of these features"):
                Neighbours.load(file, *sizes, 4, 0.25)
        with safe_open(file, framework="np") as opened_file:
            metadata = opened_file.metadata()
            arrays = {name: opened_file.get_tensor(name) for name in opened_file.keys()}  # noqa: SIM118
        wrong = file.with_name("wrong.safetensors")
        for name, array, said in (
            ("texts", arrays["texts"] + np.int32(500), "columns beyond"),
            ("offsets", arrays["offsets"][::-1].copy(), "rows"),
            ("values", arrays["values"] * np.float32(np.nan), "finite"),
            ("values", arrays["values"] * np.float32(1e30), "length one"),
            ("labels.offsets", np.zeros(1, np.int64), "labels of the 24|columns beyond the 0"),
            ("values", arrays["values"].astype(np.float64), "other types"),
            ("labels", arrays["labels"] - np.int32(9), "labels of the 24"),
            ("labels.offsets", arrays["labels.offsets"][:-1], "labels of the 24"),
        ):
            save_file({**arrays, name: array}, wrong, metadata)
            with pytest.raises(ValueError, match=f"wrong.safetensors holds no training texts.*{said}"):
                Neighbours.load(wrong, features, LABELS, 4, 0.25)
        linear.save(file, "mark")
        assert fingerprint_of(file, ABOUT) is None
        with pytest.raises(ValueError, match="its format is 'axml-ray linear classifiers'"):
            Neighbours.load(file, features, LABELS, 4, 0.25)
        with pytest.raises(FileNotFoundError):
            Neighbours.load(file.with_name("none"), features, LABELS, 4, 0.25)
