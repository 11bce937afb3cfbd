"""Names in texts, and what they are worth, against their definition. Run: pytest tests/linear/test_name_matches.py"""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from axml_ray.linear import name_matches as module
from axml_ray.linear.checked import fingerprint_of
from axml_ray.linear.classifiers import LinearTree
from axml_ray.linear.fitting import fit_linear
from axml_ray.linear.name_matches import ABOUT, LEAD, NameMatches, Pairs, Trie, stems_of, trie_of
from axml_ray.linear.neighbours import Neighbours
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.numpy import save_file
from test_linear import DEEP, LABELS, VOCABULARY, WORDS

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.tokenizer import Tokenizer
from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings

TRAINED = 6
STEMS = np.array([0, 1, 2, 2, 3, 4], np.int32)  # words 2 and 3 are two forms of one
Found = dict[tuple[int, int], tuple[bool, int, bool, bool, int]]
"""By document and label: lead, times, several, whole, words."""


def literal_pairs(names: list[tuple[int, list[int]]], texts: list[list[int]]) -> Found:
    found: Found = {}
    for document, text in enumerate(texts):
        spans = {
            (start, start + len(name), label)
            for label, name in names
            for start in range(len(text) - len(name) + 1)
            if all(STEMS[one] == STEMS[other] for one, other in zip(name, text[start:], strict=False))
        }
        for label in {label for *_, label in spans}:
            own = sorted((start, end) for start, end, whose in spans if whose == label)
            whole = any(
                not any(s <= start and end <= e and (s, e) != (start, end) for s, e, _ in spans) for start, end in own
            )
            lead, several = own[0][0] < LEAD, any(end - start > 1 for start, end in own)
            found[document, label] = (lead, len(own), several, whole, len(text))
    return found


texts_of = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=20), min_size=0, max_size=6)
names_of = st.lists(
    st.tuples(st.integers(0, TRAINED - 1), st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    max_size=7,
    unique_by=lambda name: (name[0], *STEMS[name[1]]),
)


def trie(names: list[tuple[int, list[int]]]) -> Trie:
    return Trie.of(
        Ragged.from_rows([name for _, name in names]), np.array([label for label, _ in names], np.int32), STEMS
    )


def as_found(pairs: Pairs) -> Found:
    columns = (pairs.lead, pairs.times, pairs.several, pairs.whole, pairs.words)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(zip(pairs.documents.tolist(), pairs.labels.tolist(), strict=True), values, strict=True))


@given(names_of, texts_of)
def test_names_are_found(names: list[tuple[int, list[int]]], texts: list[list[int]]) -> None:
    pairs = Pairs.of(trie(names), Ragged.from_rows(texts), TRAINED)
    found = as_found(pairs)
    assert found == literal_pairs(names, texts) and list(found) == sorted(found)


def test_lead_and_whole() -> None:
    names = [(0, [1]), (1, [1, 4]), (2, [5])]
    text = [5] * LEAD + [1, 4, 5, 2, 1]
    found = as_found(Pairs.of(trie(names), Ragged.from_rows([text[:-2], text]), TRAINED))
    assert found[0, 0] == (False, 1, False, False, LEAD + 3)  # only inside the longer name
    assert found[1, 0] == (False, 2, False, True, LEAD + 5)
    assert found[0, 1] == (False, 1, True, True, LEAD + 3) and found[0, 2] == (True, LEAD + 1, False, True, LEAD + 3)


@given(names_of, texts_of, texts_of, st.integers(0, 1 << 30))
def test_votes(names: list[tuple[int, list[int]]], known: list[list[int]], asked: list[list[int]], seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = [np.flatnonzero(random.random(TRAINED + 1) < 0.4).tolist() for _ in known]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_WORDS", int(random.choice([1, 30, 1 << 22])))
        matches = NameMatches.fit(trie(names), Ragged.from_rows(known), Ragged.from_rows(labels), TRAINED, 0.3, 10**6)
        votes = matches.votes(Ragged.from_rows(asked))
    assert votes.shape == (len(asked), TRAINED) and votes.dtype == np.float32
    pairs = literal_pairs(names, known)
    m = [sum(label == other for _, other in pairs) for label in range(TRAINED)]
    h = [sum(label == other and label in labels[row] for row, other in pairs) for label in range(TRAINED)]
    c = [sum(label in row for row in labels) for label in range(TRAINED)]
    assert (matches.named.tolist(), matches.true.tolist(), matches.counts.tolist()) == (m, h, c)
    total = max(1, sum(m))
    r = min(max(sum(h) / total, 0.5 / total), 1 - 0.5 / total) if total > 1 else 0.5
    for (row, label), (lead, times, several, whole, words) in literal_pairs(names, asked).items():
        q = (h[label] + 5 * r) / (m[label] + 5)
        x = [math.log(q / (1 - q)), math.log(1 + m[label]), math.log(1 + c[label]), lead, math.log(times)]
        logit = float(np.dot([*x, several, whole, math.log(words), 1], matches.coefficients))
        assert votes[row, label] == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-5)
    assert votes.nnz == len(literal_pairs(names, asked))


