"""Linear classifiers of a tree against what they are, node by node. Run: pytest tests/members/test_linear_tree.py"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_indexes import index_of
from members.small_texts import (
    DEEP,
    DOCUMENTS,
    EVERYTHING,
    FLAT,
    LABELS,
    VOCABULARY,
    WORDS_ALONE,
    inputs,
    literal_rows,
    read_arrays,
    small_texts,
)
from safetensors.numpy import save_file
from scipy import sparse
from sklearn.svm import LinearSVC

from axml_ray.core.array_file import key_of
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_name_texts import name_texts
from axml_ray.corpus.store import Split
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.corpus.text.tokenizer import Tokenizer
from axml_ray.members import linear_fit
from axml_ray.members import linear_tree as module
from axml_ray.members.featurizer import Featurizer
from axml_ray.members.liblinear import ROUNDS, TOLERANCE
from axml_ray.members.linear_fit import INPUTS, LinearFit, NodeRange
from axml_ray.members.linear_tree import ABOUT, FILE, RANGES, LinearTree, write_classifiers
from axml_ray.settings.members import FeatureSettings
from axml_ray.tree.label_tree import LabelTree

TOKENS, TRUTH = small_texts()
TEXTS = TextViews(TOKENS)


@pytest.fixture(scope="module", params=[WORDS_ALONE, EVERYTHING], ids=["words", "everything"])
def settings(request: pytest.FixtureRequest) -> FeatureSettings:
    return request.param


@pytest.fixture(scope="module", params=[FLAT, DEEP], ids=["flat", "deep"])
def linear(request: pytest.FixtureRequest, settings: FeatureSettings) -> LinearTree:
    return fitted(request.param, Split(TOKENS, TRUTH), VOCABULARY, settings)


def fitted(tree: LabelTree, train: Split, words: list[str], settings: FeatureSettings) -> LinearTree:
    featurizer = Featurizer.fit(train.tokens, words, settings)
    with TemporaryDirectory() as directory:
        write(Path(directory), tree, train, featurizer)
        return LinearTree.load(Path(directory), None, inputs(featurizer, len(tree.label_order)))


def write(directory: Path, tree: LabelTree, train: Split, featurizer: Featurizer) -> None:
    rows = featurizer.matrix(train.tokens)
    write_classifiers(directory, "its key", lambda: LinearFit.of(tree, rows, train.labels), len(featurizer), cost=1.0)


def literal_probabilities(linear: LinearTree, rows: np.ndarray) -> np.ndarray:
    """float64 [N, L]: of each label the product of exp(-max(0, 1 - margin)²) along its path."""
    tree, found = linear.tree, np.ones((len(rows), LABELS))
    for level, weights in enumerate(linear.weights, start=1):
        given = np.exp(-(np.maximum(0, 1 - rows @ weights.toarray().astype(np.float64).T) ** 2))
        nodes, _ = tree.node_labels(level, np.arange(LABELS), np.arange(LABELS + 1))
        found *= given[:, nodes]
    return found


def test_each_classifier_is_liblinears_on_its_parents_documents(linear: LinearTree, settings: FeatureSettings) -> None:
    rows = literal_rows(TOKENS, TOKENS, settings)
    for level in range(1, len(linear.weights) + 1):
        true = Ragged(*linear.tree.node_labels(level, TRUTH.values, TRUTH.offsets))
        below = Ragged(*linear.tree.node_labels(level - 1, TRUTH.values, TRUTH.offsets)) if level > 1 else None
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


def test_siblings_that_no_text_has_are_never_given() -> None:
    first_cluster = DEEP.label_order[: int(DEEP.first_child[-1][1])]
    rows = [TRUTH[d][~np.isin(TRUTH[d], first_cluster)] for d in range(DOCUMENTS)]
    linear = fitted(DEEP, Split(TOKENS, Ragged.from_rows(rows)), VOCABULARY, WORDS_ALONE)
    scores = linear.score(TEXTS, np.arange(LABELS))
    assert (scores[:, first_cluster] == 0).all() and (np.delete(scores, first_cluster, axis=1).max(1) > 0).all()


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_a_few_of_many_documents_suffice_for_a_classifier(noise: float) -> None:
    random = np.random.default_rng(0)
    rows = sparse.random_array((4_000, 60), density=0.1, rng=random, dtype=np.float32).tocsr()
    rows = sparse.csr_matrix(sparse.hstack([rows, np.ones((4_000, 1), np.float32)]))
    evidence = rows[:, :3].toarray().sum(1) + noise * random.random(4_000)
    is_true = evidence > np.quantile(evidence, 0.95)
    labels = Ragged.from_rows([[0] if one else [1] for one in is_true])
    linear = LinearFit.of(LabelTree.from_cuts(np.arange(2), []), rows, labels)
    (found, _) = linear.fit(NodeRange(1, 0, 2), cost=1.0).toarray()
    sign = np.where(is_true, 1, -1)
    machine = LinearSVC(dual=False, fit_intercept=False, tol=1e-6, max_iter=10_000).fit(rows, is_true)

    def objective(weights: np.ndarray) -> float:
        losses = np.maximum(0, 1 - sign * (rows @ weights)) ** 2
        return float(weights @ weights / 2 + losses.sum())

    assert objective(found) < 1.01 * objective(machine.coef_[0])


def test_scores_are_products_along_paths(linear: LinearTree, settings: FeatureSettings) -> None:
    expected = literal_probabilities(linear, literal_rows(TOKENS, TOKENS, settings))
    wanted = np.random.default_rng(1).permutation(LABELS)[:9]
    scores = linear.score(TEXTS, wanted)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected[:, wanted], rtol=1e-4, atol=1e-6)
    labels, scores = linear.rank_rows(linear.featurizer.of(TEXTS), LABELS, children=LABELS * LABELS)
    assert (np.sort(labels, axis=1) == np.arange(LABELS)).all() and (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_allclose(scores, np.take_along_axis(expected, labels, axis=1), rtol=1e-4, atol=1e-6)


@given(children=st.integers(1, 40), k=st.integers(1, LABELS + 3), whole=st.sampled_from([0, 7, 1 << 15]))
def test_a_beam_keeps_the_best_nodes(
    linear: LinearTree, settings: FeatureSettings, children: int, k: int, whole: int
) -> None:
    linear = replace(linear)  # nothing cached of another size
    tree, tokens = linear.tree, TOKENS.take(np.arange(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WHOLE_LEVEL", whole)
        labels, scores = linear.rank_rows(linear.featurizer.matrix(tokens), k, children)
    assert labels.shape == scores.shape == (4, k)
    assert (labels.dtype, scores.dtype) == (np.int32, np.float32)
    for document, row in enumerate(literal_rows(tokens, TOKENS, settings)):
        nodes, logs = np.arange(tree.level_sizes[0]), np.zeros(0)
        for level, weights in enumerate(linear.weights, start=1):
            above: np.ndarray | float = 0.0
            if level > 1:
                beam = max(1, children // tree.max_children(level - 1))
                best = np.sort(np.argsort(-logs, kind="stable")[:beam])
                siblings = [np.arange(*tree.first_child[level - 1][[node, node + 1]]) for node in nodes[best]]
                above = np.repeat(logs[best], list(map(len, siblings)))
                nodes = np.concatenate(siblings)
            logs = above - np.maximum(0, 1 - weights[nodes].toarray().astype(np.float64) @ row) ** 2
        expected = np.sort(np.exp(logs))[::-1][:k]
        present = labels[document] >= 0
        assert present.sum() == len(expected) == len(set(labels[document][present]))
        np.testing.assert_allclose(scores[document][present], expected, rtol=1e-4, atol=1e-6)
        assert not scores[document][~present].any()


def test_ranges_of_nodes_give_the_same_and_an_interrupted_fit_goes_on(
    linear: LinearTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, train = linear.featurizer, Split(TOKENS, TRUTH)
    write(tmp_path / "whole", linear.tree, train, features)
    monkeypatch.setattr(linear_fit, "RANGE_ROWS", (1_500, 1_500))  # three nodes
    monkeypatch.setattr(linear_fit, "FEW_RANGES", 0)
    directory = tmp_path / "ranges"

    def begin() -> LinearFit:
        return LinearFit.of(linear.tree, features.matrix(train.tokens), train.labels)

    def interrupted(work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        yield from map(work, islice(jobs, 4))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_classifiers(directory, "its key", begin, len(features), 1.0, interrupted)
    fitted_before = {path: path.stat().st_mtime_ns for path in (directory / RANGES).iterdir()}
    assert len(fitted_before) == 1 + 4 and not (directory / FILE).exists()
    jobs_of_second = []

    def counted(work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        for job in jobs:
            jobs_of_second.append(job)
            assert fitted_before == {path: path.stat().st_mtime_ns for path in fitted_before}
            yield work(job)

    write_classifiers(directory, "its key", pytest.fail, len(features), 1.0, counted)
    ranges = list(begin().ranges())
    assert jobs_of_second == ranges[4:]
    for level, size in enumerate(linear.tree.level_sizes, start=1):
        of_level = [one for one in ranges if one.level == level]
        assert [node for one in of_level for node in range(one.first, one.last)] == list(range(size))
    assert (directory / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()
    write_classifiers(directory, "its key", pytest.fail, len(features), 1.0, pytest.fail)  # nothing is fitted again


def test_another_key_does_not_use_what_an_interrupted_fit_left(linear: LinearTree, tmp_path: Path) -> None:
    (tmp_path / RANGES).mkdir()
    LinearFit.of(FLAT, linear.featurizer.matrix(TOKENS), TRUTH).save(tmp_path / RANGES / INPUTS, "another")
    write(tmp_path, linear.tree, Split(TOKENS, TRUTH), linear.featurizer)
    opened = LinearTree.load(tmp_path, None, inputs(linear.featurizer))
    assert opened.tree.level_sizes == linear.tree.level_sizes


def test_a_text_is_scored_by_itself(linear: LinearTree) -> None:
    rows = linear.featurizer.of(TEXTS)
    labels, scores = linear.rank_rows(rows, 6, children=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_SCORES", 1)  # document by document
        same, equal = linear.rank_rows(rows, 6, children=9)
    assert np.array_equal(labels, same) and np.array_equal(scores, equal)
    nothing = TextViews(TOKENS.take(np.array([], np.int64)))
    assert [each.shape for each in linear.rank(nothing, 6)] == [(0, 6), (0, 6)]
    assert linear.score(nothing, np.arange(3)).shape == (0, 3)


def test_fitted_again_is_the_same(linear: LinearTree, settings: FeatureSettings) -> None:
    again = fitted(linear.tree, Split(TOKENS, TRUTH), VOCABULARY, settings)
    for one, other in zip(linear.weights, again.weights, strict=True):
        assert (one != other).nnz == 0


def test_a_label_is_found_by_its_name_though_no_text_holds_it() -> None:
    tokenizer = Tokenizer.from_words(["whale", "shark", "fish", "n2", "deep", "sea"])
    index = index_of({"n1": 3, "n2": 2, "n3": 1}, names={"n1": "whale", "n2": "fish", "n3": "shark"})
    rows = [[2 + 4], [2 + 4], [2 + 4, 2 + 5], [2 + 5], [2 + 5], [2 + 5]]  # "deep" and "sea" tell nothing of "shark"
    train = Split(Ragged.from_rows(rows), Ragged.from_rows([[0], [0], [0], [1], [1], [2]]))
    flat = LabelTree(label_order=np.arange(3, dtype=np.int32), first_child=(np.array([0, 3]),))
    best = []
    for texts in (train, train.followed_by(name_texts(index, tokenizer, 9))):
        linear = fitted(flat, texts, tokenizer.words, FeatureSettings())
        best.append(int(linear.rank(TextViews(tokenizer.encode(["the shark"], 9)), 1).labels[0, 0]))
    assert best[1] == 2 != best[0]


def test_a_large_level_is_checked_as_it_is_read(
    linear: LinearTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening must not read the weights of millions of labels."""
    if len(linear.weights) == 1:
        pytest.skip("all nodes of the first level are scored")
    monkeypatch.setattr(module, "WHOLE_LEVEL", 0)
    path, features = tmp_path / FILE, linear.featurizer
    write(tmp_path, linear.tree, Split(TOKENS, TRUTH), features)
    arrays, metadata = read_arrays(path)
    for name, array, said in (
        ("words.2", arrays["words.2"] + np.int32(500), "columns beyond"),
        ("words.2", arrays["words.2"] - np.int32(500), "columns beyond"),
        ("values.2", arrays["values.2"] * np.float32(np.nan), "finite"),
    ):
        save_file({**arrays, name: array}, path, metadata)
        opened = LinearTree.load(tmp_path, None, inputs(features))
        with pytest.raises(ValueError, match=f"level 2 has .*{said}"):
            opened.rank(TEXTS, 5)
        with pytest.raises(ValueError, match=f"level 2 has .*{said}"):
            opened.score(TEXTS, np.arange(LABELS))


