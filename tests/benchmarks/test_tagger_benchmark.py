"""The figures of `benchmarks/tagger.py`."""

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tagger(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import tagger

    return tagger


def row(tagger: Any, side: str, number: int, ms: float, rate: float) -> dict[str, Any]:
    values = dict(zip(tagger.FIGURES, (ms, 2 * ms, rate / 2, rate), strict=True))
    return {"side": side, "round": number, **values}


def test_figures_are_medians_and_ratios_of_rounds(tagger: Any) -> None:
    ours = [row(tagger, "ours", number, 10.0 + number, 600.0) for number in range(3)]
    others = [row(tagger, "other", number, 22.0, 400.0 - 100 * number) for number in range(3)]
    found = tagger.figures([*ours, *others])
    assert (found["ms_p50"], found["ms_p99"], found["texts_per_s_64"]) == (11.0, 22.0, 300.0)
    assert (found["other_ms_p50"], found["other_texts_per_s"]) == (22.0, 300.0)
    assert found["bulk_ratio"] == pytest.approx(2.0)
    assert found["single_ratio"] == pytest.approx(2.0)


def test_one_side_has_no_ratio(tagger: Any) -> None:
    assert set(tagger.figures([row(tagger, "ours", 0, 10.0, 600.0)])) == set(tagger.FIGURES)
