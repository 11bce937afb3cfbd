"""Run: pytest tests/benchmarks/test_demo_benchmark.py

Figures of the demo's benchmark from its rows, and an unknown revision.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import demo

    yield demo
    del sys.modules["demo"]


def row(side: str, number: int, seconds: float, first: float | None = None) -> dict[str, Any]:
    scores = {"P@5": 58.0, "nDCG@5": 71.0, "P@5_without_networks": None if first is None else 55.0}
    return {"side": side, "round": number, "seconds": seconds, "first_scores_seconds": first, **scores}


def test_figures_are_medians_and_the_ratio_is_of_each_round(demo: Any) -> None:
    rows = [row("ours", 0, 300, 80), row("other", 0, 600), row("ours", 1, 400, 90), row("other", 1, 1_000)]
    rows += [row("ours", 2, 500, 85), row("other", 2, 900)]
    figures = demo.figures(rows)
    assert figures["seconds"] == 400 and figures["other_seconds"] == 900 and figures["first_scores_seconds"] == 85
    assert figures["ratio"] == 0.5  # of 0.5, 0.4 and 0.56
    assert "other_first_scores_seconds" not in figures
    assert "ratio" not in demo.figures(rows[:1])


@pytest.mark.processes
def test_an_unknown_revision_is_named(demo: Any, tmp_path: Path) -> None:
    with pytest.raises(demo.SettingsError, match="no-such-revision"):
        demo.clone("no-such-revision", tmp_path / "clone")
