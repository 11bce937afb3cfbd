"""Run: pytest tests/training/test_level.py"""

import copy
import math

import numpy as np
import pytest
import torch
from literal_attention_xml import logits, loss, parameters_of
from tiny_corpus import key_documents

import axml_ray.training.level as module
from axml_ray.evaluation.metrics import ndcg_at
from axml_ray.network.attention_xml import AttentionXML, Beam, Level
from axml_ray.ragged import Ragged
from axml_ray.settings import NetworkSettings, TrainingSettings
from axml_ray.training.batches import LevelData
from axml_ray.training.level import Diverged, LevelTraining, Validation, validation_score
from axml_ray.training.workers import Workers

LABELS = 10
FIRST_CHILD = np.array([0, 3, 4, 8, 10])


def network_of(level: Level, dropout: float = 0.0) -> AttentionXML:
    torch.manual_seed(4)
    vectors = torch.randn(LABELS + 12, 12)
    vectors[0] = 0
    settings = NetworkSettings(hidden=10, fully_connected=(12,), embedding_dropout=dropout, encoder_dropout=dropout)
    return AttentionXML(level, vectors, settings)


def training_of(
    network: AttentionXML, documents: int = 200, seed: int = 1, report=lambda record: None, **changes: object
) -> LevelTraining:
    """Labels 0 to 9; at a deep level, three of their four parents are candidates."""
    settings = TrainingSettings(**{"batch_size": 20, "learning_rate": 0.01, "precision": "float32", **changes})
    tokens, positives = key_documents(documents, LABELS)
    valid_tokens, valid_positives = key_documents(40, LABELS, seed=9)
    parents = beam = None
    if network.level.first_child is not None:
        random = np.random.default_rng(2)
        parents = np.stack([random.permutation(4)[:3] for _ in range(documents)])
        beam = Beam(torch.arange(4).expand(40, 4), torch.zeros(40, 4))
    data = LevelData(tokens, positives, parents)
    validation = Validation(valid_tokens, valid_positives, beam)
    return LevelTraining(network, data, validation, settings, seed, report=report)


def weights(network: AttentionXML) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


FLAT, DEEP = Level(1, LABELS, None), Level(2, LABELS, FIRST_CHILD)


@pytest.fixture
def scripted(monkeypatch):
    """Scores that a test chooses, instead of those of the validation documents; and the weights that got them."""

    def script(scores: list[float]) -> list[dict[str, torch.Tensor]]:
        seen: list[dict[str, torch.Tensor]] = []

        def score(network, validation, precision, workers):
            seen.append(weights(network))
            return scores[len(seen) - 1]

        monkeypatch.setattr(module, "validation_score", score)
        return seen

    return script


@pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
class TestLearning:
    def test_learns_and_leaves_the_best_weights(self, level):
        records = []
        training = training_of(
            network_of(level, dropout=0.1), 400, report=records.append, epochs=(12,), average_after=(9,), score_every=20
        )
        best = training.run()
        assert best > 95
        assert training.average.snapshots > 0
        score = validation_score(training.network, training.validation, "float32", Workers())
        assert score == pytest.approx(best, abs=1e-6)
        assert np.mean(training.losses[-10:]) < 0.25 * training.losses[0]
        assert records[-1]["step"] == len(training.losses) == 240
        assert records[-1]["valid_nDCG@5"] == best

    def test_first_loss_is_the_literal_one(self, level):
        network = network_of(level)
        training = training_of(network, 12, batch_size=12, epochs=(1,))
        p = parameters_of(network)
        first_child = None if level.first_child is None else level.first_child.tolist()
        nodes = [list(range(LABELS))] * 12
        if first_child is not None:
            rows = training.data.parents.tolist()
            nodes = [[node for i in row for node in range(first_child[i], first_child[i + 1])] for row in rows]
        tokens, truth = training.data.tokens, training.data.positives
        scores = logits(p, [tokens[row].tolist() for row in range(12)], nodes, first_child)
        expected = loss(scores, nodes, [truth[row].tolist() for row in range(12)])
        training.run()
        assert len(training.losses) == 1
        assert training.losses[0] == pytest.approx(expected.item(), rel=1e-5)

    def test_same_seed_same_curve(self, level):
        curves = {}
        for name, seed in (("one", 1), ("again", 1), ("other", 2)):
            training = training_of(network_of(level, dropout=0.3), 100, seed=seed, epochs=(3,))
            training.run()
            curves[name] = training.losses
        assert curves["one"] == curves["again"]
        assert curves["one"] != curves["other"]


def test_reduced_precision_learns_too():
    training = training_of(network_of(FLAT), 300, epochs=(10,), score_every=50, precision="bfloat16")
    assert training.run() > 90
    assert all(parameter.dtype == torch.float32 for parameter in training.network.parameters())


