"""Labels by their names in a text, against the formula. Run: pytest tests/members/test_label_names.py"""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from members.name_tries import TRAINED, Names, literal_pairs, names_of, texts_of, trie_of
from members.small_texts import LABELS, WORDS, inputs, read_arrays
from pydantic import ValidationError
from safetensors.numpy import save_file

from axml_ray.core.array_file import key_of
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members import label_names as module
from axml_ray.members.label_names import ABOUT, FILE, LabelNames
from axml_ray.members.name_trie import Pairs, Trie
from axml_ray.settings.members import LabelNamesSettings


@given(names_of, texts_of, texts_of, st.integers(0, 1 << 30))
def test_probabilities_are_the_formula(names: Names, known: list[list[int]], new: list[list[int]], seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = [np.flatnonzero(random.random(TRAINED + 1) < 0.4).tolist() for _ in known]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_WORDS", int(random.choice([1, 30, 1 << 22])))
        member = LabelNames.of(trie_of(names), Ragged.from_rows(known), Ragged.from_rows(labels), TRAINED)
        scores = member.scores(Ragged.from_rows(new))
    assert scores.shape == (len(new), TRAINED) and scores.dtype == np.float32
    pairs = literal_pairs(names, known)
    m = [sum(label == other for _, other in pairs) for label in range(TRAINED)]
    h = [sum(label == other and label in labels[row] for row, other in pairs) for label in range(TRAINED)]
    c = [sum(label in row for row in labels) for label in range(TRAINED)]
    assert (member.named.tolist(), member.true.tolist(), member.counts.tolist()) == (m, h, c)
    total = max(1, sum(m))
    r = min(max(sum(h) / total, 0.5 / total), 1 - 0.5 / total) if total > 1 else 0.5
    for (row, label), (lead, times, several, whole, words) in literal_pairs(names, new).items():
        q = (h[label] + 5 * r) / (m[label] + 5)
        x = [math.log(q / (1 - q)), math.log(1 + m[label]), math.log(1 + c[label]), lead, math.log(times)]
        logit = float(np.dot([*x, several, whole, math.log(words), 1], member.coefficients))
        assert scores[row, label] == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-5)
    assert scores.nnz == len(literal_pairs(names, new))


def test_learning_leaves_a_text_out_of_its_own_counts() -> None:
    """A name is in one text, which has its label: no other has, so nothing is learned from it."""
    alone = LabelNames.of(trie_of([(0, [1])]), Ragged.from_rows([[1], [4]]), Ragged.from_rows([[0], [1]]), TRAINED)
    assert alone.coefficients.tolist() == [1, *[0] * 8]
    texts, own = Ragged.from_rows([[1], [1, 5], [4]]), Ragged.from_rows([[0], [0], [3]])
    both = LabelNames.of(trie_of([(0, [1]), (1, [4])]), texts, own, TRAINED)
    pairs = Pairs.of(both.trie, texts, TRAINED)
    assert pairs.labels.tolist() == [0, 0, 1]
    features = both._features(pairs, pairs.true(own))
    r = 2 / 3
    q = [(1 + 5 * r) / 6, (1 + 5 * r) / 6, 5 * r / 5]  # one other text names label 0 and has it, none names label 1
    np.testing.assert_allclose(features[:, 0], [math.log(each / (1 - each)) for each in q])
    np.testing.assert_allclose(features[:, 1:3], np.log1p([[1, 1], [1, 1], [0, 0]]))


def test_the_worth_of_names_is_learned() -> None:
    """One name is always the subject where it is in the title, and seldom elsewhere; another never is."""
    random = np.random.default_rng(1)
    texts, labels = [], []
    for subject, other, late in product([0, 1], [0, 1], [0, 1]):
        for _ in range(25):
            text = random.choice([0, 4], 30)
            if other:
                text[random.integers(30)] = 5
            if subject:
                text[20 if late else 2] = 1
            texts.append(text)
            labels.append([0] * (subject and (not late or random.random() < 0.1)) + [1] * (random.random() < 0.1))
    member = LabelNames.of(trie_of([(0, [1]), (1, [5])]), Ragged.from_rows(texts), Ragged.from_rows(labels), TRAINED)
    plain = [0] * 30
    titled, elsewhere, never = plain.copy(), plain.copy(), plain.copy()
    titled[3], elsewhere[25], never[3] = 1, 1, 5
    scores = member.scores(Ragged.from_rows([titled, elsewhere, never, plain])).toarray()
    assert scores[0, 0] > 0.8 and scores[1, 0] < 0.4 and scores[2, 1] < 0.5 and not scores[3].any()


def test_a_regression_learns_from_so_many_texts_at_most() -> None:
    texts, labels = Ragged.from_rows([[1], [1, 4], [1, 5], [4, 1]] * 9), Ragged.from_rows([[0], [0], [1], [1]] * 9)
    trie = trie_of([(0, [1]), (1, [4])])
    whole, part = (LabelNames.of(trie, texts, labels, TRAINED, most) for most in (len(texts), 4))
    assert whole.named.tolist() == part.named.tolist()  # counts are of all texts
    assert whole.coefficients.tolist() != part.coefficients.tolist()


