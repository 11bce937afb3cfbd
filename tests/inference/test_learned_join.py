"""Run: pytest tests/inference/test_learned_join.py

The learned join against a literal walk through its regression trees, scikit-learn's own, and laws that it is to find.
"""

import math

import numpy as np
import pytest
from axml_ray.inference.combining import Ballot, Votes, mean_ballot
from axml_ray.inference.frequency import Coefficients, FrequencyCorrection
from axml_ray.inference.learned_join import LEAVES, NODES, STEP, LearnedJoin
from axml_ray.linear.checked import open_arrays, save_arrays
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from axml_ray.inference import learned_join as module
from axml_ray.ragged import Ragged

COUNTS = np.array([400, 90, 30, 7, 2, 1, 0])
CORRECTION = FrequencyCorrection(Coefficients(intercept=0.3, score=0.9, both=-0.05, frequency=-0.4), COUNTS)


def tree(*nodes: tuple[int, float, int, int] | float) -> dict[str, np.ndarray]:
    """One regression tree, of questions (column, threshold, left, right) and leaves."""
    asked, thresholds, values = np.zeros(NODES, np.int64), np.zeros(NODES), np.zeros(NODES)
    children = np.arange(NODES)[:, None].repeat(2, axis=1)
    for place, node in enumerate(nodes):
        if isinstance(node, tuple):
            asked[place], thresholds[place], children[place] = node[0], node[1], node[2:]
        else:
            values[place] = node
    return {"asked": asked, "thresholds": thresholds, "children": children, "values": values}


def join_of(*trees: dict[str, np.ndarray]) -> LearnedJoin:
    return LearnedJoin(**{name: np.stack([one[name] for one in trees]) for name in trees[0]}, counts=COUNTS)


UNEVEN = join_of(
    tree((1, 0.25, 1, 2), -0.5, (3, 2.0, 3, 4), 1.5, (0, 0.5, 5, 6), 0.25, -2.0),
    tree((2, 0.125, 1, 2), 0.75, -0.25),
    tree(0.125),
)


def literal(join: LearnedJoin, means: list[float], count: int, correction: FrequencyCorrection | None) -> float:
    f = math.log(1 + count)
    c = Coefficients() if correction is None else correction.coefficients
    inside = min(max(means[0], 1e-6), 1 - 1e-6)
    log_odds = c.intercept + (c.score + c.both * f) * math.log(inside / (1 - inside)) + c.frequency * f
    columns = [*means, float(np.float32(f))]
    for number in range(len(join.asked)):
        node = 0
        while (left_right := join.children[number, node].tolist()) != [node, node]:
            node = left_right[int(columns[join.asked[number, node]] > join.thresholds[number, node])]
        log_odds += join.values[number, node]
    return 1 / (1 + math.exp(-log_odds))


@st.composite
def ballots(draw):
    """What two or three trees say of two documents."""
    found = []
    for _ in range(draw(st.integers(2, 3))):
        width = draw(st.integers(1, 5))
        ballot = Ballot.empty(2, width)
        for document in range(2):
            row = draw(st.lists(st.integers(0, len(COUNTS) - 1), max_size=width, unique=True))
            ballot.labels[document, : len(row)] = row
            for scores in ballot[1:]:
                scores[document, : len(row)] = [draw(st.integers(0, 64)) / 64 for _ in row]
        found.append(ballot)
    return found


@pytest.mark.parametrize("correction", [None, CORRECTION], ids=["the mean", "the correction"])
class TestVotes:
    @given(of_trees=ballots(), top=st.integers(1, 9))
    def test_are_the_equations(self, correction, of_trees, top):
        labels, scores = Votes(top, correction, UNEVEN).ranking(of_trees)
        assert labels.dtype == np.int32 and scores.dtype == np.float32 and labels.shape == scores.shape == (2, top)
        trees = len(of_trees)
        for document in range(2):
            means: dict[int, list[float]] = {}
            for ballot in of_trees:
                for place, label in enumerate(ballot.labels[document].tolist()):
                    if label >= 0:
                        said = means.setdefault(label, [0.0] * 3)
                        for part, scored in enumerate(ballot[1:]):
                            said[part] += float(scored[document, place])
            means = {label: [points / trees for points in said] for label, said in means.items()}
            # The best by the mean alone, which then change places.
            kept = sorted(means, key=lambda label: (-means[label][0], label))[:top]
            chances = {label: trees * literal(UNEVEN, means[label], int(COUNTS[label]), correction) for label in kept}
            there = [label for label in labels[document].tolist() if label >= 0]
            assert set(there) == set(kept) and not scores[document, len(there) :].any()
            points = scores[document, : len(there)].tolist()
            assert points == pytest.approx([chances[label] for label in there], rel=1e-5)
            assert points == sorted(points, reverse=True)

    def test_of_given_labels(self, correction):
        labels, random = np.array([6, 0, 2]), np.random.default_rng(0)
        of_trees = random.random((2, 4, 3, 3)).astype(np.float32)
        found = Votes(5, correction, UNEVEN).scores(labels, iter(of_trees))
        for document, place in np.ndindex(4, 3):
            means = of_trees.astype(np.float64).mean(axis=0)[document, place]
            expected = 2 * literal(UNEVEN, means.tolist(), int(COUNTS[labels[place]]), correction)
            assert found[document, place] == pytest.approx(expected, rel=1e-5)


