"""The metrics file and its tables.

python -m pytest tests/evaluation/test_report.py
"""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from axml_ray.evaluation.reports.report import COLUMNS, scores_table, weights_table, write_metrics


def test_thresholds_are_not_rounded(tmp_path):
    """Labels that have just this score reach it."""
    write_metrics(tmp_path / "metrics.json", {"label_sets": {"threshold": 2 / 3, "micro-F1": 200 / 3}})
    stored = json.loads((tmp_path / "metrics.json").read_text())["label_sets"]
    assert stored == {"threshold": 2 / 3, "micro-F1": 66.6667}


def render(metrics, table=scores_table):
    console = Console(file=io.StringIO(), width=110, color_system=None)
    console.print(table(metrics))
    return console.file.getvalue()


@pytest.fixture
def metrics():
    def scores(base):
        return {name: base + place for place, name in enumerate(COLUMNS)} | {"R@10": 99.0}

    return {
        "corpus": "eurlex [57k]",
        "split": "test",
        "documents": 6000,
        "ensemble": scores(60.126),
        "members": {"network_tree-0": scores(50.0), "knn": scores(55.0)},
        "seconds": {"prepare": 12.34, "cluster": 5.0, "network_tree": 4210.0, "predict": 33.0},
        "propensity": {"A": 0.55, "B": 1.5},
    }


def test_rows_columns_and_seconds(metrics):
    lines = [line.split() for line in render(metrics).splitlines()]
    assert list(COLUMNS) in lines
    rows = [line for line in lines if line and line[0] in ("network", "knn", "ensemble")]
    assert [row[: len(row) - 9] for row in rows] == [["network", "tree", "1"], ["knn"], ["ensemble"]]
    assert rows[0][-9:] == [f"{50 + place:.2f}" for place in range(9)]
    assert rows[2][-9:] == [f"{60.126 + place:.2f}" for place in range(9)]
    text = render(metrics)
    assert "eurlex [57k] · test · 6,000 documents" in text
    assert "prepare 12.3 s · cluster 5.0 s · network_tree 4,210.0 s · predict 33.0 s" in text


def test_the_ensembles_row_is_bold_and_set_apart(metrics):
    assert [str(row.style) for row in scores_table(metrics).rows] == ["None", "None", "bold"]
    lines = render(metrics).splitlines()
    place = next(i for i, line in enumerate(lines) if "ensemble" in line)
    assert "knn" not in lines[place - 1]


def test_missing_scores_are_dashes(metrics):
    del metrics["members"]["knn"]["PSP@5"], metrics["ensemble"], metrics["seconds"]
    text = render(metrics)
    row = next(line.split() for line in text.splitlines() if "knn" in line)
    assert row[-1] == "–" and row[-2] == "62.00"
    assert next(line.split() for line in text.splitlines() if "ensemble" in line)[1:] == ["–"] * 9
    assert render({})


def test_floats_are_rounded_in_the_file(tmp_path, metrics):
    path = tmp_path / "metrics.json"
    path.write_text("old")
    metrics["ensemble"]["P@1"] = np.float64(87.123456)
    metrics["members"]["knn"]["P@1"] = np.float32(0.5)
    write_metrics(path, metrics)
    read = json.loads(path.read_text())
    assert read["ensemble"]["P@1"] == 87.1235
    assert read["members"]["knn"]["P@1"] == 0.5
    assert read["documents"] == 6000 and read["propensity"] == {"A": 0.55, "B": 1.5}
    assert list(tmp_path.iterdir()) == [path]
    assert render(read)


def test_a_failed_write_leaves_the_old_file(tmp_path, metrics, monkeypatch):
    path = tmp_path / "metrics.json"
    write_metrics(path, metrics)
    before = path.read_bytes()
    metrics["ensemble"]["P@1"] = math.nan
    with pytest.raises(ValueError, match="JSON compliant"):
        write_metrics(path, metrics)

    def fail(*_):
        raise OSError("disk")

    metrics["ensemble"]["P@1"] = 1.0
    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="disk"):
        write_metrics(path, metrics)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_weights_and_their_scores():
    scores = {"preset": 70.128, "linear_tree": 71.5, "fitted": 71.512}
    about = {"weights": {"linear_tree": 0.95, "knn": 0.05}, "documents": 3188, "scores": scores}
    lines = [line.split() for line in render(about, weights_table).splitlines()]
    assert ["linear", "tree", "0.95", "71.50"] in lines and ["knn", "0.05", "–"] in lines
    assert {"70.13", "71.51"} <= {word for line in lines for word in line} and "3,188" in lines[0]
