"""The best of a sweep, its front, and the files that report it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright
from tiny_corpus import experiment, write_corpus

from axml_ray.corpus.store import Corpus
from axml_ray.settings.configuration import load
from axml_ray.tuning.outcome import BEST, OUTCOME, PAGE, best_trial, front, table, trial_settings, write_outcome
from axml_ray.tuning.page import page
from axml_ray.tuning.records import Scoring, Trial
from axml_ray.tuning.space import Space
from axml_ray.tuning.sweep import Objective, Sweep

CHROMIUM = shutil.which("chromium")


def trial(number: int, score: float | None, milliseconds: float | None = None, **changes: Any) -> Trial:
    scores = () if score is None else (score / 2, score)
    curve = tuple(
        Scoring(tree=0, level=1, levels=1, group="labels", step=step, documents=step * 10, score=one)
        for step, one in enumerate(scores, 1)
    )
    fields = {
        "parameters": {"tree.height": number % 3, "training.learning_rate": 0.001 * 4**number},
        "state": "finished",
        "score": score,
        "milliseconds": milliseconds,
        "curve": curve,
    }
    return Trial(number=number, **{**fields, **changes})


TRIALS = [
    trial(0, 50.0, 2.0),
    trial(1, 60.0, 5.0, parameters={"tree.height": 0, "tree.kind": "random", "network.evidence": True}),
    trial(2, 55.0, 3.0),
    trial(3, 54.0, 3.5),  # dearer and worse than 2
    trial(4, 60.0, 6.0),  # dearer than 1
    trial(5, 99.0, None, state="stopped", reason="ASHA"),
    trial(6, None, state="failed", reason="the loss is <nan>; " + "x" * 80),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "corpora" / "tiny")


def sweep(tmp_path: Path, objective: Objective = "accuracy,cost") -> Sweep:
    settings = experiment(tmp_path)
    training = settings.training.model_copy(update={"documents": 100})
    one = Sweep(
        settings=settings.model_copy(update={"training": training}),
        space=Space.load(["tune_spaces.tree"]),
        name="s",
        objective=objective,
    )
    one.directory.mkdir(parents=True)
    return one


def test_the_best_and_the_front() -> None:
    assert best_trial(TRIALS).number == 1
    assert [one.number for one in front(TRIALS)] == [1, 2, 0]
    for one in front(TRIALS):  # by the definition
        others = [other for other in TRIALS if other.milliseconds is not None and other is not one]
        assert not any(other.score >= one.score and other.milliseconds <= one.milliseconds for other in others)
    with pytest.raises(RuntimeError, match=r"no trial of the sweep has finished \(ASHA; the loss is <nan>"):
        best_trial(TRIALS[5:])


def test_settings_found_are_a_config_of_the_main_job(tmp_path: Path, corpus: Corpus) -> None:
    searched = sweep(tmp_path)
    assert write_outcome(searched, corpus, TRIALS).number == 1
    found = load(searched.directory / BEST)
    assert found.model_dump() == trial_settings(searched, TRIALS[1], "s-best").model_dump()
    assert (found.name, found.tree.height, found.tree.kind, found.network.evidence) == ("s-best", 0, "random", True)
    assert found.training.documents is None  # all of them
    assert found.corpus == searched.settings.corpus and found.ensemble == searched.settings.ensemble
    assert load(searched.directory / "front-002.yaml").training.learning_rate == pytest.approx(0.016)
    assert sorted(path.name for path in searched.directory.glob("*.yaml")) == [
        "best.yaml", "front-000.yaml", "front-001.yaml", "front-002.yaml",
    ]  # fmt: skip
    content = json.loads((searched.directory / OUTCOME).read_text())
    assert content["front"] == [1, 2, 0] and content["documents"] == 100
    assert [one["number"] for one in content["trials"]] == list(range(7))
    assert content["steps"] == 6 * 2 and content["trials"][6]["reason"].startswith("the loss is <nan>")


def test_without_a_finished_trial_there_is_no_stale_config(tmp_path: Path, corpus: Corpus) -> None:
    searched = sweep(tmp_path, "accuracy")
    (searched.directory / BEST).write_text("name: stale\n")
    with pytest.raises(RuntimeError, match="no trial of the sweep has finished"):
        write_outcome(searched, corpus, TRIALS[5:])
    assert not (searched.directory / BEST).exists()
    assert (searched.directory / OUTCOME).exists() and (searched.directory / PAGE).exists()


def test_the_page_is_whole_in_itself() -> None:
    text = page("a <b> sweep", 100, TRIALS, front(TRIALS))
    assert text.count("<svg") == 2 and page("s", 100, TRIALS).count("<svg") == 1
    assert text.split("<h2>Trials</h2>")[1].count("<tr>") == 1 + len(TRIALS)
    assert not re.search(r"(src=|href=\"http|url\(http)", text)
    assert "a &lt;b&gt; sweep" in text and "&lt;nan&gt;" in text
    for few in ([], TRIALS[6:], TRIALS[:1]):
        page("s", 1, few)


@pytest.mark.processes
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_on_a_screen(tmp_path: Path, width: int) -> None:
    (tmp_path / "sweep.html").write_text(page("s" * 80, 100, TRIALS, front(TRIALS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": width, "height": 800}, is_mobile=width < 800)
        opened.goto(f"file://{tmp_path}/sweep.html")
        found = opened.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        browser.close()
    assert found == [width, width]


def test_the_table_has_every_trial() -> None:
    shown = table(TRIALS, front(TRIALS))
    assert shown.row_count == len(TRIALS)
    first, *_ = (list(column.cells) for column in shown.columns)
    assert first == ["1", "4", "2", "3", "0", "5", "6"]
    assert len(table([trial(0, 1.0)]).columns) == len(shown.columns) - 1  # no cost was measured
