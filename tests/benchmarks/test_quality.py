"""The benchmark of quality, and README's table. Run: pytest tests/benchmarks/test_quality.py"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/network"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/inference"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/training"))

import quality
import quality_table
import results_file
from tiny_run import train_run

from axml_ray.evaluate_run import evaluate
from axml_ray.inference.batch import predict_split


def test_scores_by_number_of_trees(ray_cluster: None, tmp_path: Path) -> None:
    trained = train_run(tmp_path, trees=3)
    predict_split(trained, "test")
    metrics = evaluate(trained)
    rows = list(quality.by_trees(trained))
    found, spreads = ({count: scores[of] for count, *scores in rows} for of in (0, 1))
    assert list(found) == list(spreads) == ["1", "2", "3"]
    for name, score in metrics["ensemble"].items():
        assert found["3"][name] == pytest.approx(score)
        alone = [member[name] for member in metrics["members"].values()]
        assert found["1"][name] == pytest.approx(sum(alone) / 3)
        assert spreads["1"][name] == pytest.approx((max(alone) - min(alone)) / 2) and spreads["3"][name] == 0


@pytest.mark.processes
def test_the_table_names_scores_and_what_was_not_run(tmp_path: Path) -> None:
    scores = {name: 50.0 for name in quality.FIGURES}
    rows = [{"trees": 3, "by_trees": {"1": scores, "2": scores, "3": scores | {"P@1": points}}} for points in (93, 94)]
    results_file.write(tmp_path / "quality-eurlex57k-short.json", quality.figures(rows, 3), rows)
    lines = quality_table.table(tmp_path)
    (ours,) = [line for line in lines if line.startswith("| **axml-ray, 3 trees, short (seeds: 2)**")]
    assert ours.split("|")[2].strip() == "**93.5**"
    assert any(line.startswith("| **axml-ray, one tree, short (seeds: 6)**") for line in lines)
    assert "`tibkat`" in lines[-2] and "eurlex57k" not in lines[-2]
    assert quality.figures(rows, 3)["P@1_half_spread"] == 0.5


def test_readme_has_the_table_of_the_results() -> None:
    text = quality_table.README.read_text(encoding="utf-8")
    assert quality_table.with_table(text, quality_table.table(results_file.RESULTS)) == text
