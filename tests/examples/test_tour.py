"""The tour runs, and its second run is compared with its first. Run: pytest tests/examples/test_tour.py"""

import runpy
from pathlib import Path

import pytest

from axml_ray import Tagger

TOUR = Path(__file__).parents[2] / "examples" / "tour.py"


@pytest.mark.slow
def test_the_tour(ray_cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = runpy.run_path(str(TOUR))["main"](tmp_path)
    assert comparison["runs"] == ["networks", "ensemble"]
    assert comparison["measures"]["nDCG@5"]["difference"] > 5
    assert "scipy.sparse" in capsys.readouterr().out
    tagger = Tagger.load(tmp_path / "bundle")
    assert len(tagger.tag(["Multiply two sparse matrices."])[0]) == 5
