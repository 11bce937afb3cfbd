"""The job that judges a run, as a command. Its runs have predictions, so Ray never starts.

python -m pytest tests/jobs/test_evaluate.py
"""

import json
import os
from functools import partial

import pytest
from evaluation.toy_run import write_corpus, write_run

from axml_ray.cli import evaluate
from axml_ray.core.lease import own


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("evaluate")
    write_corpus(home)
    write_run(home)
    return home


@pytest.fixture
def judge(home, command, monkeypatch):
    """Run the command with some words below `home`."""
    monkeypatch.chdir(home)
    return partial(command, "evaluate")


def test_tables_files_and_browser(judge, home, monkeypatch):
    opened = []
    monkeypatch.setattr(evaluate.webbrowser, "open", opened.append)
    code, out, err = judge("--run", "runs/run", "--open")
    assert code == 0, err
    for words in ("tree 2", "ensemble", "head (100+)", "tail (1–9)", "unseen (0)"):
        assert words in out
    report = home / "runs/run/report/index.html"
    assert f"report: {report}" in out and opened == [report.as_uri()]
    assert json.loads((home / "runs/run/metrics.json").read_text())["split"] == "test"


def test_a_run_that_another_job_works_on_is_refused(judge, home):
    metrics = home / "runs/run/metrics.json"
    metrics.unlink(missing_ok=True)
    with own(home / "runs/run"):
        code, _, err = judge("--run", "runs/run")
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and f"process {os.getpid()}" in errors[0] and not metrics.exists()
    assert judge("--run", "runs/run")[0] == 0 and not list(home.rglob(".lease"))


def test_a_corpus_that_was_moved(judge, home):
    (home / "corpora").rename(home / "moved")
    try:
        code, out, err = judge("--run", "runs/run", "--corpora", "moved")
        assert code == 0 and "ensemble" in out, err
        code, _, err = judge("--run", "runs/run")
        assert code == 2 and f"{home}/corpora/" in err
    finally:
        (home / "moved").rename(home / "corpora")


def test_constants_may_be_given(judge, home):
    assert judge("--run=runs/run", "--evaluation.propensity", "0.6,1.5")[0] == 0
    assert json.loads((home / "runs/run/metrics.json").read_text())["propensity"]["A"] == 0.6


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "command line: --run: name the directory of a run"),
        (["--run", "runs/none"], "{home}/runs/none: not a run (settings.yaml is missing); train one with"),
        (["--run", "runs/run", "--split", "all"], "command line: argument --split: invalid choice: 'all'"),
        (
            ["--run", "runs/run", "--splti", "x"],
            "command line: --splti: unknown setting; did you mean '--split'?",
        ),
        (["--run", "runs/run", "--tree.beam", "9"], "command line: the settings of {home}/runs/run cannot be changed"),
        (["--run", "runs/run", "--corpora", "none"], "{home}/none/toy: no prepared corpus (corpus.json is missing)"),
    ],
)
def test_one_line_says_what_is_wrong(judge, home, words, says):
    code, _, err = judge(*words)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: " + says.format(home=home)), line


def test_help_shows_flags_and_settings(judge):
    code, out, _ = judge("--help")
    assert code == 0
    for flag in ("--run", "--split", "--open", "--evaluation.propensity"):
        assert flag in out
