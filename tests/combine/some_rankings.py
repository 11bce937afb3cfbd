"""Random rankings of members, and a frequency calibration with its equation for one label."""

import math

import numpy as np
from hypothesis import strategies as st

from axml_ray.combine.frequency import LEAST, Coefficients, FrequencyCalibration
from axml_ray.members.topk import TopK

COUNTS = np.array([400, 90, 30, 7, 2, 1, 0])
UNEVEN = FrequencyCalibration(Coefficients(intercept=0.3, score=0.9, both=-0.05, frequency=-0.4), COUNTS)


def calibrated(c: Coefficients, score: float, count: int) -> float:
    inside = min(max(score, LEAST), 1 - LEAST)
    logit, f = math.log(inside / (1 - inside)), math.log(1 + count)
    return 1 / (1 + math.exp(-(c.intercept + (c.score + c.both * f) * logit + c.frequency * f)))


@st.composite
def rankings(draw: st.DrawFn, members: int) -> list[TopK]:
    """Each member's ranking of two documents, some labels missing; scores are exact in float32 and in sums."""
    found = []
    for _ in range(members):
        ranking = TopK.empty(2, draw(st.integers(1, 5)))
        for labels, scores in zip(*ranking, strict=True):
            row = draw(st.lists(st.integers(0, len(COUNTS) - 1), max_size=len(labels), unique=True))
            labels[: len(row)], scores[: len(row)] = row, [draw(st.integers(0, 64)) / 64 for _ in row]
        found.append(ranking)
    return found
