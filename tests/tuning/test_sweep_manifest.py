"""Run: pytest tests/tuning/test_sweep_manifest.py"""

from pathlib import Path

import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.store import Corpus
from axml_ray.settings.configuration import load
from axml_ray.tuning.space import Space
from axml_ray.tuning.sweep import Sweep, write_manifest


def test_a_sweep_of_a_moved_project_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path, {"fingerprint": "same", "counts": {"documents": {"train": 100}}})

    def sweep(height: int = 1) -> Sweep:
        path = Path("space.py")
        path.write_text("def space(draw):\n    draw.suggest_categorical('tree.beam', [4, 8])\n")
        settings = load(corpus={"train": ["data/*.jsonl"], "label_names": "names.tsv"}, tree={"height": height})
        return Sweep(settings=settings, space=Space.load([str(path)]), name="beams")

    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    write_manifest(sweep(), corpus)
    project.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    write_manifest(sweep(), corpus)
    with pytest.raises(SettingsError, match=r"settings\.tree\.height"):
        write_manifest(sweep(height=2), corpus)
    with pytest.raises(SettingsError, match="corpus"):
        write_manifest(sweep(), Corpus(tmp_path, {**corpus.manifest, "fingerprint": "other"}))