def drawn(law, documents: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Ragged]:
    """Labels of documents, the means of what is said of them, best first by their mean, and those that are true by a
    law of networks, classifiers and counts.
    """
    random = np.random.default_rng(seed)
    labels = np.argsort(random.random((documents, 6)), axis=1).astype(np.int32)
    networks, classifiers = random.random((2, documents, 6)) ** 3
    order = np.argsort(-(networks + classifiers), axis=1)
    labels, networks, classifiers = (np.take_along_axis(one, order, 1) for one in (labels, networks, classifiers))
    means = np.stack([(networks + classifiers) / 2, networks, classifiers], axis=2).astype(np.float32)
    true = random.random(labels.shape) < law(networks, classifiers, COUNTS[labels])
    return labels, means, Ragged.from_rows([row[hit].tolist() for row, hit in zip(labels, true, strict=True)])


class TestFit:
    def test_finds_that_one_voice_counts_where_the_other_is_silent(self):
        def law(networks, classifiers, counts):
            return np.where((networks > 0.5) & (counts > 20), 0.9, np.where(classifiers > 0.5, 0.4, 0.02))

        known, new = drawn(law, 1_500), drawn(law, 1_500, seed=1)
        join = LearnedJoin.fit(*known, COUNTS)
        right = law(new[1][..., 1], new[1][..., 2], COUNTS[new[0]])
        assert np.abs(join.scores(new[0], new[1], None) - right).mean() < 0.03
        assert np.abs(new[1][..., 0] - right).mean() > 0.1
        again = LearnedJoin.fit(*known, COUNTS)
        assert np.array_equal(again.values, join.values) and np.array_equal(again.thresholds, join.thresholds)

    def test_where_the_start_is_right_next_to_nothing_is_learned(self):
        labels, means, truth = drawn(lambda networks, classifiers, _: (networks + classifiers) / 2, 1_500)
        join = LearnedJoin.fit(labels, means, truth, COUNTS)
        assert np.abs(join.scores(labels, means, None) - means[..., 0]).mean() < 0.01

    def test_starts_from_the_correction(self):
        def law(networks, classifiers, counts):
            labels = np.searchsorted(-COUNTS, -counts)
            return 1 / (1 + np.exp(-CORRECTION.log_odds(labels, (networks + classifiers) / 2)))

        labels, means, truth = drawn(law, 1_500)
        from_there, alone = (LearnedJoin.fit(labels, means, truth, COUNTS, start) for start in (CORRECTION, None))
        assert len(from_there.asked) < len(alone.asked)
        right = law(means[..., 1], means[..., 2], COUNTS[labels])
        assert np.abs(from_there.scores(labels, means, CORRECTION) - right).mean() < 0.01

    def test_a_few_mistakes_teach_nothing(self):
        """Of labels that both are sure of."""
        labels, means, truth = drawn(lambda networks, classifiers, _: (networks + classifiers) / 2, 1_500)
        means[:, 0, :] = np.minimum(means[:, 0, :], 0.99)
        truth = Ragged.from_rows([sorted({*row, best}) for row, best in zip(truth, labels[:, 0].tolist(), strict=True)])
        wrong = Ragged.from_rows([row[row != best].tolist() for row, best in zip(truth, labels[:, 0], strict=True)])
        means[:5] = 0.999
        mistaken = Ragged.concatenate([wrong.take(np.arange(5)), truth.take(np.arange(5, len(labels)))])
        join = LearnedJoin.fit(labels, means, mistaken, COUNTS)
        assert (join.scores(labels[:5], means[:5], None)[:, 0] > 0.99).all()

    def test_its_trees_are_scikit_learns(self):
        random = np.random.default_rng(0)
        table, wanted = random.random((3_000, 4)).astype(np.float32), random.random(3_000)
        theirs = [
            DecisionTreeRegressor(max_leaf_nodes=LEAVES, max_depth=module.DEPTH, random_state=seed).fit(table, wanted)
            for seed in range(3)
        ]
        ours = LearnedJoin(**module._laid_out(theirs), counts=COUNTS)
        expected = STEP * sum(one.predict(table) for one in theirs)
        np.testing.assert_allclose(ours._steps(table), expected, rtol=1e-12)

    @pytest.mark.parametrize("documents", [0, 3])
    def test_a_handful_of_documents_teaches_nothing(self, documents):
        labels, means, truth = drawn(lambda networks, *_: networks, documents)
        join = LearnedJoin.fit(labels, means, truth, COUNTS)
        assert len(join.asked) == 0
        np.testing.assert_allclose(join.scores(labels, means, None), means[..., 0].clip(1e-6), rtol=1e-5)

    @pytest.mark.parametrize("all_true", [True, False])
    def test_nothing_to_tell_by(self, all_true):
        labels, means, truth = drawn(lambda networks, *_: np.full(networks.shape, float(all_true)), 50)
        assert np.isfinite(LearnedJoin.fit(labels, means, truth, COUNTS).scores(labels, means, None)).all()


