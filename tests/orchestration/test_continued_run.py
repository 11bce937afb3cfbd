"""A run that continues another one with new texts and labels, on a real cluster: trained, resumed and evaluated."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import synthetic
import yaml

from axml_ray.cli.train import parse
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.training.level_files import read_level
from axml_ray.workflow.train import begin, run

OLD_LABELS = 30


def split_texts(texts: Path) -> Path:
    """Take the texts with labels from `OLD_LABELS` on out of `train.jsonl`; return the file that they are in then."""
    lines = (texts / "train.jsonl").read_text().splitlines(keepends=True)
    is_new = [any(int(label.split()[1]) >= OLD_LABELS for label in json.loads(line)["labels"]) for line in lines]
    more = texts / "more.jsonl"
    more.write_text("".join(line for line, new in zip(lines, is_new, strict=True) if new))
    (texts / "train.jsonl").write_text("".join(line for line, new in zip(lines, is_new, strict=True) if not new))
    return more


def weights(settings: Experiment) -> dict[str, tuple[int, int]]:
    """When each level's weights were written."""
    files = settings.run_directory.glob("tree-*/network_tree/level-*/model.safetensors")
    return {path.parent.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@pytest.mark.slow
def test_a_run_continues_with_new_labels(ray_cluster: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = {"network_tree": {"weight": 0.9}, "knn": {"weight": 0.1}}
    training = {"epochs": [12], "learning_rate": 0.02, "precision": "float32"}
    content = synthetic.experiment(tmp_path, training=training, ensemble={"trees": 1}, members=members)
    more = split_texts(tmp_path / "texts")
    old = load(None, **content)
    words = ["--continue", str(old.run_directory), "--corpus.train", str(more), "--training.epochs", "6"]
    with pytest.raises(SettingsError, match="not a run"):
        parse(words)
    run(old)
    [settings] = parse(words)
    with caplog.at_level(logging.INFO):
        metrics = run(settings)
    [line] = [each for each in caplog.messages if each.startswith("continuing from")]
    assert "10 new" in line and line.endswith("knn")
    before, now = Run.open(old.run_directory), Run.open(settings.run_directory)
    # Old ids, clusters and leaves remain; the networks have gone on from the old weights.
    trained = before.corpus.trained
    assert trained == OLD_LABELS and now.corpus.trained == synthetic.LABELS
    assert now.corpus.labels.labels[:trained] == before.corpus.labels.labels[:trained]
    old_paths, paths = (each.open_tree(0).paths(np.arange(trained)) for each in (before, now))
    assert np.array_equal(old_paths[0], paths[0])
    journal = [json.loads(line) for line in (now.layout.tree(0) / "training.jsonl").read_text().splitlines()]
    starts = [record["scoring"] for record in journal if record.get("scoring", {}).get("step") == 0]
    assert len(starts) == 2 and all(start["nDCG@5"] > 30 for start in starts)
    # The labels that only the new texts have are predicted from their words.
    tokens = now.corpus.tokenizer.encode([f"own{label} filler1 filler2" for label in range(OLD_LABELS, 40)], 50)
    top = now.open_ensemble().rank(tokens)[0][:, :3]
    expected = [now.corpus.labels.labels.index(f"label {label}") for label in range(OLD_LABELS, 40)]
    hits = [label in row for label, row in zip(expected, top.tolist(), strict=True)]
    assert min(expected) >= trained and sum(hits) >= 7
    assert metrics["documents"] == 60 and metrics["members"]["network_tree-0"]["P@1"] > 30
    # A run that is started again trains only what it lacks, from the same weights.
    finished = weights(settings)
    level = now.layout.member("network_tree", 0) / "level-2"
    rows, score = read_level(level), read_json(level / "level.json")["valid_nDCG@5"]
    copies = {name: value.clone() for name, value in rows.items()}
    (level / "level.json").unlink()
    run(parse(words)[0])
    assert {name for name, written in weights(settings).items() if written != finished[name]} == {"level-2"}
    assert read_json(level / "level.json")["valid_nDCG@5"] == pytest.approx(score)
    for name, value in read_level(level).items():
        assert np.allclose(value, copies[name], atol=1e-5), name
    with pytest.raises(SettingsError, match=r"^corpus\.word_dimension: .*8 dimensions, but 16"):
        begin(parse([*words, "--corpus.word_dimension", "8", "--name", "other"])[0])
    # Nothing of the old run has changed.
    assert all(spec.is_fitted for spec in Run(old, before.corpus).members)


def test_a_run_that_is_not_trained_cannot_be_continued(ray_cluster: None, tmp_path: Path) -> None:
    old = load(None, **synthetic.experiment(tmp_path))
    begin(old)
    with pytest.raises(SettingsError, match=r"^continue_from: .* has no trained "):
        begin(parse(["--continue", str(old.run_directory)])[0])


def test_the_stored_settings_of_a_continued_run_keep_its_shapes(tmp_path: Path) -> None:
    """Under another name they continue the same run, whose trees do not change."""
    old = load(None, **synthetic.experiment(tmp_path))
    fit_run(begin(old))
    stored = begin(parse(["--continue", str(old.run_directory)])[0]).layout.settings
    with pytest.raises(SettingsError, match=r"^network\.hidden: "):
        begin(parse(["--config", str(stored), "--name", "other", "--network.hidden", "20"])[0])
    content = yaml.safe_load(stored.read_text())
    del content["continue_from"]
    stored_without = tmp_path / "without.yaml"
    stored_without.write_text(yaml.safe_dump(content))
    with pytest.raises(SettingsError, match=r"other settings \(continue_from\)"):
        begin(parse(["--config", str(stored_without)])[0])
