"""What the main job refuses before it starts."""

from pathlib import Path

import pytest

from axml_ray.configuration import load
from axml_ray.pipeline import run
from axml_ray.settings import SettingsError


def test_the_main_job_needs_a_test_split(tmp_path: Path) -> None:
    settings = load(None, runs=tmp_path, corpora=tmp_path, corpus={"train": ["a.jsonl"], "test_share": 0})
    with pytest.raises(SettingsError, match=r"corpus.test_share is 0 and corpus.test names no file"):
        run(settings)
    assert not list(tmp_path.iterdir())