def test_learning_leaves_a_text_out_of_its_own_counts() -> None:
    """A name stands in one text, which has its label: no other has, so nothing is learned from it."""
    alone = NameMatches.fit(trie([(0, [1])]), Ragged.from_rows([[1], [4]]), Ragged.from_rows([[0], [1]]), TRAINED, 0.3)
    assert alone.coefficients.tolist() == [1, *[0] * 8]
    texts, own = Ragged.from_rows([[1], [1, 5], [4]]), Ragged.from_rows([[0], [0], [3]])
    both = NameMatches.fit(trie([(0, [1]), (1, [4])]), texts, own, TRAINED, 0.3)
    pairs = Pairs.of(both.trie, texts, TRAINED)
    assert pairs.labels.tolist() == [0, 0, 1]
    features = both._features(pairs, pairs.true(own))
    r = 2 / 3
    q = [(1 + 5 * r) / 6, (1 + 5 * r) / 6, 5 * r / 5]  # one other text names label 0 and has it, none names label 1
    np.testing.assert_allclose(features[:, 0], [math.log(each / (1 - each)) for each in q])
    np.testing.assert_allclose(features[:, 1:3], np.log1p([[1, 1], [1, 1], [0, 0]]))


def test_what_names_are_worth_is_learned() -> None:
    """One name is always the subject where it stands in the title, and seldom elsewhere; another never is."""
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
    matches = NameMatches.fit(
        trie([(0, [1]), (1, [5])]), Ragged.from_rows(texts), Ragged.from_rows(labels), TRAINED, 0.3
    )
    plain = [0] * 30
    titled, elsewhere, never = plain.copy(), plain.copy(), plain.copy()
    titled[3], elsewhere[25], never[3] = 1, 1, 5
    votes = matches.votes(Ragged.from_rows([titled, elsewhere, never, plain])).toarray()
    assert votes[0, 0] > 0.8 and votes[1, 0] < 0.4 and votes[2, 1] < 0.5 and not votes[3].any()


class TestNamesOfACorpus:
    TOKENIZER = Tokenizer.of_words(["whale", "whales", "shark", "n2", "deep", "sea", "mathematics"])

    def found(self, names: dict[str, str], text: str, stemmer: str | None = "english") -> list[int]:
        index = LabelIndex.build({"n1": 3, "n2": 2, "n3": 1}, ["n4"], names)
        names_trie = trie_of(index, self.TOKENIZER, 20, stemmer)
        return Pairs.of(names_trie, self.TOKENIZER.encode([text], 20), index.trained).labels.tolist()

    def test_plurals_are_found_by_stems(self) -> None:
        names = {"n1": "Whales", "n3": "Deep sea"}
        assert self.found(names, "a whale of the deep sea") == [0, 2]
        assert self.found(names, "a whale of the deep sea", None) == [2]

    def test_names_that_are_not_looked_for(self) -> None:
        names = {"n1": "Whale (Mathematics)", "n2": "Unheard-of shark", "n4": "Shark"}
        assert self.found(names, "whale shark unheard of shark") == [0]  # n2 has unknown words, n4 isn't trained

    def test_labels_are_their_own_names_where_none_are_given(self) -> None:
        assert self.found({}, "n2 deep") == [1]

    def test_stems(self) -> None:
        assert stems_of(["", "sea", "seas", "häuser"], "english").tolist() == [0, 1, 1, 2]
        assert stems_of(["sea", "seas"], None).tolist() == [0, 1]


@pytest.fixture(scope="module")
def parts() -> tuple[LinearTree, Neighbours, NameMatches, Ragged]:
    random = np.random.default_rng(3)
    labels = [np.unique(random.integers(0, LABELS + 2, random.integers(1, 4))) for _ in range(90)]
    tokens = Ragged.from_rows([np.r_[2 + 2 * row % 50, random.integers(1, WORDS, 5)] for row in labels])
    truth = Ragged.from_rows(labels)
    linear = fit_linear(DEEP, tokens, truth, VOCABULARY, LinearSettings(cluster_size=None))
    neighbours = Neighbours.fit(linear.features.rows(tokens), truth, LABELS, 4, 0.25)
    names = Ragged.from_rows([[2 + 2 * label % 50] for label in range(LABELS)])
    own = Trie.of(names, np.arange(LABELS, dtype=np.int32), np.arange(WORDS, dtype=np.int32))
    matches = NameMatches.fit(own, tokens, truth, LABELS, 0.35)
    return linear, neighbours, matches, Ragged.from_rows([*tokens.take(np.arange(20)), [0, 1], [1]])


@pytest.fixture
def file(parts: tuple[LinearTree, Neighbours, NameMatches, Ragged], tmp_path: Path) -> Path:
    path = tmp_path / "name_matches.safetensors"
    parts[2].save(path, "mark")
    return path


