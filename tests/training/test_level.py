"""Run: pytest tests/training/test_level.py"""

import copy
import json
import math

import numpy as np
import pytest
import torch
from tiny_corpus import DEEP, FLAT, WIDE, curve_of, key_documents, small_network, small_training

import axml_ray.training.level as module
from axml_ray.core.ragged import Ragged
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.network.tree_level import Level
from axml_ray.training.batches import LevelData, make_batch
from axml_ray.training.checkpoints import FORMAT, MANIFEST, Checkpoints
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import DIVERGED, TrainingDivergedError, validation_score
from axml_ray.training.level_files import read_manifest

BOTH = pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])


def weights(network: LevelNetwork) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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


@BOTH
class TestLearning:
    def test_gradients_are_clipped_by_the_norm_of_all_of_them(self, level):
        """Those of the label table, too."""
        training, seen = small_training(small_network(level, 0.1), 400, epochs=(1,)), []
        apply, training.clip.clip = training.clip.apply, 0.1

        def recorded(gradients, norm, skip=None):
            before = [gradient.double().clone() for gradient in gradients]
            divisor = apply(gradients, norm, skip)
            seen.append((before, float(norm), [gradient.double() for gradient in gradients]))
            return divisor

        training.clip.apply = recorded
        training.run()
        names = {name for name, parameter in training.parameters.items() if parameter.requires_grad}
        for before, norm, _ in seen:
            assert len(before) == len(names)
            squares = [float(gradient.square().sum()) for gradient in before]
            assert norm == pytest.approx(math.sqrt(sum(squares)), rel=1e-5)
            assert min(squares[0], sum(squares[1:])) > 0  # the table's, and the others'
        clipped = [after[0].norm() / before[0].norm() for before, _, after in seen]
        assert min(clipped[:5]) == 1 and min(clipped[5:]) < 0.5

    def test_learns_and_leaves_the_best_weights(self, level):
        records = []
        training = small_training(
            small_network(level, 0.1), 400, report=records.append,
            epochs=(6,), average_after=(4,), eval_every_steps=20, learning_rate=0.03,
        )  # fmt: skip
        losses = curve_of(training)
        best = training.run()
        assert best > 95
        assert training.average.snapshots > 0
        score = validation_score(training.network, training.validation, "float32", DistributedContext())
        assert score == pytest.approx(best, abs=1e-6)
        assert same(weights(training.network), training.best)
        assert np.mean(losses[-10:]) < 0.25 * losses[0]
        assert records[-1]["step"] == len(losses) == training.state.step == 120
        assert records[-1]["loss"] == pytest.approx(np.mean(losses[-50:]))
        assert records[-1]["valid_nDCG@5"] == best
        assert (training.state.epoch, training.state.batch, training.state.documents) == (6, 0, 2_400)

    @pytest.mark.parametrize("evidence", [False, True])
    def test_first_loss_is_the_plain_networks(self, level, evidence):
        sizes = {"evidence": evidence, "fully_connected": (12, 7)}
        training = small_training(small_network(level, **sizes), 12, batch_size=12, epochs=(1,))
        losses = curve_of(training)
        plain = small_network(level, implementation="plain", **sizes).double()
        [batch] = [one.to(training.context.device) for one in training.batches()]
        states = plain.encode(batch.tokens, batch.own_lengths, batch.unique_ids)
        expected = plain.loss(states, batch.lengths, batch.positives, batch.count, batch.candidates)
        training.run()
        assert losses == [pytest.approx(expected.item(), rel=1e-5)]

    def test_same_seed_same_curve(self, level):
        curves = {}
        for name, seed in (("one", 1), ("again", 1), ("other", 2)):
            training = small_training(small_network(level, 0.3), 100, seed=seed, epochs=(3,))
            curves[name] = curve_of(training)
            training.run()
        assert curves["one"] == curves["again"]
        assert len(curves["one"]) == 15 and curves["one"] != curves["other"]


def test_reduced_precision_learns_too():
    training = small_training(
        small_network(FLAT), 300, epochs=(5,), eval_every_steps=25, learning_rate=0.03, precision="bfloat16"
    )
    assert training.run() > 90
    assert all(parameter.dtype == torch.float32 for parameter in training.network.parameters())


