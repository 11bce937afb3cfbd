"""What a command reports of a failure: one line, and a file with the traceback if the program does not explain it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import sys
from axml_ray.cli.console import job_of_flags

@job_of_flags("Fail.", lambda parser: parser.add_argument("kind"))
def main(given):
    from os import environ
    from pathlib import Path
    from axml_ray.cluster.failures import recorded_failures

    with recorded_failures(Path(environ.get("RUN", "/nowhere"))):
        work(given)


def work(given):
    from axml_ray.core.errors import JobError, SettingsError

    if given.kind == "torch":
        import torch

        torch.ones(2, 3) @ torch.ones(2, 3)
    raise {
        "job": JobError("a worker died"),
        "settings": SettingsError("corpus.train: missing"),
        "system": FileNotFoundError(2, "No such file or directory", "a.jsonl"),
        "library": OSError("Corrupt snappy compressed data"),
        "key": KeyError("x"),
    }[given.kind]

main()
"""

pytestmark = pytest.mark.processes


def fail(temporary: Path, *words: str, **variables: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines on standard error of the command."""
    environment = os.environ | {"TMPDIR": str(temporary)} | variables
    command = [sys.executable, "-c", COMMAND, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("job", 1, "error: a worker died"),
        ("settings", 2, "error: corpus.train: missing"),
        ("system", 1, "error: a.jsonl: No such file or directory"),
    ],
)
def test_what_the_program_explains_is_one_line(tmp_path: Path, kind: str, code: int, line: str) -> None:
    assert fail(tmp_path, kind) == (code, [line])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "reason"), [("torch", "cannot be multiplied"), ("library", "Corrupt snappy"), ("key", "KeyError")]
)
def test_any_other_error_is_one_line_that_names_the_file_of_its_traceback(
    tmp_path: Path, kind: str, reason: str
) -> None:
    code, (line,) = fail(tmp_path, kind)
    assert code == 1 and line.startswith("error: ") and reason in line and "--verbose" in line
    (written,) = tmp_path.iterdir()
    assert str(written) in line
    text = written.read_text()
    assert re.search(r"^Traceback ", text, re.M) and reason in text and "in main" in text


def test_verbose_prints_the_traceback(tmp_path: Path) -> None:
    for words in (("--verbose", "key"), ("job", "--verbose")):
        code, lines = fail(tmp_path, *words)
        assert code == 1 and lines[0].startswith("Traceback ") and lines[-1].startswith("error: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["job", "torch", "settings"])
def test_a_failure_of_a_run_has_a_record_there_that_verbose_shows(tmp_path: Path, kind: str) -> None:
    temporary, run = tmp_path / "temporary", tmp_path / "run"
    temporary.mkdir()
    run.mkdir()
    code, (line,) = fail(temporary, kind, RUN=str(run))
    if kind == "settings":  # the line explains it
        assert code == 2 and list(run.iterdir()) == []
        return
    (record,) = (run / "errors").iterdir()
    assert code == 1 and line.endswith(f"(details: {record})")
    text = record.read_text()
    assert re.search(r"^Traceback ", text, re.M) and "in work" in text
    assert "Traceback (most recent call last):" in fail(temporary, "--verbose", kind, RUN=str(run))[1]
    assert not list(temporary.iterdir())