def test_beside_classifiers_and_neighbours(
    parts: tuple[LinearTree, Neighbours, NameMatches, Ragged], file: Path, tmp_path: Path
) -> None:
    linear, neighbours, matches, tokens = parts
    neighbours.save(tmp_path / "neighbours.safetensors", "mark")
    alone = linear.beside_names(file, 0.35)
    all_three = alone.beside(tmp_path / "neighbours.safetensors", 4, 0.25)
    names, near = matches.votes(tokens).toarray(), neighbours.votes(linear.features.rows(tokens)).toarray()
    own = linear.score(linear.see(tokens), np.arange(LABELS))
    assert (names[:20] > 0.1).any(axis=1).all() and not names[20:].any()
    for tree, expected in ((alone, 0.65 * own + 0.35 * names), (all_three, 0.4 * own + 0.35 * names + 0.25 * near)):
        np.testing.assert_allclose(tree.score(tree.see(tokens), np.arange(LABELS)), expected, rtol=1e-5, atol=1e-6)
        best, points = tree.find(tree.see(tokens), LABELS)
        for row in range(len(tokens)):
            there = best[row] >= 0
            np.testing.assert_allclose(points[row][there], expected[row][best[row][there]], rtol=1e-4, atol=1e-6)
            one, scores = tree.find(tree.see(tokens.take(np.array([row]))), LABELS)
            assert np.array_equal(one[0], best[row]) and np.array_equal(scores[0], points[row])
    assert alone.sees_like(linear.beside_names(file, 0.35))
    assert not alone.sees_like(linear) and not all_three.sees_like(alone)
    nothing = alone.find(alone.see(tokens.take(np.array([], np.int64))), 6)
    assert nothing[0].shape == nothing[1].shape == (0, 6)


def test_a_file_keeps_everything_and_is_checked(
    parts: tuple[LinearTree, Neighbours, NameMatches, Ragged], file: Path
) -> None:
    linear, _, matches, tokens = parts
    assert fingerprint_of(file, ABOUT) == "mark" and fingerprint_of(file.with_name("none"), ABOUT) is None
    opened = NameMatches.load(file, WORDS, LABELS, 0.35)
    assert (opened.votes(tokens) != matches.votes(tokens)).nnz == 0
    for sizes in ((WORDS - 1, LABELS), (WORDS, LABELS - 1)):
        with pytest.raises(ValueError, match=r"name_matches\.safetensors holds no names of these words and labels"):
            NameMatches.load(file, *sizes, 0.35)
    with safe_open(file, framework="np") as opened_file:
        metadata = opened_file.metadata()
        arrays = {name: opened_file.get_tensor(name) for name in opened_file.keys()}  # noqa: SIM118
    wrong = file.with_name("wrong.safetensors")
    for name, array, said in (
        ("stems", arrays["stems"] - np.int32(1), "stems of 60"),
        ("stems", arrays["stems"].astype(np.int64), "stems of 60"),
        ("keys", arrays["keys"][::-1].copy(), "steps to 25 states"),
        ("keys", arrays["keys"][:-1], "steps to 25 states"),
        ("targets", arrays["targets"] + np.int32(1), "beyond the 25 states"),
        ("targets", arrays["targets"] * np.int32(0), "beyond the 25 states"),
        ("labels", arrays["labels"] + np.int32(1), "of the 24 labels"),
        ("labels.offsets", np.zeros(1, np.int64), "of the 24 labels"),
        ("named", arrays["named"] - 99, "counts of 24"),
        ("counts", arrays["counts"][:-1], "counts of 24"),
        ("true", arrays["true"] + 99, "more texts"),
        ("coefficients", arrays["coefficients"] * np.nan, "9 coefficients"),
        ("coefficients", arrays["coefficients"][:-1], "9 coefficients"),
    ):
        save_file({**arrays, name: array}, wrong, metadata)
        with pytest.raises(ValueError, match=f"wrong.safetensors holds no names of these.*{said}"):
            NameMatches.load(wrong, WORDS, LABELS, 0.35)
    linear.save(file, "mark")
    assert fingerprint_of(file, ABOUT) is None
    with pytest.raises(ValueError, match="its format is 'axml-ray linear classifiers'"):
        NameMatches.load(file, WORDS, LABELS, 0.35)
    with pytest.raises(FileNotFoundError):
        NameMatches.load(file.with_name("none"), WORDS, LABELS, 0.35)


def test_settings() -> None:
    LinearSettings(weight=0.5, neighbours=5, neighbours_weight=0.6, name_matches_weight=0.4)
    LinearSettings(weight=0.5, neighbours_weight=0.6, name_matches_weight=0.5)  # no neighbours, no share of theirs
    with pytest.raises(ValidationError, match=r"together 1\.1; shares make 1 at most"):
        LinearSettings(weight=0.5, neighbours=5, neighbours_weight=0.6, name_matches_weight=0.5)
    with pytest.raises(ValidationError, match=r"no stemmer of Snowball's; there are arabic, .*german"):
        LinearSettings(name_stemmer="klingon")
    assert LinearSettings(name_stemmer=None).name_stemmer is None
