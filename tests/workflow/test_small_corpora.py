"""configs/mine.yaml on 240 texts in one file: it prepares, its preset adapts to few texts, and the run is good."""

from pathlib import Path

import pytest
import synthetic

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json
from axml_ray.core.run_layout import RunLayout
from axml_ray.runs.run import Run
from axml_ray.settings import SPLITS, Experiment, changed
from axml_ray.settings.configuration import load
from axml_ray.settings.presets import TRIED
from axml_ray.workflow.train import adapted, prepare_corpus, run, small_corpus_warning

MINE = Path(__file__).parents[2] / "configs" / "mine.yaml"

pytestmark = pytest.mark.slow
FLAT = "members.linear_tree.flat"


def mine(directory: Path, preset: str) -> Experiment:
    written = synthetic.write(directory / "texts", train=240)
    corpus = {"train": written["train"], "test": []}
    return load(MINE, preset=preset, runs=directory / "runs", corpora=directory / "corpora", corpus=corpus)


def test_the_preset_adapts_to_few_texts(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("axml_ray.runs.selection.FEWEST_DOCUMENTS", 100)  # members are chosen of these few texts, too
    corpus = prepare_corpus(mine(tmp_path, "recommended"))
    documents = {split: corpus.documents(split) for split in SPLITS}
    assert sum(documents.values()) == 240 and 10 < documents["test"] < 40
    assert documents["valid"] == (documents["train"] + documents["valid"]) // 10
    assert small_corpus_warning(Run(mine(tmp_path, "recommended"), corpus)) is not None

    settings = mine(tmp_path, "auto")
    small = adapted(settings, corpus)
    assert (small.tree.height, small.ensemble.trees) == (0, 1)
    assert small_corpus_warning(Run(small, corpus)) is None
    metrics = run(settings)
    assert metrics["documents"] == documents["test"]
    assert sum(metrics["combiner"]["weights"].values()) == pytest.approx(1)
    assert metrics["combiner"]["documents"] == documents["valid"]
    chosen = read_json(RunLayout(settings.run_directory).selection)["choices"]
    keys, tried = {choice["key"] for choice in chosen}, {key for values in TRIED.values() for key in values}
    assert keys > tried - {FLAT} and FLAT not in keys  # all labels fit one cluster
    assert list(metrics["seconds"])[:2] == ["prepare", "choose members"]
    # A run that is started again chooses no more, and counts the time of the first start.
    assert run(settings)["seconds"]["choose members"] == metrics["seconds"]["choose members"] > 0
    # A change that is refused leaves the corpus as it is.
    before = RunLayout(settings.run_directory).settings.read_bytes()
    with pytest.raises(SettingsError, match=r"other settings \(corpus\.max_tokens\)"):
        run(changed(settings, "corpus.max_tokens", 499))
    assert prepare_corpus(settings).manifest["seconds"] == corpus.manifest["seconds"]
    assert RunLayout(settings.run_directory).settings.read_bytes() == before
    # A tree without levels between root and leaves.
    models = settings.run_directory.glob("tree-*/network_tree/level-*/model.safetensors")
    assert [path.parent.relative_to(settings.run_directory).as_posix() for path in models] == [
        "tree-0/network_tree/level-1"
    ]
    assert metrics["ensemble"]["P@1"] > 80  # each label has a word of its own
