"""Linear classifiers of a tree against what they are, node by node. Run: pytest tests/linear"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from axml_ray.linear import classifiers
from axml_ray.linear.checked import fingerprint_of
from axml_ray.linear.classifiers import ABOUT, LinearTree
from axml_ray.linear.fitting import ROUNDS, TOLERANCE, fit_linear
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.svm import LinearSVC

from axml_ray.corpus.tokenizer import UNKNOWN
from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings
from axml_ray.tree.label_tree import LabelTree

WORDS, LABELS, DOCUMENTS = 60, 24, 90
VOCABULARY = ["<padding>", "<unknown>", *(f"{('to', 'ant', 'beetle')[word % 3]}{word:02d}" for word in range(2, WORDS))]
WORDS_ALONE = LinearSettings(cluster_size=None)
EVERYTHING = LinearSettings(cluster_size=4, lead_words=2, lead_weight=2.5, prefix_letters=4, lead_letters=3)
"""Words that begin with "beet" have one more feature, those with "ant0" another; "to02" and the like have none. In the
lead they also have "bee", "eet" and so on, "ant", "nt0" and so on, or "to0" and "o02"."""
FLAT = LabelTree(label_order=np.arange(LABELS, dtype=np.int32), first_child=(np.array([0, LABELS]),))
DEEP = LabelTree.from_cuts(
    np.random.default_rng(5).permutation(LABELS), [np.array([0, 8, 16, 24]), np.array([0, 2, 8, 12, 16, 20, 23, 24])]
)


@pytest.fixture(scope="module")
def corpus() -> tuple[Ragged, Ragged]:
    """Texts whose words tell their labels, more or less; label ids beyond the trained ones occur."""
    random = np.random.default_rng(0)
    labels = [np.unique(random.integers(0, LABELS + 2, random.integers(1, 4))) for _ in range(DOCUMENTS)]
    texts = [np.concatenate([2 + 2 * row % 50, random.integers(1, WORDS, random.integers(0, 9))]) for row in labels]
    return Ragged.from_rows(texts), Ragged.from_rows(labels)


@pytest.fixture(scope="module", params=[WORDS_ALONE, EVERYTHING], ids=["words", "everything"])
def settings(request: pytest.FixtureRequest) -> LinearSettings:
    return request.param


@pytest.fixture(scope="module", params=[FLAT, DEEP], ids=["flat", "deep"])
def linear(request: pytest.FixtureRequest, corpus: tuple[Ragged, Ragged], settings: LinearSettings) -> LinearTree:
    return fit_linear(request.param, *corpus, VOCABULARY, settings)


def literal_counts(text: np.ndarray, settings: LinearSettings) -> Counter[str]:
    """How often a text has each word, and each beginning ("^" before it)."""
    counts: Counter[str] = Counter()
    for place, token in enumerate(text):
        if token <= UNKNOWN:
            continue
        word, times = VOCABULARY[token], settings.lead_weight if place < settings.lead_words else 1
        counts[word] += times
        if settings.prefix_letters is not None and len(word) > settings.prefix_letters:
            counts[f"^{word[: settings.prefix_letters]}"] += times
        if settings.lead_letters is not None and place < settings.lead_words and len(word) > settings.lead_letters:
            for begin in range(len(word) - settings.lead_letters + 1):
                counts[f"~{word[begin : begin + settings.lead_letters]}"] += 1
    return counts


def literal_rows(tokens: Ragged, training: Ragged, settings: LinearSettings) -> np.ndarray:
    """float64 TF-IDF by its formula: words, beginnings by the alphabet, and the bias' column."""
    known = [literal_counts(text, settings) for text in training]
    begun = {f"^{word[:4]}" for word in VOCABULARY[2:] if settings.prefix_letters and len(word) > 4}
    runs = {f"~{word[i : i + 3]}" for word in VOCABULARY[2:] if settings.lead_letters for i in range(len(word) - 2)}
    columns = {name: column for column, name in enumerate([*VOCABULARY, *sorted(begun), *sorted(runs)])}
    frequency = Counter(name for counts in known for name in counts)
    rows = np.zeros((len(tokens), len(columns) + 1))
    for row, text in zip(rows, tokens, strict=True):
        for name, times in literal_counts(text, settings).items():
            row[columns[name]] = (1 + np.log(times)) * (1 + np.log((len(training) + 1) / (frequency[name] + 1)))
        row /= np.linalg.norm(row) or 1
        row[-1] = 1
    return rows