class TestStep:
    def test_moves_on_by_one_batch(self):
        training = small_training(small_network(WIDE), 50)
        batches = list(training.batches())
        assert [batch.size for batch in batches] and sum(batch.size for batch in batches) == 50
        training.step(batches[0])
        at = training.state
        assert (at.epoch, at.batch, at.step, at.documents) == (0, 1, 1, batches[0].size)
        # and the rest of the epoch is what was left
        assert [batch.rows.tolist() for batch in training.batches()] == [batch.rows.tolist() for batch in batches[1:]]

    def test_leaves_rows_alone_that_no_document_asks_for(self):
        """Adam's moments would move a row whose gradient is zero, and a step's cost would grow with the level."""
        training = small_training(small_network(WIDE), 40, keep=2)
        table = training.network.attention.weight
        for row in range(12):
            training.step(make_batch(training.data, WIDE, np.array([row])))
        before = table.detach().clone()
        batch = make_batch(training.data, WIDE, np.array([12]))
        training.step(batch)
        moved = (table.detach() != before).any(dim=1).nonzero()[:, 0]
        assert moved.tolist() == sorted(training.data.parents[12])

    def test_a_candidate_that_is_missing_touches_no_row(self):
        """Fewer candidates than C are filled up with -1: no node's row may be moved by that."""
        training = small_training(small_network(WIDE), 40, keep=2)
        table = training.network.attention.weight
        training.data.parents[:3] = [[0, 5], [0, 7], [0, 9]]
        for row in range(3):
            training.step(make_batch(training.data, WIDE, np.array([row])))
        training.data.parents[3] = [4, -1]
        before = table.detach().clone()
        training.step(make_batch(training.data, WIDE, np.array([3])))
        assert (table.detach() != before).any(dim=1).nonzero()[:, 0].tolist() == [4]

    def test_dropout_is_another_at_each_step_and_document(self):
        training = small_training(small_network(FLAT, 0.5), 40)
        batch = next(training.batches())
        first = training.dropout_seeds(batch.documents)
        assert len(set(first.tolist())) == len(first)
        training.state.step += 1
        assert not set(first.tolist()) & set(training.dropout_seeds(batch.documents).tolist())


class TestWhenItEnds:
    def test_epochs_of_the_level(self):
        for level, epochs in ((FLAT, 2), (DEEP, 3), (Level(3, 10, DEEP.first_child), 3)):
            training = small_training(small_network(level), 50, epochs=(2, 3), eval_every_steps=100)
            training.run()
            assert training.state.step == epochs * 3  # batches of 20, 20 and 10

    def test_patience(self, scripted):
        seen = scripted([10, 30, 20, 30, 29, 99])
        training = small_training(small_network(FLAT), 200, epochs=(9,), eval_every_steps=2, patience_steps=6)
        assert training.run() == 30
        assert len(seen) == 5 and training.state.step == 10
        assert training.state.best_step == 4
        assert same(weights(training.network), seen[1])
        assert not same(seen[1], seen[4])

    def test_patience_counts_to_the_last_evaluation(self, scripted):
        """An epoch has 10 steps, fewer than lie between two evaluations, and more than the patience."""
        seen = scripted([10, 9, 8])
        training = small_training(small_network(FLAT), 200, epochs=(9,), eval_every_steps=25, patience_steps=5)
        assert training.run() == 10
        assert len(seen) == 2 and training.state.step == 50

    def test_a_gain_renews_patience(self, scripted):
        seen = scripted([10, 9, 11, 10, 12, 11, 10])
        training = small_training(small_network(FLAT), 200, epochs=(9,), eval_every_steps=1, patience_steps=2)
        assert training.run() == 12
        assert len(seen) == 7

    def test_what_is_left_over_is_scored_too(self, scripted):
        seen = scripted([10, 20])
        training = small_training(small_network(FLAT), 100, epochs=(1,), eval_every_steps=3)
        assert training.run() == 20
        assert training.state.step == 5 and len(seen) == 2
        assert same(weights(training.network), seen[1])

    def test_a_score_of_zero_is_a_score(self, scripted):
        seen = scripted([0, 0])
        training = small_training(small_network(FLAT), 40, epochs=(2,), eval_every_steps=2)
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
        training = small_training(small_network(FLAT), 200, epochs=(3,), average_after=(1,), eval_every_steps=5)
        training.run()
        # at steps 15, 20, 25 and 30, not at 5 and 10
        assert training.average.snapshots == len(snapshots) == 4
        assert same(seen[2], snapshots[0])
        for count in (2, 3, 4):
            for name, value in seen[1 + count].items():
                mean = torch.stack([snapshot[name] for snapshot in snapshots[:count]]).mean(0)
                torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)
        for name, mean in training.average.mean.items():
            assert torch.equal(mean, seen[-1][name])

    def test_may_be_switched_off(self):
        training = small_training(small_network(FLAT), 40, epochs=(2,), average_after=(2,), eval_every_steps=1)
        training.run()
        assert training.average.snapshots == 0
        assert not training.average.mean

    @BOTH
    def test_scoring_does_not_disturb_training(self, level):
        curves = []
        for every in (1, 100):
            training = small_training(
                small_network(level, 0.2), 100, epochs=(2,), average_after=(0,), eval_every_steps=every
            )
            curves.append(curve_of(training))
            training.run()
        assert curves[0] == curves[1]


