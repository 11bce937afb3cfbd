"""A wrong input ends a command with exit code 2 and one line, which names what is wrong, and never with a traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = [{"text": f"text {i}", "labels": [f"l{i % 3}"]} for i in range(9)]


class Case:
    def __init__(self, command: str, expected: str, code: int = 2, corpora: str = "corpora", **flags: str):
        self.command, self.expected, self.code, self.corpora, self.flags = command, expected, code, corpora, flags


CASES = {
    "broken line": Case(
        "train",
        "{broken}:10: not JSON: Expecting ',' delimiter at character 14; fix the line, or allow bad records with "
        "corpus.max_rejected_share",
        train="{broken}",
    ),
    "no labels": Case(
        "prepare",
        "corpus.train ({unlabelled}): no document has a label; every record's `labels` is empty",
        train="{unlabelled}",
        test="{unlabelled_too}",
    ),
    # What can be known before the texts are read is said before.
    "unknown setting": Case(
        "prepare",
        "command line: --corpus.min_count: unknown setting; did you mean '--corpus.min_label_count'?",
        min_count="2",
    ),
    "one file in two splits": Case(
        "prepare", "corpus.train and corpus.test both name {good}; leave it out of one", test="{good}"
    ),
    "missing file": Case("train", "corpus.test: no file matches '{missing}'", test="{missing}"),
    "empty names": Case(
        "prepare",
        "corpus.label_names: {names} holds no labels; expected lines of label, tab, name",
        label_names="{names}",
    ),
    "a file in the way": Case(
        "prepare",
        "{good}/corpora: Not a directory; name another place, or change what is there or who may write there",
        corpora="{good}/corpora",
    ),
}
"""Of a small corpus, which is prepared without Ray."""


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_what_is_wrong(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, home = CASES[name], tmp_path / "home"
    good = "".join(json.dumps(record) + "\n" for record in GOOD)
    contents = {
        "good": good,
        "broken": good + '{"text": "x" "labels": []}\n',
        "unlabelled": '{"text": "x", "labels": []}\n' * 9,
        "names": "",
    }
    contents |= {"good_too": good, "unlabelled_too": contents["unlabelled"]}
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in (*contents, "missing")}
    for file, content in contents.items():
        Path(paths[file]).write_text(content)
    home.mkdir()
    monkeypatch.setenv("AXML_RAY_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    flags = {"train": "{good}", "test": "{good_too}", "valid_documents": "3", **case.flags}
    words = [f"--corpus.{key}={value.format(**paths)}" for key, value in flags.items()]
    code, _, err = command(case.command, *words, f"--corpora={case.corpora.format(**paths)}")
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    assert said == [f"error: {case.expected.format(**paths)}"], err
    assert code == case.code
    assert [path for path in home.rglob("*") if path.is_file() or path.name.startswith(".")] == []