def literal_probabilities(linear: LinearTree, rows: np.ndarray) -> np.ndarray:
    """float64 [N, L]: of each label the product of exp(-max(0, 1 - margin)²) along its path."""
    tree, found = linear.tree, np.ones((len(rows), LABELS))
    for level, weights in enumerate(linear.weights, start=1):
        given = np.exp(-(np.maximum(0, 1 - rows @ weights.toarray().astype(np.float64).T) ** 2))
        nodes, _ = tree.node_labels(level, np.arange(LABELS), np.arange(LABELS + 1))
        found *= given[:, nodes]
    return found


def test_each_classifier_is_liblinears_on_its_parents_documents(
    linear: LinearTree, corpus: tuple[Ragged, Ragged], settings: LinearSettings
) -> None:
    tokens, labels = corpus
    rows = literal_rows(tokens, tokens, settings)
    for level in range(1, len(linear.weights) + 1):
        true = Ragged(*linear.tree.node_labels(level, labels.values, labels.offsets))
        below = Ragged(*linear.tree.node_labels(level - 1, labels.values, labels.offsets)) if level > 1 else None
        parents = linear.tree.parents(level)
        for node in range(linear.tree.level_sizes[level - 1]):
            inside = [d for d in range(DOCUMENTS) if below is None or parents[node] in below[d]]
            wanted = np.array([node in true[d] for d in inside], dtype=float)
            got = linear.weights[level - 1][[node]].toarray()[0]
            if not 0 < wanted.sum() < len(wanted):
                assert np.flatnonzero(got).tolist() == [len(got) - 1] and (got[-1] > 0) == bool(wanted.any())
                continue
            machine = LinearSVC(dual=True, fit_intercept=False, tol=TOLERANCE, max_iter=ROUNDS, random_state=0)
            expected = machine.fit(rows[inside], wanted).coef_[0]
            kept = np.abs(expected) > 0.1 + 1e-4
            np.testing.assert_allclose(got[kept], expected[kept], rtol=1e-3, atol=1e-4)
            assert not got[np.abs(expected) < 0.1 - 1e-4].any()


