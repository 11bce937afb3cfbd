"""Hypothesis strategy for members' rankings, and a frequency calibration with a literal version of its equation."""

import math

import numpy as np
from hypothesis import strategies as st

from axml_ray.core.topk import TopK
from axml_ray.ensemble.frequency import MARGIN, Coefficients, FrequencyCalibration

COUNTS = np.array([400, 90, 30, 7, 2, 1, 0])
CALIBRATION = FrequencyCalibration(Coefficients(intercept=0.3, score=0.9, both=-0.05, frequency=-0.4), COUNTS)


def literal_calibration(c: Coefficients, score: float, count: int) -> float:
    clipped = min(max(score, MARGIN), 1 - MARGIN)
    logit, f = math.log(clipped / (1 - clipped)), math.log(1 + count)
    return 1 / (1 + math.exp(-(c.intercept + (c.score + c.both * f) * logit + c.frequency * f)))


@st.composite
def rankings(draw: st.DrawFn, members: int) -> list[TopK]:
    """Draw each member's ranking of two documents, partly padded; scores and their sums are exact in float32."""
    drawn = []
    for _ in range(members):
        ranking = TopK.empty(2, draw(st.integers(1, 5)))
        for labels, scores in zip(*ranking, strict=True):
            row = draw(st.lists(st.integers(0, len(COUNTS) - 1), max_size=len(labels), unique=True))
            labels[: len(row)], scores[: len(row)] = row, [draw(st.integers(0, 64)) / 64 for _ in row]
        drawn.append(ranking)
    return drawn