class TestDiverged:
    def kept(self, directory) -> Checkpoints:
        return Checkpoints(directory, "mark", 0)

    def test_keeps_the_best_weights_and_the_last_checkpoint(self, scripted, tmp_path):
        seen = scripted([10, 20, 15])
        checkpoints = self.kept(tmp_path / "checkpoint")
        training = small_training(small_network(FLAT), 200, epochs=(5,), eval_every_steps=2, checkpoints=checkpoints)
        step = training.step
        before: dict[str, torch.Tensor] = {}

        def poisoned(batch):
            checkpoints.wait()
            if training.state.step == 6:
                before.update(weights(training.network))
                with torch.no_grad():
                    training.network.head.output.bias.fill_(float("nan"))
            step(batch)

        training.step = poisoned
        with pytest.raises(TrainingDivergedError, match=r"level 1: the loss is nan after 7 steps.*kept.*learning_rate"):
            training.run()
        assert same(weights(training.network), seen[1])
        # the checkpoint is that of step 6, and a new training starts there
        assert json.loads((tmp_path / "checkpoint" / MANIFEST).read_text())["position"]["step"] == 6
        again = small_training(small_network(FLAT, seed=5), 200, epochs=(5,), eval_every_steps=2)
        assert self.kept(tmp_path / "checkpoint").resume(again)
        assert same(weights(again.network), before) and same(again.best, seen[1])

    def test_a_checkpoint_never_takes_the_place_of_a_good_one_with_weights_that_are_no_numbers(
        self, scripted, tmp_path
    ):
        """The loss of a step is of the weights before it: they may be wrong since, unnoticed until a scoring."""
        scripted([10, 20, 15])
        training = small_training(
            small_network(FLAT), 200, epochs=(5,), eval_every_steps=2, checkpoints=self.kept(tmp_path / "checkpoint")
        )
        update = training.optimizer.step

        def wild(**given):
            update(**given)
            if training.state.step == 3:  # the fourth, after which a checkpoint is due
                with torch.no_grad():
                    training.network.attention.weight[0, 0] = float("inf")

        training.optimizer.step = wild
        with pytest.raises(TrainingDivergedError, match="level 1: after 4 steps"):
            training.run()
        assert all(parameter.isfinite().all() for parameter in training.network.parameters())
        again = small_training(small_network(FLAT), 200)
        assert self.kept(tmp_path / "checkpoint").resume(again)
        assert again.state.step == 2
        assert all(parameter.isfinite().all() for parameter in again.network.parameters())

    def test_a_loss_far_above_the_first(self, scripted, tmp_path, monkeypatch):
        """Finite throughout: the mean of ten steps is held against the mean of the first ten."""
        seen = scripted(list(range(1, 100)))
        checkpoints = self.kept(tmp_path / "checkpoint")
        training = small_training(small_network(FLAT), 400, epochs=(5,), eval_every_steps=10, checkpoints=checkpoints)
        losses = curve_of(training)
        loss = FusedAttentionXML.loss
        first = 0.6

        def rising(network, *rest):
            # 0.6 for thirty steps, 2.9 for twenty (below 5 times the first), then 3.1
            checkpoints.wait()  # the next one is left out while the last is still being copied
            wanted = first if len(losses) < 30 else 2.9 if len(losses) < 50 else 3.1
            found = loss(network, *rest)
            return found + (wanted - found.detach())

        monkeypatch.setattr(FusedAttentionXML, "loss", rising)
        assert DIVERGED == 5
        with pytest.raises(TrainingDivergedError, match=r"the loss is 3\.02 after 56 steps.* 0\.6"):
            training.run()
        assert same(weights(training.network), seen[-1]) and len(seen) == 5
        assert read_manifest(tmp_path / "checkpoint", MANIFEST, FORMAT, "mark")["position"]["step"] == 50

    def test_a_level_that_continues_from_good_weights_may_rise_to_the_loss_of_a_constant(self):
        """Its first losses are far smaller than what a new batch of unknown labels gives."""
        training = small_training(small_network(FLAT), 200)
        rate = training.data.positive_rate(training.network.level)
        constant = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
        training.state.step, training.state.first_loss = 20, 1e-4
        training.state.recent = [constant] * 10
        training._check_loss()
        training.state.recent = [1.01 * DIVERGED * constant] * 10
        with pytest.raises(TrainingDivergedError):
            training._check_loss()

    def test_a_report_gives_no_verdict(self):
        """Each worker reports by its own clock: one that left by it would let the others wait."""
        training = small_training(small_network(FLAT), 200)
        training.state.step, training.state.first_loss = 13, 0.5
        training._since_start, training._began = (0, 0.0), 0.0
        training._pending = [torch.tensor(0.5), torch.tensor(float("nan"))]
        training._report()
        assert len(training.state.recent) == 2 and not training._pending
        with pytest.raises(TrainingDivergedError, match="the loss is nan after 13 steps"):
            training._check_loss()

    def test_a_learning_rate_beyond_reason(self):
        training = small_training(small_network(DEEP), 200, epochs=(5,), eval_every_steps=1, learning_rate=1e30)
        with pytest.raises(TrainingDivergedError):
            training.run()
        assert all(parameter.isfinite().all() for parameter in training.network.parameters())


