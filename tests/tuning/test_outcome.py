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
from axml_ray.settings import adapt, changed
from axml_ray.settings.configuration import load
from axml_ray.settings.presets import is_given
from axml_ray.tuning.outcome import BEST, OUTCOME, PAGE, best_trial, table, trial_settings, write_outcome
from axml_ray.tuning.records import Scoring, Trial
from axml_ray.tuning.space import Space
from axml_ray.tuning.sweep import Sweep

CHROMIUM = shutil.which("chromium")


def trial(number: int, score: float | None, **changes: Any) -> Trial:
    scores = () if score is None else (score / 2, score)
    curve = tuple(
        Scoring(tree=0, level=1, levels=1, group="labels", step=step, documents=step * 10, score=one)
        for step, one in enumerate(scores, 1)
    )
    fields = {
        "parameters": {"tree.height": number % 3, "training.learning_rate": 0.001 * 4**number},
        "state": "finished",
        "score": score,
        "curve": curve,
    }
    return Trial(number=number, **{**fields, **changes})


TRIALS = [
    trial(0, 50.0),
    trial(1, 60.0, parameters={"tree.height": 0, "tree.kind": "random", "network.evidence": True}),
    trial(2, 55.0),
    trial(3, 54.0),
    trial(4, 60.0),
    trial(5, 99.0, state="stopped", reason="ASHA"),
    trial(6, None, state="failed", reason="the loss is <nan>; " + "x" * 80),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "corpora" / "tiny")


def sweep(tmp_path: Path, name: str = "s", preset: str = "paper") -> Sweep:
    settings = changed(experiment(tmp_path), "preset", preset)
    training = settings.training.model_copy(update={"documents": 100})
    settings = settings.model_copy(update={"training": training})
    one = Sweep(settings=settings, space=Space.load(["tune_spaces.tree"]), name=name)
    one.directory.mkdir(parents=True)
    return one


def test_the_best_is_the_first_of_equal_ones() -> None:
    assert best_trial(TRIALS).number == 1
    with pytest.raises(RuntimeError, match=r"no trial of the sweep has finished \(ASHA; the loss is <nan>"):
        best_trial(TRIALS[5:])


@pytest.mark.parametrize("preset", ["paper", "recommended"])
def test_settings_found_are_a_config_of_the_main_job(tmp_path: Path, corpus: Corpus, preset: str) -> None:
    """Drawn values may be the paper's where the preset has others."""
    searched = sweep(tmp_path, preset=preset)
    assert write_outcome(searched, corpus, TRIALS).number == 1
    found = load(searched.directory / BEST)
    assert found.model_dump() == trial_settings(searched, TRIALS[1], "s-best").model_dump()
    assert (found.name, found.tree.height, found.tree.kind, found.network.evidence) == ("s-best", 0, "random", True)
    assert found.training.documents is None  # all of them
    assert adapt(found, 500, 40, 200) == (found, [])  # nothing is left for `auto` to choose
    assert found.corpus == searched.settings.corpus and found.ensemble == searched.settings.ensemble
    content = json.loads((searched.directory / OUTCOME).read_text())
    assert content["documents"] == 100
    assert [one["number"] for one in content["trials"]] == list(range(7))
    assert content["steps"] == 6 * 2 and content["trials"][6]["reason"].startswith("the loss is <nan>")


def test_what_auto_tries_is_left_to_the_training(tmp_path: Path, corpus: Corpus) -> None:
    searched = sweep(tmp_path, preset="auto")
    given = {"members.linear_tree.cost", "features.prefix_letters"}
    searched.settings.with_given(given)
    write_outcome(searched, corpus, TRIALS)
    found, all_values = load(searched.directory / BEST), trial_settings(searched, TRIALS[1], "s-best")
    rest = {"members", "features", "resources"}
    assert found.model_dump(exclude=rest) == all_values.model_dump(exclude=rest)
    assert {key for key in found.given if is_given(key, rest)} == given
    assert found.members.linear_tree.cost == all_values.members.linear_tree.cost != 4.0
    # Too many texts for kNN.
    assert {choice.key for choice in adapt(found, 200_000, 40, 200)[1]} == {"members.knn.weight"}


def test_without_a_finished_trial_there_is_no_stale_config(tmp_path: Path, corpus: Corpus) -> None:
    searched = sweep(tmp_path)
    (searched.directory / BEST).write_text("name: stale\n")
    for few in ([], TRIALS[5:]):
        with pytest.raises(RuntimeError, match="no trial of the sweep has finished"):
            write_outcome(searched, corpus, few)
    assert not (searched.directory / BEST).exists()
    assert (searched.directory / OUTCOME).exists() and (searched.directory / PAGE).exists()


def test_the_page_is_whole_in_itself(tmp_path: Path, corpus: Corpus) -> None:
    searched = sweep(tmp_path, "a <b> sweep")
    write_outcome(searched, corpus, TRIALS)
    text = (searched.directory / PAGE).read_text()
    assert text.count("<svg") == 1
    assert text.split("<h2>Trials</h2>")[1].count("<tr>") == 1 + len(TRIALS)
    assert not re.search(r"(src=|href=\"http|url\(http)", text)
    assert "a &lt;b&gt; sweep" in text and "&lt;nan&gt;" in text


@pytest.mark.processes
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_on_a_screen(tmp_path: Path, corpus: Corpus, width: int) -> None:
    searched = sweep(tmp_path, "s" * 80)
    write_outcome(searched, corpus, TRIALS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": width, "height": 800}, is_mobile=width < 800)
        opened.goto(f"file://{searched.directory / PAGE}")
        found = opened.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        browser.close()
    assert found == [width, width]


def test_the_table_has_every_trial() -> None:
    shown = table(TRIALS, TRIALS[1])
    first, *_ = (list(column.cells) for column in shown.columns)
    assert first == ["1", "4", "2", "3", "0", "5", "6"]
    assert [row.style for row in shown.rows] == ["bold", *[""] * 6]
