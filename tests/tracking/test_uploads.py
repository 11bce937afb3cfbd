"""Texts of documents are not uploaded. Run: pytest tests/tracking/test_uploads.py"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from evaluation.toy_run import write_corpus, write_run

from axml_ray.cli.evaluate import main
from axml_ray.core.run_layout import RunLayout
from axml_ray.settings import TrackingSettings
from axml_ray.tracking.kinds import KINDS
from axml_ray.tracking.tracker import Artifact, LevelMetrics, RunIdentity, Tracker

UPLOADS: list[Any] = []


class Recorder(Tracker):
    """Keeps all that it is given."""

    def __init__(self, identity: RunIdentity, settings: TrackingSettings):
        self.id = self.address = "recorder"

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        UPLOADS.append(dict(parameters))

    def log_level(self, metrics: LevelMetrics) -> None:
        UPLOADS.append(metrics)

    def log_scores(self, scores: Mapping[str, float]) -> None:
        UPLOADS.append(dict(scores))

    def log_artifact(self, kind: Artifact, path: Path) -> None:
        UPLOADS.append(path.read_text(encoding="utf-8"))


def test_a_report_is_uploaded_without_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "mlflow", f"{__name__}:Recorder")
    write_corpus(tmp_path)
    layout = RunLayout(write_run(tmp_path))
    settings = yaml.safe_load(layout.settings.read_text()) | {"tracking": {"tracker": "mlflow"}}
    layout.settings.write_text(yaml.safe_dump(settings))
    monkeypatch.setattr("sys.argv", ["axml-ray evaluate", "--run", str(layout.directory)])
    main()
    assert "of &lt;b&gt;bold" in layout.report().read_text()
    assert "test/ensemble/P@1" in repr(UPLOADS) and "Loss of level 2" in repr(UPLOADS)
    assert "bold" not in repr(UPLOADS) and "test-" not in repr(UPLOADS)  # neither texts nor ids of documents