class TestValidationScore:
    @BOTH
    def test_is_the_mean_ndcg(self, level):
        network = small_network(level)
        valid = small_training(network).validation
        score = validation_score(network, valid, "float32", DistributedContext())
        gains = []
        for row in range(len(valid.tokens)):
            words = torch.from_numpy(valid.tokens[row].astype(np.int64))[None]
            length = torch.tensor([words.shape[1]])
            candidates = None
            if level.first_child is not None:
                candidates = Candidates.from_parents(np.arange(4)[None], level)
            with torch.no_grad():
                found = network.logits(network.encode(words, length), length, candidates)
            if candidates is not None:
                found = found[:, candidates.exists[0]]  # 0 to 9 again
            assert found.shape == (1, 10)
            top = found[0].argsort(descending=True)[None, :5].numpy()
            truth = valid.positives[row]
            gains.append(ndcg_at(top, truth, np.array([0, len(truth)]), 5)[0])
        assert score == pytest.approx(100 * np.mean(gains), abs=1e-6)

    def test_places_that_hold_no_child_are_no_hits(self):
        """One candidate, and four empty places whose numbers would be those of true nodes."""
        network = small_network(Level(2, 6, np.array([0, 1, 6])))
        tokens, _ = key_documents(3, 6)
        beam = Beam(torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 1))
        truth = Ragged.from_rows([[1, 2], [3], [4]])
        assert validation_score(network, LevelData(tokens, truth, beam=beam), "float32", DistributedContext()) == 0


def test_the_network_handed_in_is_the_one_trained():
    network = small_network(FLAT)
    before = copy.deepcopy(network.state_dict())
    small_training(network, 40, epochs=(1,)).run()
    after = network.state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before)
    assert not after["encoder.embedding.weight"][0].any()
