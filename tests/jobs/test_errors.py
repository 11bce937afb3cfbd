"""A wrong input ends a job with exit code 2 and one line, which names what is wrong, and never with a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = ("no labels",)
"""Cases before which progress is logged."""
GOOD = [{"text": f"text {i}", "labels": [f"l{i % 3}"]} for i in range(9)]


class Case:
    def __init__(self, job: str, expected: str, code: int = 2, corpora: str = "corpora", **flags: str):
        self.job, self.expected, self.code, self.corpora, self.flags = job, expected, code, corpora, flags


CASES = {
    "broken line": Case(
        "train_ensemble",
        "{broken}:10: not JSON: Expecting ',' delimiter at character 14; fix the line, or allow bad records with "
        "corpus.max_rejected_share",
        train="{broken}",
    ),
    "no labels": Case(
        "prepare_corpus",
        "corpus.train ({unlabelled}): no document has a label; every record's `labels` is empty",
        train="{unlabelled}",
        test="{unlabelled_too}",
    ),
    # What can be known before the texts are read is said before.
    "unknown setting": Case(
        "prepare_corpus",
        "command line: --corpus.min_count: unknown setting; did you mean '--corpus.min_label_count'?",
        min_count="2",
    ),
    "one file in two splits": Case(
        "prepare_corpus", "corpus.train and corpus.test both name {good}; leave it out of one", test="{good}"
    ),
    "missing file": Case("train_ensemble", "corpus.test: no file matches '{missing}'", test="{missing}"),
    "empty names": Case(
        "prepare_corpus",
        "corpus.label_names: {names} holds no labels; expected lines of label, tab, name",
        label_names="{names}",
    ),
    "a file in the way": Case("prepare_corpus", "{good}/corpora: Not a directory", code=1, corpora="{good}/corpora"),
}
"""Of a small corpus, which is prepared without Ray."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Each case in a process of its own, two at a time."""
    folder = tmp_path_factory.mktemp("jobs")
    good = "".join(json.dumps(record) + "\n" for record in GOOD)
    contents = {
        "good": good,
        "broken": good + '{"text": "x" "labels": []}\n',
        "unlabelled": '{"text": "x", "labels": []}\n' * 9,
        "names": "",
    }
    contents |= {"good_too": good, "unlabelled_too": contents["unlabelled"]}
    paths = {name: str(folder / f"{name}.jsonl") for name in (*contents, "missing")}
    for name, content in contents.items():
        Path(paths[name]).write_text(content)

    def start(name: str, case: Case) -> subprocess.CompletedProcess[str]:
        case.expected = case.expected.format(**paths)
        flags = {"train": "{good}", "test": "{good_too}", "valid_documents": "3", **case.flags}
        words = [f"--corpus.{key}={value.format(**paths)}" for key, value in flags.items()]
        words.append(f"--corpora={case.corpora.format(**paths)}")
        home = folder / name
        home.mkdir()
        return subprocess.run(
            [sys.executable, str(ROOT / "jobs" / f"{case.job}.py"), *words],
            env={**os.environ, "AXML_RAY_HOME": str(home), "PYTHONPATH": str(ROOT)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=400,
        )

    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(start, name, case) for name, case in CASES.items()}
    for name in CASES:
        left = [path for path in (folder / name).rglob("*") if path.is_file() or path.name.startswith(".")]
        assert not left, f"{name} left {left}"


@pytest.mark.processes
@pytest.mark.parametrize("name", CASES)
def test_one_line_says_what_is_wrong(results: dict[str, Future[subprocess.CompletedProcess[str]]], name: str) -> None:
    result = results[name].result()
    said = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert said == [f"error: {CASES[name].expected}"], result.stderr
    assert result.returncode == CASES[name].code
    assert "Traceback" not in result.stderr + result.stdout
    assert result.stderr.count("\n") == 1 or name in READ
