"""The best of a sweep, its front, and the files that report it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import sync_playwright
from tiny_corpus import experiment, write_corpus

from axml_ray.corpus.store import Corpus
from axml_ray.settings.configuration import load
from axml_ray.tuning.outcome import BEST, OUTCOME, PAGE, best_trial, front, table, trial_settings, write_outcome
from axml_ray.tuning.page import Axis, page
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
    root = ElementTree.fromstring(text.removeprefix("<!doctype html>"))
    assert len(root.findall(".//svg")) == 3
    lines = [line for line in root.findall(".//polyline") if line.find("title") is not None]
    parallel = [line for line in lines if len(line.get("points", "").split()) == 5]  # four settings and the score
    assert len(parallel) == 6
    unscored = [line for line in lines if "no score" in (line.findtext("title") or "")]
    assert len(unscored) == sum(trial.score is None for trial in TRIALS) > 0
    assert all(len(line.get("points", "").split()) == 4 and line.get("stroke-dasharray") for line in unscored)
    places = [tuple(map(float, point.split(","))) for line in lines for point in line.get("points", "").split()]
    assert all(0 <= x <= 1080 and 0 <= y <= 360 for x, y in places)
    assert len(root.findall(".//circle")) == 5
    assert len(root.findall(".//tr")) == 1 + len(TRIALS)
    assert not re.search(r"(src|href|url\()", text)
    assert "a &lt;b&gt; sweep" in text and "&lt;nan&gt;" in text
    for few in ([], TRIALS[6:], TRIALS[:1]):
        page("s", 1, few)


def charts(trials: list[Trial]) -> list[ElementTree.Element]:
    text = page("s", 100, trials, front(trials))
    return ElementTree.fromstring(text.removeprefix("<!doctype html>")).findall(".//svg")


def test_a_single_evaluation_is_a_point() -> None:
    once = [replace(one, curve=one.curve[:1]) for one in TRIALS[:3]]
    _, curves, _ = charts(once)
    points = {(point.get("cx"), point.get("cy")) for point in curves.findall("circle")}
    assert len(points) == 3 and not curves.findall("polyline")


def test_no_line_crosses_an_axis_value() -> None:
    parallel, _, _ = charts(TRIALS)
    kinds = [part.tag for part in parallel]
    assert "text" not in kinds[: len(kinds) - kinds[::-1].index("polyline")]  # texts are drawn over the lines
    met = {tuple(map(float, at.split(","))) for line in parallel.iter("polyline") for at in line.get("points").split()}
    for text in parallel.iter("text"):
        x, y = (float(text.get(name)) for name in ("x", "y"))
        # On the axis next to it, a line would meet the text from its base line to 9 above.
        assert not any(abs(x - across) < 8 and y - 9 < down < y + 2 for across, down in met)


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
        sizes = opened.evaluate(
            "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height)"
        )
        browser.close()
    assert found == [width, width]
    assert min(sizes) > 8


def test_axes() -> None:
    assert Axis.of("rate", [0.001, 0.1, 0.01]).places[0.01] == pytest.approx(0.5)  # by logarithm
    assert Axis.of("height", [0, 1, 4]).places[1] == pytest.approx(0.25)
    assert Axis.of("kind", ["b", "a"]).ticks == [("a", 0.25), ("b", 0.75)]
    assert Axis.of("rate", [0.0067123, 0.003]).ticks[1][0] == "0.00671"
    assert Axis.of("evidence", [True, False]).places == {False: 0.25, True: 0.75}


def test_the_table_has_every_trial() -> None:
    shown = table(TRIALS, front(TRIALS))
    assert shown.row_count == len(TRIALS)
    first, *_ = (list(column.cells) for column in shown.columns)
    assert first == ["1", "4", "2", "3", "0", "5", "6"]
    assert len(table([trial(0, 1.0)]).columns) == len(shown.columns) - 1  # no cost was measured
