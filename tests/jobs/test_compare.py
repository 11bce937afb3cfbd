"""`axml-ray compare` on runs with stored predictions, so that Ray never starts."""

import json
import os
import re
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from evaluation.test_report_page import Tags
from evaluation.toy_run import DOCUMENTS, write_corpus, write_run

from axml_ray.cli import compare
from axml_ray.core.files import fences
from axml_ray.core.lease import own
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.evaluation.metrics.comparison import compare_predictions
from axml_ray.evaluation.metrics.metrics import METRICS
from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.evaluation.reports.examples import largest_differences
from axml_ray.runs.run import Run
from axml_ray.settings import EvaluationSettings


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("compare")
    write_corpus(home)
    write_run(home, "good", skill=0.9)
    write_run(home, "bad", skill=0.2)
    (home / "elsewhere").mkdir()
    write_corpus(home, "other", seed=5)
    write_run(home, "stranger", corpus="other")
    return home


@pytest.fixture
def command(home, monkeypatch, capsys):
    """Run the command with some words below `home`; returns exit code, output and error."""

    def call(*words):
        monkeypatch.chdir(home)
        monkeypatch.setattr(sys, "argv", ["axml-ray compare", *words])
        code = 0
        try:
            with monkeypatch.context() as patch:
                patch.setattr(type(sys.stdout), "reconfigure", lambda *_, **__: None, raising=False)
                compare.main()
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_a_better_run_gains(command, home):
    code, out, err = command("runs/bad", "runs/good", "--json", "new/comparison.json")
    assert code == 0, err
    content = json.loads((home / "new/comparison.json").read_text())
    assert content["runs"] == ["bad", "good"] and set(content["measures"]) == set(METRICS)
    for name, measure in content["measures"].items():
        before, now = content["scores"][name]
        low, high = measure["interval"]
        assert now - before == pytest.approx(measure["difference"], abs=1e-3) and low <= measure["difference"] <= high
    assert content["measures"]["nDCG@5"]["difference"] > 5 and content["measures"]["nDCG@5"]["p"] < 0.05
    assert content["settings"] == {}
    head = content["bands"][0]
    assert head["name"] == "head" and 0 < head["documents"] <= content["documents"] <= DOCUMENTS
    assert "head (100+)" in out and "nDCG@5" in out


def test_the_order_of_documents_does_not_matter(home):
    """The same predictions with the documents in the opposite order differ in no measure and no band."""
    stored, turned = home / "runs/good/predictions/test", home / "turned"
    turned.mkdir()
    table = pq.ParquetDataset(stored).read()
    pq.write_table(table.take(np.arange(len(table))[::-1]), turned / "000000.parquet")
    training = TrainingCounts(LabelIndex.load(home / "corpora/toy/labels.parquet").counts, 300)
    predictions, others = Predictions.open(stored), Predictions.complete(turned, "key")
    content = compare_predictions(predictions, others, training, EvaluationSettings())
    measures = [content["measures"], *(band["measures"] for band in content["bands"] if "measures" in band)]
    assert len(measures) > 2
    assert all(each["difference"] == 0 and each["p"] == 1 for one in measures for each in one.values())
    assert largest_differences(predictions, others) == ([], [])


def test_settings_that_differ(command, home):
    directory = write_run(home, "wide")
    settings = yaml.safe_load((directory / "settings.yaml").read_text())
    (directory / "settings.yaml").write_text(yaml.safe_dump(settings | {"network": {"hidden": 64}}))
    Predictions.complete(directory / "predictions/test", Run.open(directory).predictions_key)
    code, out, err = command("runs/good", "runs/wide", "--json", "wide.json")
    assert code == 0, err
    assert json.loads((home / "wide.json").read_text())["settings"] == {"network.hidden": [256, 64]}
    assert "network.hidden" in out


def test_a_run_that_another_job_works_on_is_not_predicted(command, home):
    run = write_run(home, "stale")
    Predictions.complete(run / "predictions/test", "another key")
    with own(run):
        lease = fences.pop(run)  # as in another process
        code, _, err = command("runs/good", "runs/stale")
        fences[run] = lease
    assert code == 2 and f"process {os.getpid()}" in err.splitlines()[-1]


def test_the_page_stands_alone_and_shows_documents(command, home):
    code, _, err = command("runs/bad", "runs/good", "--html", "comparison.html")
    assert code == 0, err
    html = (home / "comparison.html").read_text()
    tags = Tags(html)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", html) and not tags.of("script")
    assert len(tags.of("circle")) == 10  # an interval for each measure that is shown
    assert re.search(r"test-\d+", html) and "&lt;b&gt;bold&lt;/b&gt;" in html


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs/good"], "command line: the following arguments are required: SECOND"),
        (["runs/good", "runs/none"], "{home}/runs/none: not a run (settings.yaml is missing)"),
        (
            ["runs/good", "runs/stranger"],
            "{home}/runs/stranger/predictions/test and {home}/runs/good/predictions/test: ",
        ),
        (["runs/good", "runs/bad", "--corpora", "elsewhere"], "{home}/elsewhere/toy: no prepared corpus"),
        (["runs/good", "runs/bad", "--html", "runs"], "--html {home}/runs: cannot be written (Is a directory)"),
    ],
)
def test_one_line_says_what_is_wrong(command, home, words, says):
    code, _, err = command(*words)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: " + says.format(home=home)), line
