"""The journal records of a toy run of two levels, its settings, and its metrics."""

from pathlib import Path
from typing import Any

from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.tracking.tracked_run import TrackedRun, scores_of

LEVEL_1 = {"tree": 0, "level": 1, "levels": 2}
LEVEL_2 = {"tree": 0, "level": 2, "levels": 2}
PROGRESS = {"epoch": 1, "epochs": 3, "nodes": 4, "documents_per_second": 1250.0, "seconds": 15.0, "seconds_left": 75.0}
RECORDS: list[dict[str, Any]] = [
    {"time": 1_700_000_000.0, **LEVEL_1, "begun": 4},
    {"time": 1_700_000_010.0, **LEVEL_1, "scoring": {"step": 100, "documents": 1_000, "nDCG@5": 31.5}},
    {
        "time": 1_700_000_011.5, **LEVEL_1, **PROGRESS,
        "step": 100, "loss": 0.25, "valid_nDCG@5": 31.5, "memory_gib": 1.5,
    },
    {
        "time": 1_700_000_020.0, **LEVEL_1, **PROGRESS,
        "step": 200, "loss": 0.125, "valid_nDCG@5": None, "memory_gib": 1.5, "seconds_left": None,
    },
    {"time": 1_700_000_021.0, **LEVEL_1, "scored": 500, "seconds": 3.0},
    {"time": 1_700_000_030.0, **LEVEL_2, "scoring": {"step": 50, "documents": 500, "nDCG@5": 20.0}},
]  # fmt: skip
"""As `Follower` reads them from training.jsonl."""
METRICS: dict[str, Any] = {
    "split": "test",
    "documents": 12,
    "ensemble": {"P@1": 80.0, "nDCG@5": 60.5},
    "members": {"network_tree-0": {"P@1": 75.0}},
    "seconds": {"network_tree": 4.5},
}
"""The part of metrics.json that is logged."""
CLOSED = "http://127.0.0.1:9"
"""No server listens at this port."""


def experiment(home: Path, **tracking: Any) -> Experiment:
    return load(
        None, name="toy", runs=home / "runs", corpora=home / "corpora",
        corpus={"source": "installed_packages"}, tree={"height": 1}, training={"epochs": [4, 3]}, tracking=tracking,
    )  # fmt: skip


def log_all(tracked: TrackedRun, home: Path) -> None:
    """Log what the main job logs, with a report."""
    for record in RECORDS:
        tracked.record(record)
    tracked.scores(scores_of(METRICS))
    path = home / "report" / "charts.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    tracked.artifact("report", path)