def test_scores_are_products_along_paths(
    linear: LinearTree, corpus: tuple[Ragged, Ragged], settings: LinearSettings
) -> None:
    tokens, _ = corpus
    expected = literal_probabilities(linear, literal_rows(tokens, tokens, settings))
    wanted = np.random.default_rng(1).permutation(LABELS)[:9]
    np.testing.assert_allclose(linear.score(linear.see(tokens), wanted), expected[:, wanted], rtol=1e-4, atol=1e-6)
    labels, scores = linear.find(linear.see(tokens), LABELS, children=LABELS * LABELS)
    assert (np.sort(labels, axis=1) == np.arange(LABELS)).all() and (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_allclose(scores, np.take_along_axis(expected, labels, axis=1), rtol=1e-4, atol=1e-6)


@given(children=st.integers(1, 40), top=st.integers(1, LABELS + 3), whole=st.sampled_from([0, 7, 1 << 15]))
def test_a_beam_keeps_the_best_nodes(
    linear: LinearTree, corpus: tuple[Ragged, Ragged], settings: LinearSettings, children: int, top: int, whole: int
) -> None:
    linear = replace(linear)  # nothing cached of another size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifiers, "WHOLE_LEVEL", whole)
        tokens = corpus[0].take(np.arange(4))
        check_beam(linear, tokens, literal_rows(tokens, corpus[0], settings), children, top)


def check_beam(linear: LinearTree, tokens: Ragged, rows: np.ndarray, children: int, top: int) -> None:
    tree = linear.tree
    labels, scores = linear.find(linear.see(tokens), top, children)
    assert labels.shape == scores.shape == (4, top)
    for document, row in enumerate(rows):
        held, logs = np.arange(tree.level_sizes[0]), None
        for level, weights in enumerate(linear.weights, start=1):
            if level > 1:
                beam = max(1, children // tree.max_children(level - 1))
                best = np.sort(np.argsort(-logs, kind="stable")[:beam])
                families = [np.arange(*tree.first_child[level - 1][[node, node + 1]]) for node in held[best]]
                above = np.repeat(logs[best], list(map(len, families)))
                held = np.concatenate(families)
            own = -(np.maximum(0, 1 - weights[held].toarray().astype(np.float64) @ row) ** 2)
            logs = own if level == 1 else own + above
        expected = np.sort(np.exp(logs))[::-1][:top]
        found = labels[document] >= 0
        assert found.sum() == len(expected) == len(set(labels[document][found]))
        np.testing.assert_allclose(scores[document][found], expected, rtol=1e-4, atol=1e-6)
        assert not scores[document][~found].any()


def test_a_text_is_scored_by_itself(linear: LinearTree, corpus: tuple[Ragged, Ragged]) -> None:
    tokens = corpus[0]
    labels, scores = linear.find(linear.see(tokens), 6, children=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifiers, "MOST_SCORES", 1)  # document by document
        same, equal = linear.find(linear.see(tokens), 6, children=9)
    assert np.array_equal(labels, same) and np.array_equal(scores, equal)
    nothing = linear.find(linear.see(tokens.take(np.array([], np.int64))), 6, children=9)
    assert nothing[0].shape == nothing[1].shape == (0, 6)


def test_fitted_again_is_the_same(linear: LinearTree, corpus: tuple[Ragged, Ragged], settings: LinearSettings) -> None:
    again = fit_linear(linear.tree, *corpus, VOCABULARY, settings)
    for mine, others in zip(linear.weights, again.weights, strict=True):
        assert (mine != others).nnz == 0


def test_a_file_keeps_everything_and_is_checked(
    linear: LinearTree, corpus: tuple[Ragged, Ragged], tmp_path: Path
) -> None:
    path = tmp_path / "linear.safetensors"
    assert fingerprint_of(path, ABOUT) is None
    linear.save(path, "mark")
    assert fingerprint_of(path, ABOUT) == "mark"
    opened = LinearTree.load(path, LABELS)
    both = (one.find(one.see(corpus[0]), 5, children=9) for one in (linear, opened))
    for mine, read in zip(*both, strict=True):
        np.testing.assert_array_equal(mine, read)
    with pytest.raises(ValueError, match=r"safetensors holds no linear classifiers of these labels: it has 24 labels"):
        LinearTree.load(path, 3)
    with safe_open(path, framework="np") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    wrong = path.with_name("wrong.safetensors")
    for name, array, said in (
        ("beginnings", np.append(arrays["beginnings"], np.int32(0)), "what parts words have"),
        ("beginnings.offsets", arrays["beginnings.offsets"][::-1].copy() + 1, "what parts words have"),
        ("runs.offsets", arrays["runs.offsets"][:-1], "what parts words have"),
        ("frequency", arrays["frequency"] * DOCUMENTS * 2, "how many documents hold each feature"),
        ("label_order", arrays["label_order"] * np.int32(0), "label"),
        ("words.1", arrays["words.1"] + np.int32(500), "columns beyond"),
    ):
        save_file({**arrays, name: array}, wrong, metadata)
        with pytest.raises(ValueError, match=f"wrong.safetensors holds no linear classifiers.*{said}"):
            LinearTree.load(wrong, LABELS)
    save_file(arrays, wrong, {**metadata, "lead_weight": "0.5"})
    with pytest.raises(ValueError, match=r"its first \d+ words count 0.5 times"):
        LinearTree.load(wrong, LABELS)
    path.write_bytes(path.read_bytes()[:-8])
    assert fingerprint_of(path, ABOUT) is None
    with pytest.raises(ValueError, match="holds no linear classifiers"):
        LinearTree.load(path, LABELS)
    linear.tree.save(path)
    with pytest.raises(ValueError, match="its format is"):
        LinearTree.load(path, LABELS)
