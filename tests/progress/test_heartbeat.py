"""Lines that are logged while an activity lasts."""

import logging
import threading
import time

import pytest

from axml_ray.progress import reporter
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.progress.reporter import format_activity


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(reporter, "SECONDS", 0.05)
    caplog.set_level(logging.INFO)
    return caplog


def wait_for(caplog: pytest.LogCaptureFixture, lines: int) -> None:
    end = time.monotonic() + 30
    while len(caplog.messages) < lines:
        assert time.monotonic() < end
        time.sleep(0.01)


def thread_ends(name: str) -> bool:
    """Whether the thread that logs an activity's lines ends within seconds."""
    for thread in threading.enumerate():
        if thread.name == f"progress: {name}":
            thread.join(5)
            return not thread.is_alive()
    return True


def test_it_says_how_far_the_work_is_and_stops_with_it(quick: pytest.LogCaptureFixture) -> None:
    with Heartbeat("predict", 2_000, "texts") as beat:
        wait_for(quick, 1)
        beat.add(1_500)
        wait_for(quick, len(quick.messages) + 2)
    assert quick.messages[0].startswith("predict · 0 of 2,000 texts · ")
    assert quick.messages[-1].startswith("predict · 1,500 of 2,000 texts · ") and "a second" in quick.messages[-1]
    assert thread_ends("predict")
    said = len(quick.messages)
    time.sleep(0.2)
    assert len(quick.messages) == said


def test_work_that_fails_ends_it(quick: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError), Heartbeat("cluster"):
        raise RuntimeError
    assert thread_ends("cluster")


def test_short_work_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Heartbeat("predict", unit="texts") as beat:
        beat.add(3)
        assert format_activity(beat).startswith("predict · 3 texts · ")
    assert caplog.messages == []