@pytest.fixture(scope="module")
def member() -> LabelNames:
    """Each label is named by a word that is in the texts that have it."""
    random = np.random.default_rng(3)
    labels = [np.unique(random.integers(0, LABELS + 2, random.integers(1, 4))) for _ in range(90)]
    tokens = [np.r_[2 + 2 * row % 50, random.integers(1, WORDS, 5)] for row in labels]
    names = Ragged.from_rows([[2 + 2 * label % 50] for label in range(LABELS)])
    trie = Trie.of(names, np.arange(LABELS, dtype=np.int32), np.arange(WORDS, dtype=np.int32))
    return LabelNames.of(trie, Ragged.from_rows(tokens), Ragged.from_rows(labels), LABELS)


def new_texts() -> Ragged:
    random = np.random.default_rng(4)
    rows = [np.r_[2 + 2 * random.integers(0, LABELS, 2), random.integers(1, WORDS, 5)] for _ in range(20)]
    return Ragged.from_rows([*rows, np.array([0, 1]), np.array([1])])


def test_ranks_by_the_probabilities(member: LabelNames) -> None:
    tokens = new_texts()
    scores = member.scores(tokens).toarray()
    assert (scores[:20] > 0.1).any(axis=1).all() and not scores[20:].any()
    given_labels = np.array([5, 0, 17])
    assert np.array_equal(member.score(TextViews(tokens), given_labels), scores[:, given_labels])
    labels, points = member.rank(TextViews(tokens), 6)
    assert (labels.dtype, points.dtype, labels.shape) == (np.int32, np.float32, (len(tokens), 6))
    for row, own in enumerate(scores):
        best = [label for label in np.lexsort((np.arange(LABELS), -own))[:6] if own[label] > 0]
        assert labels[row].tolist() == best + [-1] * (6 - len(best))
        assert points[row].tolist() == own[best].tolist() + [0.0] * (6 - len(best))
        one, alone = member.rank(TextViews(tokens.take(np.array([row]))), 6)
        assert np.array_equal(one[0], labels[row]) and np.array_equal(alone[0], points[row])
    nothing = TextViews(tokens.take(np.array([], np.int64)))
    assert [each.shape for each in member.rank(nothing, 6)] == [(0, 6), (0, 6)]


def test_a_file_keeps_everything(member: LabelNames, tmp_path: Path) -> None:
    path = tmp_path / FILE
    assert key_of(path, ABOUT) is None
    member.save(path, "its key")
    assert key_of(path, ABOUT) == "its key"
    opened = LabelNames.load(tmp_path, None, inputs())
    assert (opened.scores(new_texts()) != member.scores(new_texts())).nnz == 0
    path.unlink()
    with pytest.raises(FileNotFoundError):
        LabelNames.load(tmp_path, None, inputs())


def test_damage_to_a_file_is_refused(member: LabelNames, tmp_path: Path) -> None:
    path = tmp_path / FILE
    member.save(path, "its key")

    def refused(said: str, labels: int = LABELS, words: int = WORDS) -> None:
        with pytest.raises(ValueError, match=rf"names\.safetensors holds no names of these words and labels: .*{said}"):
            LabelNames.load(tmp_path, None, inputs(labels=labels, words=words))

    refused("stems of 59", words=WORDS - 1)
    refused("labels beyond the 23", labels=LABELS - 1)
    refused("counts of 25", labels=LABELS + 1)
    arrays, metadata = read_arrays(path)
    for name, array, said in (
        ("stems", arrays["stems"] - np.int32(1), "stems of 60"),
        ("stems", arrays["stems"].astype(np.int64), "stems of 60"),
        ("keys", arrays["keys"][::-1].copy(), "steps to 25 states"),
        ("keys", arrays["keys"][:-1], "steps to 25 states"),
        ("targets", arrays["targets"] + np.int32(1), "beyond the 25 states"),
        ("targets", arrays["targets"] * np.int32(0), "beyond the 25 states"),
        ("targets", arrays["targets"].astype(np.int64), "steps to 25 states"),
        ("labels", arrays["labels"] + np.int32(1), "beyond the 24"),
        ("labels.offsets", np.zeros(1, np.int64), "beyond the 24"),
        ("named", arrays["named"] - 99, "counts of 24"),
        ("counts", arrays["counts"][:-1], "counts of 24"),
        ("true", arrays["true"] + 99, "more texts"),
        ("coefficients", arrays["coefficients"] * np.nan, "9 coefficients"),
        ("coefficients", arrays["coefficients"][:-1], "9 coefficients"),
    ):
        save_file({**arrays, name: array}, path, metadata)
        refused(said)
    save_file({name: array for name, array in arrays.items() if name != "true"}, path, metadata)
    refused("true")
    save_file(arrays, path, {**metadata, "format": "axml-ray linear classifiers"})
    refused("its format is 'axml-ray linear classifiers'")
    save_file(arrays, path, metadata)
    path.write_bytes(path.read_bytes()[:-8])
    assert key_of(path, ABOUT) is None
    refused("")


def test_stemmers_are_snowballs() -> None:
    with pytest.raises(ValidationError, match="german"):
        LabelNamesSettings(stemmer="klingon")
    assert LabelNamesSettings(stemmer=None).stemmer is None
