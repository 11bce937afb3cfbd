"""Run: pytest tests/inference/test_model_card.py"""

import shutil
from pathlib import Path

import pytest
import yaml

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.evaluation.reports.report import write_metrics
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.bundle.manifest import CARD
from axml_ray.inference.bundle.model_card import MEASURES, render_card
from axml_ray.runs.run import Run


def header_and_text(card: str) -> tuple[dict, str]:
    empty, header, text = card.split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(header), text


def evaluated(tiny_run, directory: Path, **changed):
    """A copy of the run with a file of metrics, in which P@1 is 50 and each later measure one point more."""
    run = Run.open(Path(shutil.copytree(tiny_run.settings.run_directory, directory)))
    scores = {name: 50.0 + number for number, name in enumerate(MEASURES)}
    of_ensemble = {"ensemble": scores, "intervals": {"ensemble": {name: [s - 2, s + 3] for name, s in scores.items()}}}
    band = {"name": "tail", "from": 1, "to": 9, "labels": 5, "documents": 0}
    metrics = {
        "made_by": run.predictions_key,
        "documents": 1234,
        "members": dict.fromkeys(run.member_names, scores),
        **of_ensemble,
        "bands": [band | {"name": "head", "from": 10, "to": None, "documents": 40, **of_ensemble}, band],
    }
    write_metrics(run.layout.metrics(), metrics | changed)
    return run


def test_of_a_run_that_was_not_evaluated(tiny_run, bundle_directory):
    header, text = header_and_text((bundle_directory / CARD).read_text())
    assert header["library_name"] == "axml-ray" and header["pipeline_tag"] == "text-classification"
    assert not {"license", "metrics", "model-index"} & set(header)
    assert str(tiny_run.settings.runs) not in text and str(Path.home()) not in text
    assert "| network tree 2 | 0.500 |" in text
    index = tiny_run.corpus.labels
    assert f"| {index.labels[0]} | {index.names[0]} | {index.counts[0]} |" in text
    settings = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert settings["tree"]["beam"] == 3 and settings["ensemble"]["trees"] == 2
    assert not {"corpus", "runs", "corpora", "resources"} & set(settings)


def test_scores_with_intervals(tiny_run, tmp_path):
    run = evaluated(tiny_run, tmp_path / "run")
    exported = export_bundle(run, tmp_path / "bundle", "bfloat16", licence="CC-BY-4.0")
    header, text = header_and_text((exported.directory / CARD).read_text())
    assert header["license"] == "cc-by-4.0"
    [result] = header["model-index"][0]["results"]
    assert result["dataset"] == {"type": "tiny", "name": "tiny", "split": "test"}
    assert [(each["name"], each["value"]) for each in result["metrics"]] == [
        (name, 50.0 + number) for number, name in enumerate(MEASURES)
    ]
    assert "| P@1 | 50.00 | 48.0 – 53.0 |" in text and "1,234 test documents" in text
    assert text.count("| 54.00 (52.0 – 57.0) | 58.00 (56.0 – 61.0) |") == 1 and text.count("| – | – |") == 1
    of_weights = [line.split(" |")[0] for line in text.splitlines() if line.startswith(("| float32", "| bfloat16"))]
    assert of_weights == ["| float32", "| bfloat16 (this model)"]
    Bundle.open(exported.directory)


def test_the_hubs_client_reads_the_scores(tiny_run, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    exported = export_bundle(evaluated(tiny_run, tmp_path / "run"), tmp_path / "bundle", licence="mit")
    data = hub.ModelCard.load(exported.directory / CARD).data
    assert (data.license, data.model_name) == ("mit", "run")
    assert {each.metric_name: each.metric_value for each in data.eval_results}["nDCG@5"] == 54.0
    assert {each.dataset_split for each in data.eval_results} == {"test"}


@pytest.mark.parametrize("changed", [{"made_by": "another ensemble"}, {"made_by": None}])
def test_scores_of_something_else_are_not_shown(tiny_run, bundle_directory, tmp_path, changed):
    run = evaluated(tiny_run, tmp_path / "run", **changed)
    manifest = Bundle.open(bundle_directory).manifest
    header, _ = header_and_text(render_card(run, manifest, {"float32": {}}, None))
    assert "model-index" not in header


def test_labels_are_text(tiny_run, bundle_directory, monkeypatch):
    names = ("<script>alert(1)</script>", "a | b\n# c", "[x](y)", "`code`", *map(str, range(20)))
    index = LabelIndex(names, names, tiny_run.corpus.labels.counts[:1].repeat(len(names)))
    monkeypatch.setitem(tiny_run.corpus.__dict__, "labels", index)
    card = render_card(tiny_run, Bundle.open(bundle_directory).manifest, {"float32": {"P@1": 1.0}}, None)
    rows = card.split("training documents |\n|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert len(rows) == 10 and all(row.replace("\\|", "").count("|") == 4 for row in rows)
    assert "<script>" not in card and "[x](y)" not in card and "\n# c" not in card


@pytest.mark.parametrize("licence", ["", "two words", "../x", "a\nb"])
def test_a_licence_is_an_identifier(tiny_run, tmp_path, licence):
    with pytest.raises(SettingsError, match="--licence: expected an identifier"):
        export_bundle(tiny_run, tmp_path / "bundle", licence=licence)
    assert not (tmp_path / "bundle").exists()
