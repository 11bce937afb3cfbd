"""Run: pytest tests/network/test_loss_scale.py"""

import math

import pytest
import torch

from axml_ray.network.optimization.loss_scale import INTERVAL, LARGEST, LossScale


def run(scale: LossScale, norms: list[float]) -> list[float]:
    """Return the factor after each step of these norms."""
    factors = []
    for norm in norms:
        scale.update(scale.overflows(torch.tensor(norm)))
        factors.append(scale.factor.item())
    return factors


@pytest.mark.parametrize(("denominator", "factor"), [(0.3, 1), (1000, 1024), (2.0**60, LARGEST)])
def test_starts_at_the_power_of_two_next_to_the_denominator(denominator, factor):
    assert LossScale(denominator).factor.item() == factor


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_overflows_halve_it(norm):
    scale = LossScale(64)
    assert run(scale, [1.0, norm, norm, 1.0]) == [64, 32, 16, 16]
    assert scale.state() == {"factor": 16, "steps": 1, "skipped": 2}


def test_doubles_after_enough_steps_without_an_overflow():
    scale = LossScale(64)
    factors = run(scale, [1.0] * (INTERVAL - 1) + [math.inf] + [1.0] * (2 * INTERVAL))
    assert factors == [64] * (INTERVAL - 1) + [32] * INTERVAL + [64] * INTERVAL + [128]


def test_has_a_limit():
    assert set(run(LossScale(LARGEST), [1.0] * (INTERVAL + 1))) == {LARGEST}


def test_continues_from_a_checkpoint():
    scale, other = LossScale(64), LossScale(2)
    run(scale, [1.0, math.inf, *[1.0] * 7])
    other.restore(scale.state())
    norms = [1.0] * (INTERVAL - 7)
    assert run(other, norms) == run(scale, norms) and scale.factor.item() == 64
    assert other.state() == scale.state()
