"""Fitted weights of kinds: never worse than a kind alone, close to the preset's where documents are few.

Run: pytest tests/ensemble/test_weights.py
"""

import json
from collections.abc import Mapping

import numpy as np
import pytest
from ensemble.random_rankings import rankings
from hypothesis import given, settings
from hypothesis import strategies as st

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.ensemble.combiner import MemberWeights, Validation, out_of_fold
from axml_ray.ensemble.ensemble import Combination
from axml_ray.ensemble.frequency import Coefficients
from axml_ray.ensemble.weights import (
    CALIBRATED,
    FILE,
    HALVES,
    MEASURED,
    MOST_VECTORS,
    FittedWeights,
    PenalisedWeights,
    TopCalibration,
    candidates,
    choose,
    kind_weights,
    reweighted,
    standard_error,
    weight_vectors,
)
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.members.member import MemberInfo

LABELS, TRUE, K = 60, 4, 20
COUNTS = np.random.default_rng(1).integers(1, 100, LABELS)
PRESET = {"network_tree": 0.5, "linear_tree": 0.35, "knn": 0.15}


def simulate(strengths: Mapping[str, float], documents: int, seed: int = 0, copies: int = 1) -> Validation:
    """Return rankings by kinds of `copies` equal members whose scores are noise, and for true labels its strength."""
    random = np.random.default_rng(seed)
    truth = np.argsort(random.random((documents, LABELS)), axis=1)[:, :TRUE]
    is_true = np.zeros((documents, LABELS))
    np.put_along_axis(is_true, truth, 1, axis=1)
    members, weights, found = [], [], []
    for kind, strength in strengths.items():
        scores = 1 / (1 + np.exp(3 - random.normal(size=is_true.shape) - strength * is_true))
        best = np.argsort(-scores, axis=1)[:, :K]
        ranking = TopK(best.astype(np.int32), np.take_along_axis(scores, best, 1).astype(np.float32))
        members += [kind] * copies
        weights += [PRESET[kind] / copies] * copies
        found += [ranking] * copies
    return Validation(MemberWeights(members, weights), found, Ragged.from_rows(np.sort(truth, axis=1)), COUNTS)


def alone(validation: Validation, kind: str) -> Validation:
    places = [place for place, each in enumerate(validation.members.kinds) if each == kind]
    members = MemberWeights([kind] * len(places), [validation.members.weights[place] for place in places])
    return Validation(members, [validation.rankings[place] for place in places], validation.truth, COUNTS)


def ndcg(ranking: TopK, validation: Validation) -> np.ndarray:
    return ndcg_at(ranking.labels, validation.truth.values, validation.truth.offsets, MEASURED)


class TestNeverBelowFixedWeights:
    @settings(max_examples=10, deadline=None)
    @given(
        st.integers(0, 2**31),
        st.integers(2, 60),
        st.dictionaries(st.sampled_from(sorted(PRESET)), st.floats(0, 4), min_size=2),
        st.integers(1, 2),
    )
    def test_on_held_out_documents(self, seed, documents, strengths, copies):
        validation = simulate(strengths, documents, seed, copies)
        fitted = FittedWeights.fit(validation, K)
        combined = ndcg(out_of_fold(PenalisedWeights, validation, CALIBRATED, HALVES), validation)
        fixed = {"preset": validation} | {kind: alone(validation, kind) for kind in strengths}
        gains = {
            name: ndcg(out_of_fold(TopCalibration, one, CALIBRATED, HALVES), validation) - combined
            for name, one in fixed.items()
        }
        best = max(gains, key=lambda name: gains[name].mean())
        if gains[best].mean() > standard_error(gains[best]):
            expected = {kind: float(kind == best) for kind in strengths}
            assert fitted.kinds.weights == (kind_weights(validation.members) if best == "preset" else expected)
        assert sum(fitted.kinds.weights.values()) == pytest.approx(1)
        assert all(weight >= 0 for weight in fitted.kinds.weights.values())

    @pytest.mark.parametrize("best", PRESET)
    def test_a_kind_among_noise_gets_all_the_weight(self, best):
        validation = simulate({kind: 4.0 * (kind == best) for kind in PRESET}, 200)
        fitted = FittedWeights.fit(validation, K)
        assert fitted.kinds.weights[best] > 0.7
        new = simulate({kind: 4.0 * (kind == best) for kind in PRESET}, 400, seed=1)
        combined, by_best = (
            ndcg(fitted.rank(new.members, new.rankings, K), new).mean(),
            ndcg(new.rankings[list(PRESET).index(best)], new).mean(),
        )
        by_preset = TopCalibration.fit(validation, K).rank(new.members, new.rankings, K)
        assert combined > by_best - 0.01 and combined > ndcg(by_preset, new).mean() - 0.005

    def test_kinds_that_complete_each_other_share_the_weight(self):
        strengths = {"linear_tree": 2.0, "knn": 2.0}
        validation, new = simulate(strengths, 500), simulate(strengths, 500, seed=1)
        fitted = FittedWeights.fit(validation, K)
        assert all(0.25 < weight < 0.75 for weight in fitted.kinds.weights.values())
        combined = ndcg(fitted.rank(new.members, new.rankings, K), new).mean()
        assert combined > max(ndcg(ranking, new).mean() for ranking in new.rankings) + 0.02


