"""Bars in a terminal: the values they show, what stays above them, and the summary at the end."""

import io
import logging
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from axml_ray.progress import live as live_progress
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.progress.live import ConsoleHandler, LiveReporter, show_bars, terminal_console
from axml_ray.progress.reporter import current_reporter

STEP: dict[str, Any] = {
    "tree": 1,
    "level": 2,
    "levels": 2,
    "nodes": 6_500,
    "epoch": 1,
    "epochs": 3,
    "step": 100,
    "loss": 0.25,
    "valid_nDCG@5": 31.5,
    "documents_per_second": 1250.0,
    "seconds": 25.0,
    "seconds_left": 75.0,
    "memory_gib": 1.5,
}


def terminal(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def written(console: Console) -> str:
    """What a console wrote, without control codes."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", console.file.getvalue())


def rows(reporter: LiveReporter, width: int = 100) -> list[list[str]]:
    """The cells of the table of bars as of now, without the bars."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(reporter.bars())
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().replace("━", " ").replace("╸", " ").replace("╺", " ").splitlines()
    assert all(len(line) <= width for line in lines)
    return [re.split(r"\s{2,}", line.strip()) for line in lines]


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich draws no bars where the environment of the tests says that the terminal is dumb."""
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock of `live_progress` that a test sets."""
    now = [1_000.0]
    monkeypatch.setattr(live_progress.time, "monotonic", lambda: now[0])
    return now


def test_a_tree_in_training_has_all_values(still: list[float]) -> None:
    reporter = LiveReporter(terminal())
    reporter.training(STEP)
    heading, tree = rows(reporter)
    assert heading == ["docs/s", "loss", "nDCG@5", "left", "GiB"]
    assert tree == ["tree 2 · level 2/2", "epoch 1/3", "1,250", "0.2500", "31.50", "1:15", "1.5"]
    assert reporter.trees[1].now() == (0.25, 75.0)
    # The next record comes after seconds; until then, time goes on.
    still[0] += 15
    assert reporter.trees[1].now() == (0.4, 60.0)
    assert rows(reporter)[1][-2] == "1:00"
    # An evaluation comes between records; the best one counts.
    for score in (40.25, 39.0):
        reporter.training(
            {"tree": 1, "level": 2, "levels": 2, "scoring": {"step": 110, "documents": 1, "nDCG@5": score}}
        )
    assert rows(reporter)[1][-3] == "40.25"


def test_the_next_level_starts_without_the_values_of_the_last() -> None:
    reporter = LiveReporter(terminal())
    reporter.training({**STEP, "level": 1})
    reporter.training(
        {"tree": 1, "level": 1, "levels": 2, "scored_so_far": 500, "documents": 2_000, "documents_per_second": 90.0}
    )
    assert rows(reporter)[1][:3] == ["tree 2 · level 1/2", "scoring texts", "90"]
    assert reporter.trees[1].now() == (0.25, None)
    reporter.training({"tree": 1, "level": 2, "levels": 2, "begun": 6_500})
    assert rows(reporter)[1] == ["tree 2 · level 2/2", "starts", "1.5"]  # memory is that of the process
    reporter.training(
        {"tree": 1, "level": 2, "levels": 2, "read_so_far": 800, "documents": 2_000, "documents_per_second": 70.0}
    )
    assert rows(reporter)[1][:3] == ["tree 2 · level 2/2", "reading texts", "70"]


def test_trees_are_rows_in_order_and_go_with_their_phase() -> None:
    reporter = LiveReporter(terminal())
    reporter.begin_phase("network tree")
    reporter.training(STEP)
    reporter.training({**STEP, "tree": 0, "level": 1})
    assert [row[0] for row in rows(reporter)[1:]] == ["tree 1 · level 1/2", "tree 2 · level 2/2"]
    assert rows(reporter)[0][0].startswith("network tree 0:0")
    reporter.end_phase("network tree", 30.0)
    assert len(rows(reporter)) == 1


def test_an_activity_shows_what_is_done_its_rate_and_time_left(still: list[float]) -> None:
    reporter = LiveReporter(terminal())
    predict, search = Heartbeat("predict", 2_000, "texts"), Heartbeat("prepare: looking for changes")
    reporter.begin(predict)
    reporter.begin(search)
    predict.began = 990.0
    predict.add(500)
    assert rows(reporter) == [
        ["left"],
        ["predict", "500 of 2,000 texts · 50/s", "0:30"],
        ["prepare: looking for changes"],
    ]
    reporter.end(predict)
    reporter.end(search)
    assert len(rows(reporter)) == 1


@pytest.mark.parametrize("width", [60, 80, 200])
def test_rows_fit_the_terminal(width: int) -> None:
    reporter = LiveReporter(terminal(width))
    reporter.begin(Heartbeat("prepare: " + "counting words " * 8, 10, "parts"))
    reporter.training(STEP)
    assert len(rows(reporter, width)) == 3
    if width >= 80:
        prepare, tree = rows(reporter, width)[1:]
        assert prepare[0].startswith("prepare: ") and prepare[1] == "0 of 10 parts"
        assert [tree[0], *tree[2:5], tree[-1]] == ["tree 2 · level 2/2", "1,250", "0.2500", "31.50", "1.5"]
    reporter.close()


def test_lines_appear_above_the_bars_which_end_in_a_summary(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    console = terminal()
    logger = logging.getLogger("axml_ray.progress.live")
    caplog.set_level(logging.INFO, logger.name)
    monkeypatch.setattr(logger, "handlers", [ConsoleHandler(console)])
    before = current_reporter()
    with show_bars(console):
        with phase("prepare"), Heartbeat("prepare: counting words", 4, "parts") as progress:
            progress.add(3)
            time.sleep(0.6)
        with phase("network tree"):
            current_reporter().training({"tree": 1, "level": 2, "levels": 2, "begun": 6_500})
            current_reporter().training(STEP)
            logger.info("a line with [markup]")
        with phase("prepare"):
            pass
    assert current_reporter() is before
    text = written(console)
    assert "3 of 4 parts" in text and "tree 2 · level 2/2 (6,500 nodes)" in text
    assert "a line with [markup]\n" in text
    summary = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()[-3:]]
    assert [row[0] for row in summary] == ["time", "best valid nDCG@5", "peak memory"]
    assert re.fullmatch(r"[\d.]+ s in all · prepare 0\.\d s · network tree 0\.\d s", summary[0][1])
    assert summary[1][1] == "tree 2 31.50"
    assert re.fullmatch(r"\d+\.\d GiB · a worker 1\.5 GiB", summary[2][1])
    # The cursor is hidden as long as there are bars.
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().rfind("\x1b[?25h") > console.file.getvalue().rfind("\x1b[?25l") >= 0


def test_a_failure_removes_the_bars_and_has_no_summary() -> None:
    console = terminal()
    with pytest.raises(RuntimeError), show_bars(console), phase("predict"), Heartbeat("predict"):
        raise RuntimeError
    assert "peak memory" not in written(console)
    assert isinstance(console.file, io.StringIO) and console.file.getvalue().rstrip("\n").endswith("\x1b[2K")


def test_a_command_without_phases_has_no_summary() -> None:
    console = terminal()
    with show_bars(console):
        pass
    assert written(console) == ""


def test_only_the_leaf_level_gives_the_score_of_a_tree() -> None:
    reporter = LiveReporter(terminal())
    reporter.training({**STEP, "level": 1})
    reporter.seconds["network tree"] = 1.0
    console = Console(file=io.StringIO(), width=100)
    console.print(reporter.summary())
    assert isinstance(console.file, io.StringIO) and "nDCG@5" not in console.file.getvalue()


@pytest.mark.parametrize(("kind", "has_bars"), [("xterm-256color", True), ("dumb", False)])
def test_a_terminal_has_bars_unless_it_is_dumb(kind: str, has_bars: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", kind)
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as error:
        monkeypatch.setattr(sys, "stderr", error)
        console = terminal_console()
        assert (console is not None) == has_bars
        if console is not None:
            console.print("text")
            assert os.read(master, 100) == b"text\r\n"
            console.file.close()
    os.close(master)


def test_a_file_has_no_bars_even_if_colours_are_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with (tmp_path / "log").open("w") as error:
        monkeypatch.setattr(sys, "stderr", error)
        assert terminal_console() is None


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard")
    with show_bars(console), phase("predict"), Heartbeat("predict", 4, "texts") as progress:
        progress.add(2)
        time.sleep(0.3)
    assert isinstance(console.file, io.StringIO)
    assert "2 of 4 texts" in written(console) and not re.search(r"\x1b\[[\d;]*3\d", console.file.getvalue())