class TestFile:
    def test_round_trip(self, tmp_path):
        UNEVEN.save(tmp_path / "join.safetensors", "mark")
        again = LearnedJoin.load(tmp_path / "join.safetensors", COUNTS)
        assert all(np.array_equal(getattr(again, name), getattr(UNEVEN, name)) for name, *_ in module.ARRAYS)
        with pytest.raises(FileNotFoundError):
            LearnedJoin.load(tmp_path / "absent.safetensors", COUNTS)

    @pytest.mark.parametrize(
        ("name", "change", "what"),
        [
            ("asked", lambda it: it + 4, "asks for other than 4 columns"),
            ("asked", lambda it: it[:, :3].copy(), "asked aren't of regression trees of 15 nodes"),
            ("children", lambda it: it + NODES, "leads to nodes that aren't there"),
            ("children", lambda it: it.astype(np.int32), "children aren't of regression trees"),
            ("thresholds", lambda it: it[:2].copy(), "thresholds aren't of regression trees"),
            ("values", lambda it: it * np.nan, "values that aren't finite"),
        ],
    )
    def test_damage_is_named(self, tmp_path, name, change, what):
        path = tmp_path / "join.safetensors"
        UNEVEN.save(path, "mark")
        arrays, _ = open_arrays(path, module.ABOUT)
        save_arrays({**arrays, name: change(arrays[name])}, path, module.ABOUT, "mark")
        with pytest.raises(ValueError, match=f"join.safetensors holds no learned join: .*{what}"):
            LearnedJoin.load(path, COUNTS)

    def test_a_circle_ends(self, tmp_path):
        circle = join_of(tree((0, 0.5, 0, 1), (0, 0.5, 1, 0)))
        circle.save(tmp_path / "join.safetensors", "mark")
        join = LearnedJoin.load(tmp_path / "join.safetensors", COUNTS)
        labels, means = np.array([[0, 1]]), np.full((1, 2, 3), 0.75, np.float32)
        np.testing.assert_allclose(join.scores(labels, means, None), 0.75, rtol=1e-5)

    def test_another_file(self, tmp_path):
        save_arrays({"asked": UNEVEN.asked}, tmp_path / "other.safetensors", {"format": "else"}, "mark")
        with pytest.raises(ValueError, match="its format is 'else', not 'axml-ray learned join'"):
            LearnedJoin.load(tmp_path / "other.safetensors", COUNTS)


@given(of_trees=ballots(), top=st.integers(1, 9))
def test_the_mean_ballot_is_ordered_as_the_sum(of_trees, top):
    labels, means = mean_ballot(of_trees, top)
    summed_labels, summed = Votes(top).ranking(of_trees)
    assert np.array_equal(labels, summed_labels) and means.shape == (2, top, 3)
    np.testing.assert_allclose(means[..., 0] * len(of_trees), summed, rtol=1e-6)