class TestPenalty:
    def test_few_documents_keep_the_weights_of_the_preset(self):
        kept = [FittedWeights.fit(simulate({"linear_tree": 2, "knn": 1.3}, 15, seed), K) for seed in range(5)]
        own = kind_weights(simulate({"linear_tree": 2, "knn": 1.3}, 15).members)
        assert np.mean([abs(each.kinds.weights["knn"] - own["knn"]) for each in kept]) < 0.15

    @pytest.mark.parametrize("documents, expected", [(1, 0), (20, 0), (2_000, 1)])
    def test_a_gain_counts_when_there_are_documents_enough(self, documents, expected):
        gains = np.random.default_rng(0).normal(0.02, 0.2, documents)
        gains += 0.02 - gains.mean()
        assert choose(np.stack([np.zeros(documents), gains])) == expected

    def test_of_equal_gains_the_less_scattered_is_chosen(self):
        gain = np.tile([0.0, 0.2], 50)
        assert choose(np.stack([0 * gain, gain, 2 * gain - 0.1])) == 1


class TestCalibration:
    def test_one_that_ranks_held_out_documents_worse_than_the_mean_is_left_out(self):
        validation, new = self.simulate(seed=0), self.simulate(seed=1)
        fitted = FittedWeights.fit(validation, K)
        assert fitted.calibration.coefficients == Coefficients()
        calibrated = TopCalibration.fit(validation, K).rank(new.members, new.rankings, K)
        assert ndcg(fitted.rank(new.members, new.rankings, K), new).mean() > ndcg(calibrated, new).mean() + 0.03

    def test_one_that_helps_is_kept(self):
        validation = self.simulate(seed=0, odds_of_frequent=(3.0, 3.0, 3.0))
        assert FittedWeights.fit(validation, K).calibration.coefficients.frequency > 0

    def simulate(self, seed: int, odds_of_frequent: tuple[float, ...] = (4.8, 1.0, -5.5)) -> Validation:
        """Return ten ranked labels of 300 documents: the first three, the next and the last are more or less often true
        if they are frequent, which no linear model of log-odds describes if the signs differ."""
        random = np.random.default_rng(seed)
        labels = np.argsort(random.random((300, LABELS)), axis=1)[:, :10].astype(np.int32)
        scores = -np.sort(random.normal(0, 0.02, (300, 10)) - np.linspace(0.9, 0.1, 10), axis=1)
        counts = np.where(np.arange(LABELS) < LABELS // 2, 2, 200)
        by_rank, odds = np.repeat([0, 1, 2], [3, 3, 4]), np.array([1.6, 0.7, -0.4])
        odds = odds[by_rank] + np.array(odds_of_frequent)[by_rank] * (np.sign(counts[labels] - 100) / 2)
        is_true = random.random((300, 10)) < 1 / (1 + np.exp(-odds))
        truth = Ragged.from_rows([np.sort(row[hit]) for row, hit in zip(labels, is_true, strict=True)])
        ranking = TopK(labels, np.clip(scores, 0.001, 0.999).astype(np.float32))
        return Validation(MemberWeights(["knn"], [1.0]), [ranking], truth, counts)


class TestVectors:
    @given(st.integers(1, 6))
    def test_the_grid_has_the_preset_first_and_each_kind_alone(self, kinds):
        preset = {f"kind {number}": 1 / kinds for number in range(kinds)}
        first, *grid = weight_vectors(preset)
        assert first == preset and 0 < len(grid) <= MOST_VECTORS
        assert all(sum(vector.values()) == pytest.approx(1) and min(vector.values()) >= 0 for vector in grid)
        assert len({tuple(vector.values()) for vector in grid}) == len(grid)
        for kind in preset:
            assert {other: float(other == kind) for other in preset} in grid

    @given(rankings(3))
    def test_candidates_are_the_mean_of_each_kind(self, of_members):
        members = MemberWeights(["b", "a", "b"], [0.25, 0.5, 0.75])
        labels, scores = candidates(Validation(members, of_members, Ragged.from_rows([[0], [1]]), COUNTS), ["a", "b"])
        assert scores.shape == (*labels.shape, 2) and scores.dtype == np.float32
        for row in range(2):
            expected: dict[int, list[float]] = {}
            for place, (kind, share) in enumerate(zip((1, 0, 1), (0.25, 1.0, 0.75), strict=True)):
                for label, score in zip(of_members[place].labels[row], of_members[place].scores[row], strict=True):
                    if label >= 0:
                        expected.setdefault(int(label), [0.0, 0.0])[kind] += share * float(score)
            found = {int(label): points for label, points in zip(labels[row], scores[row].tolist(), strict=True)}
            found.pop(-1, None)
            assert found == {label: pytest.approx(points) for label, points in expected.items()}


class TestCombination:
    MEMBERS = (
        MemberInfo("network_tree-0", "network_tree", 0, 0.25),
        MemberInfo("network_tree-1", "network_tree", 1, 0.25),
        MemberInfo("knn", "knn", None, 0.5),
    )

    @pytest.fixture
    def combination(self) -> Combination:
        validation = simulate({"network_tree": 4, "knn": 0}, 50)
        return Combination(self.MEMBERS, PenalisedWeights.of({"network_tree": 1, "knn": 0}, validation, K), 3)

    def test_labels_of_a_kind_without_weight_are_not_ranked(self, combination):
        network, other = (TopK(np.array([[label]], np.int32), np.array([[0.5]], np.float32)) for label in (1, 2))
        of_members = {"network_tree-0": network, "network_tree-1": network, "knn": other}
        assert combination.rank(of_members).labels.tolist() == [[1, -1, -1]]
        for missing in ("network_tree-0", "network_tree-1"):
            rest = {name: ranking for name, ranking in of_members.items() if name != missing}
            for mine, all_of_them in zip(combination.rank(rest), combination.rank(of_members), strict=True):
                np.testing.assert_allclose(mine, all_of_them)
        shares = [given.share for given in combination.contributions(np.array([[1]]), of_members)[0][0]]
        assert shares == pytest.approx([0.5, 0.5, 0])

    def test_a_kind_without_weight_answers_if_no_other_does(self, combination):
        other = TopK(np.array([[2]], np.int32), np.array([[0.5]], np.float32))
        assert combination.rank({"knn": other}).labels.tolist() == [[2, -1, -1]]

    @given(rankings(3))
    def test_scores_of_given_labels_are_those_of_the_ranking(self, of_members):
        members = MemberWeights([member.kind for member in self.MEMBERS], [member.weight for member in self.MEMBERS])
        combiner = PenalisedWeights.of(
            {"network_tree": 0.8, "knn": 0.2}, simulate({"network_tree": 3, "knn": 2}, 30), K
        )
        ranking = combiner.rank(members, of_members, 7)
        given_labels = np.arange(7)
        scores = combiner.score(
            members, given_labels, [one.scores_of(np.tile(given_labels, (2, 1))) for one in of_members]
        )
        inside = ranking.labels >= 0
        np.testing.assert_allclose(
            np.take_along_axis(scores, np.maximum(ranking.labels, 0), 1)[inside], ranking.scores[inside], rtol=1e-5
        )

    def test_members_divide_the_weight_of_their_kind_as_before(self):
        members = MemberWeights(["a", "b", "a"], [0.1, 0.6, 0.3])
        assert reweighted(members, {"a": 0.8, "b": 0.2}).weights == pytest.approx([0.2, 0.2, 0.6])
        assert reweighted(members, {"c": 1.0}) is members


class TestFile:
    @pytest.fixture
    def fitted(self) -> FittedWeights:
        return FittedWeights.fit(simulate({"linear_tree": 3, "knn": 2}, 60), K)

    def test_load_reads_what_save_wrote(self, fitted, tmp_path):
        fitted.save(tmp_path)
        loaded = FittedWeights.load(tmp_path, COUNTS)
        assert loaded.kinds == fitted.kinds and loaded.calibration.coefficients == fitted.calibration.coefficients
        assert set(loaded.about()["scores"]) == {"preset", "fitted", "linear_tree", "knn", "uncalibrated"}
        assert loaded.about()["documents"] == 60

    @pytest.mark.parametrize(
        "damage", [{"weights": {}}, {"weights": {"knn": -1}}, {"weights": None}, {"format": "else"}, {"extra": 1}]
    )
    def test_a_damaged_file_raises(self, fitted, tmp_path, damage):
        fitted.save(tmp_path)
        path = tmp_path / FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | damage))
        with pytest.raises(ValueError, match=r"weights\.json"):
            FittedWeights.load(tmp_path, COUNTS)

    def test_one_kind_needs_no_weights(self):
        validation = simulate({"knn": 2}, 30)
        fitted = FittedWeights.fit(validation, K)
        assert fitted.kinds.weights == {"knn": 1.0}
        assert fitted.calibration.coefficients == TopCalibration.fit(validation, K).coefficients
