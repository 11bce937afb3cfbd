"""Training in float16 by the GPU's code with real numbers on a CPU, against float32.

Run: pytest tests/training/test_float16.py
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_corpus import FLAT, WIDE, curve_of, small_network, small_training

from axml_ray.network.backends.backend import replaced_backend
from axml_ray.network.backends.cuda_backend import CudaBackend
from axml_ray.network.level_network import TABLE
from axml_ray.network.optimization.loss_scale import LARGEST, LossScale
from axml_ray.network.tree_level import Level
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.level import LevelTraining, TrainingDivergedError

both_levels = pytest.mark.parametrize("level", [FLAT, WIDE], ids=["all nodes", "candidates"])


@pytest.fixture(autouse=True)
def _gpu_code() -> Iterator[None]:
    with replaced_backend(torch.device("cpu"), CudaBackend("cpu")) as backend:
        backend.loss_interval = 1
        yield


def training_of(level: Level, precision: str, **changes: Any) -> LevelTraining:
    settings = {"epochs": (3,), "eval_every_steps": 10, "average_after": (1,), **changes}
    return small_training(small_network(level, 0.2), 120, precision=precision, **settings)


def state_of(training: LevelTraining) -> list[torch.Tensor]:
    """Weights, moments, step counters and the history of norms."""
    states = [training.optimizer.state[one] for one in training.parameters.values()]
    tensors = [*training.parameters.values(), *(value for state in states for value in state.values())]
    return [tensor.detach().clone() for tensor in (*tensors, training.clip.norms)]


@both_levels
def test_learns_as_in_float32(level):
    found = {}
    for precision in ("float32", "float16"):
        training = training_of(level, precision)
        losses, best = curve_of(training), training.run()
        found[precision] = losses, best
        assert (training.loss_scale is not None) == (precision == "float16")
    assert training.loss_scale.skipped == 0
    assert found["float16"][0] == pytest.approx(found["float32"][0], rel=0.01)
    assert found["float16"][1] == pytest.approx(found["float32"][1], abs=1.5)


@both_levels
def test_a_scale_alone_changes_nothing(level):
    """In float32, where a power of two is exact, weights are equal to the last bit, also if gradients are clipped."""
    found = []
    for scale in (None, LossScale(2.0**20)):
        training = training_of(level, "float32")
        training.clip.clip, training.loss_scale = 0.9, scale
        found.append((curve_of(training), training.run(), state_of(training)))
    (losses, best, state), (same_losses, same_best, same_state) = found
    assert (losses, best) == (same_losses, same_best)
    for one, other in zip(state, same_state, strict=True):
        assert torch.equal(one, other)


@both_levels
def test_an_overflow_skips_the_step_and_halves_the_factor(level):
    training = training_of(level, "float16")
    batches = list(training.batches())
    training.step(batches[0])
    training.loss_scale.factor = torch.tensor(LARGEST)
    before, skipped = state_of(training), 0
    while True:
        training.step(batches[1])
        if training.loss_scale.skipped == skipped:
            break
        skipped += 1
        assert training.loss_scale.factor == LARGEST / 2**skipped
        assert all(map(torch.equal, before, state_of(training)))
    assert 5 < skipped < 40
    assert all(one.isfinite().all() for one in state_of(training)[:-1])  # but the history of norms, which has infinity
    assert not any(map(torch.equal, before[:-1], state_of(training)[:-1]))
    assert {state["step"].item() for state in training.optimizer.state.values()} == {2}
    assert training.state.step == 2 + skipped


def test_without_a_scale_gradients_would_vanish():
    level = Level(1, 4_000, None)
    table = {}
    for name, precision, factor in (("exact", "float32", None), ("scaled", "float16", None), ("not", "float16", 1.0)):
        training = training_of(level, precision)
        if factor is not None:
            training.loss_scale.factor = torch.tensor(factor)
        training.network.initialise_output_bias(1e-3)  # as for rare labels
        one = next(training.batches())
        with torch.autocast("cpu", torch.float16, enabled=precision == "float16"):
            states = training.network.encode(one.tokens, one.own_lengths, one.unique_ids)
            scale = training.loss_scale.factor if training.loss_scale else None
            training.network.loss(states, one.lengths, one.positives, one.count, None, scale).backward()
        table[name] = training.parameters[TABLE].grad / (1 if scale is None else scale)
    assert (table["scaled"] - table["exact"]).norm() < 0.02 * table["exact"].norm()
    lost = {name: ((values == 0) & (table["exact"] != 0)).double().mean().item() for name, values in table.items()}
    assert lost["scaled"] < 0.01 and lost["not"] > 0.9


def test_ends_where_no_scale_helps():
    training = training_of(FLAT, "float16", epochs=(10,))
    training.network.head.output.weight.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(TrainingDivergedError, match="float16"):
        training.run()


def test_continues_from_a_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoint", "key", 0.0)
    interrupted, resumed = (training_of(FLAT, "float16", checkpoints=checkpoints) for _ in range(2))
    interrupted.loss_scale.factor *= 2.0**30  # so that some steps are skipped
    for batch in interrupted.batches():
        interrupted.step(batch)
    interrupted.state.epoch, interrupted.state.batch = 1, 0
    checkpoints.save(interrupted)
    assert checkpoints.resume(resumed)
    assert resumed.loss_scale.state() == interrupted.loss_scale.state()
    assert resumed.loss_scale.skipped > 0
    for training in (interrupted, resumed):
        for batch in training.batches():
            training.step(batch)
    for one, other in zip(state_of(interrupted), state_of(resumed), strict=True):
        assert torch.equal(one, other)
