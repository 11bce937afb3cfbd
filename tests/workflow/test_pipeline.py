"""What the main job refuses before it starts."""

from pathlib import Path

import pytest
import synthetic

from axml_ray.core.errors import SettingsError
from axml_ray.settings.configuration import load
from axml_ray.workflow.train import begin, run


def test_the_main_job_needs_a_test_split(tmp_path: Path) -> None:
    settings = load(None, runs=tmp_path, corpora=tmp_path, corpus={"train": ["a.jsonl"], "test_share": 0})
    with pytest.raises(SettingsError, match=r"corpus.test_share is 0 and corpus.test names no file"):
        run(settings)
    assert not list(tmp_path.iterdir())


def test_pairs_to_leave_out_are_read_before_the_training(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.txt"
    settings = load(None, **synthetic.experiment(tmp_path, evaluation={"filter_pairs": pairs}))
    with pytest.raises(SettingsError, match=r"^evaluation.filter_pairs: .*pairs.txt"):
        begin(settings)
    assert not (settings.run_directory / "settings.yaml").exists()