def test_a_file_keeps_everything_and_damage_is_refused(linear: LinearTree, tmp_path: Path) -> None:
    path, features = tmp_path / FILE, linear.featurizer
    assert key_of(path, ABOUT) is None
    write(tmp_path, linear.tree, Split(TOKENS, TRUTH), features)
    assert not (tmp_path / RANGES).exists()
    assert key_of(path, ABOUT) == "its key"
    opened = LinearTree.load(tmp_path, None, inputs(features))
    for saved, read in zip(linear.rank(TEXTS, 5), opened.rank(TEXTS, 5), strict=True):
        np.testing.assert_array_equal(saved, read)

    def refused(said: str, labels: int = LABELS, featurizer: Featurizer = features) -> None:
        with pytest.raises(ValueError, match=rf"classifiers\.safetensors holds no linear classifiers.*{said}"):
            LinearTree.load(tmp_path, None, inputs(featurizer, labels))

    refused("it has 24 labels, not 3", labels=3)
    refused("features, not 9", featurizer=Featurizer.fit(Ragged.from_rows([[2]]), VOCABULARY[:9], WORDS_ALONE))
    larger = Featurizer.fit(TOKENS, [*VOCABULARY, "zebra"], EVERYTHING)
    refused(f"fitted with {len(features)} features, not {len(larger)}", featurizer=larger)
    arrays, metadata = read_arrays(path)
    values = arrays["values.1"]
    for name, array, said in (
        ("label_order", arrays["label_order"] * np.int32(0), "label"),
        ("children.1", arrays["children.1"] + 1, "first_child|children"),
        ("words.1", arrays["words.1"] + np.int32(500), "columns beyond"),
        ("words.1", arrays["words.1"].astype(np.int64), "other types"),
        ("offsets.1", arrays["offsets.1"][:-1], "rows"),
        ("values.1", np.where(np.arange(len(values)) == 3, np.float32(np.nan), values), "finite"),
    ):
        save_file({**arrays, name: array}, path, metadata)
        refused(said)
    save_file({name: array for name, array in arrays.items() if name != "offsets.1"}, path, metadata)
    refused("")
    save_file(arrays, path, {**metadata, "version": "0"})
    refused("its version is '0'")
    save_file(arrays, path, metadata)
    path.write_bytes(path.read_bytes()[:-8])
    assert key_of(path, ABOUT) is None
    refused("")
    linear.tree.save(path)
    refused("its format is")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        LinearTree.load(tmp_path, None, inputs(features))