class TestWhenItEnds:
    def test_epochs_of_the_level(self):
        for level, epochs in ((FLAT, 2), (DEEP, 3), (Level(3, LABELS, FIRST_CHILD), 3)):
            training = training_of(network_of(level), 50, epochs=(2, 3), score_every=100)
            training.run()
            assert len(training.losses) == epochs * 3  # batches of 20, 20 and 10

    def test_patience(self, scripted):
        seen = scripted([10, 30, 20, 30, 29, 99])
        training = training_of(network_of(FLAT), 200, epochs=(9,), score_every=2, patience=3)
        assert training.run() == 30
        assert len(seen) == 5 and len(training.losses) == 10
        assert same(weights(training.network), seen[1])
        assert not same(seen[1], seen[4])

    def test_what_is_left_over_is_scored_too(self, scripted):
        seen = scripted([10, 20])
        training = training_of(network_of(FLAT), 100, epochs=(1,), score_every=3)
        assert training.run() == 20
        assert len(training.losses) == 5 and len(seen) == 2
        assert same(weights(training.network), seen[1])

    def test_a_score_of_zero_is_a_score(self, scripted):
        seen = scripted([0, 0])
        training = training_of(network_of(FLAT), 40, epochs=(2,), score_every=2)
        assert training.run() == 0
        assert same(weights(training.network), seen[0])


class TestAveraging:
    def test_begins_after_its_epochs(self, scripted, monkeypatch):
        snapshots: list[dict[str, torch.Tensor]] = []
        add = module.WeightAverage.add

        def watched(average, network):
            snapshots.append(weights(network))
            add(average, network)

        monkeypatch.setattr(module.WeightAverage, "add", watched)
        seen = scripted([1, 2, 3, 4, 5, 6])
        training = training_of(network_of(FLAT), 200, epochs=(3,), average_after=(1,), score_every=5)
        training.run()
        # at steps 15, 20, 25 and 30, not at 5 and 10
        assert training.average.snapshots == len(snapshots) == 4
        assert same(seen[2], snapshots[0])
        for count in (2, 3, 4):
            for name, value in seen[1 + count].items():
                mean = torch.stack([snapshot[name] for snapshot in snapshots[:count]]).mean(0)
                torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)

    def test_may_be_switched_off(self):
        training = training_of(network_of(FLAT), 40, epochs=(2,), average_after=(0,), averaging=False, score_every=1)
        training.run()
        assert training.average.snapshots == 0

    def test_scoring_does_not_disturb_training(self):
        curves = []
        for every in (1, 100):
            training = training_of(network_of(FLAT, 0.2), 100, epochs=(2,), average_after=(0,), score_every=every)
            training.run()
            curves.append(training.losses)
        assert curves[0] == curves[1]


class TestDiverged:
    def test_keeps_the_last_good_weights(self, scripted, monkeypatch):
        seen = scripted([10, 20, 15])
        score = module.validation_score

        def poison_after_the_third(network, *rest):
            value = score(network, *rest)
            if len(seen) == 3:
                with torch.no_grad():
                    network.head.output.bias.fill_(float("nan"))
            return value

        monkeypatch.setattr(module, "validation_score", poison_after_the_third)
        training = training_of(network_of(FLAT), 200, epochs=(5,), score_every=2)
        with pytest.raises(Diverged, match=r"level 1: the loss is nan after 6 steps.*learning_rate"):
            training.run()
        assert same(weights(training.network), seen[1])
        assert all(map(math.isfinite, training.losses))

    def test_a_learning_rate_beyond_reason(self):
        training = training_of(network_of(DEEP), 200, epochs=(5,), score_every=1, learning_rate=1e30)
        with pytest.raises(Diverged):
            training.run()
        assert all(parameter.isfinite().all() for parameter in training.network.parameters())


class TestValidationScore:
    @pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
    def test_is_the_mean_ndcg(self, level):
        network = network_of(level)
        training = training_of(network)
        valid = training.validation
        score = validation_score(network, valid, "float32", Workers())
        gains = []
        for row in range(len(valid.tokens)):
            words = torch.from_numpy(valid.tokens[row].astype(np.int64))[None]
            parents = None if level.first_child is None else torch.arange(4)[None]
            found = network(words, torch.tensor([words.shape[1]]), parents)
            if parents is not None:
                found = found[:, network.exists(parents)[0]]  # 0 to 9 again
            top = found[0].argsort(descending=True)[None, :5].numpy()
            truth = valid.positives[row]
            gains.append(ndcg_at(top, truth, np.array([0, len(truth)]), 5)[0])
        assert score == pytest.approx(100 * np.mean(gains), abs=1e-6)

    def test_places_that_hold_no_child_are_no_hits(self):
        """One candidate, and four empty places whose numbers would be those of true nodes."""
        network = network_of(Level(2, 6, np.array([0, 1, 6])))
        tokens, _ = key_documents(3, LABELS)
        beam = Beam(torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 1))
        truth = Ragged.from_rows([[1, 2], [3], [4]])
        assert validation_score(network, Validation(tokens, truth, beam), "float32", Workers()) == 0


def test_the_network_handed_in_is_the_one_trained():
    network = network_of(FLAT)
    before = copy.deepcopy(network.state_dict())
    training_of(network, 40, epochs=(1,)).run()
    after = network.state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before)
    assert not after["encoder.embedding.weight"][0].any()
