"""Preparing again, after a change, and after a failure."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus.preparing import Prepare, content, error_of, leftovers, lines, many

from axml_ray.corpus.store import Corpus
from axml_ray.settings import SPLITS, SettingsError

KILLED = """
import os, sys, time
from pathlib import Path

from axml_ray.corpus import prepare, word_vectors
from axml_ray.settings import CorpusSettings

word_vectors.save_vectors = lambda *a: (print("here", flush=True), time.sleep(600))
folder = Path(sys.argv[1])
prepare.prepare(
    CorpusSettings(train=(folder / "train.jsonl",), test=(folder / "test.jsonl",), valid_documents=3,
                   word_vectors="random", word_dimension=4, seed=int(sys.argv[2])),
    folder / "corpus",
)
"""


def test_prepared_twice_is_the_same_byte_for_byte(run: Prepare) -> None:
    settings = {"train": many(80), "test": many(20, "test"), "word_vectors": "train", "drop_duplicates": True}
    first, again = run(**settings), run(**settings, directory="again")
    assert content(first) == content(again)


def test_what_is_up_to_date_is_left_alone(run: Prepare, tmp_path: Path) -> None:
    names = tmp_path / "names.tsv"
    names.write_text("l0\tone\nl1\tone\nall\tone\n")
    np.save(tmp_path / "v.npy", np.ones((1, 4)))
    (tmp_path / "vocab.txt").write_text("text\n")
    settings: dict[str, Any] = {
        "train": many(20),
        "test": many(4, "test"),
        "label_names": names,
        "word_vectors": str(tmp_path / "v.npy"),
    }

    def stamps(corpus: Corpus) -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in corpus.directory.rglob("*")}

    first = run(**settings)
    before = stamps(first)
    assert stamps(run(**settings)) == before

    def changed() -> bool:
        nonlocal before
        after = stamps(run(**settings))
        was, before = before, after
        return was != after and was.keys() == after.keys()

    settings["max_tokens"] = 2
    assert changed()
    assert not changed()
    names.write_text("l0\ttwo\nl1\tone\nall\tone\n")
    assert changed()
    np.save(tmp_path / "v.npy", np.full((1, 4), 2.0))
    assert changed()
    settings["train"] = many(21)
    assert changed()
    (first.directory / "tokenizer.json").write_text("{")
    run(**settings)
    assert len(Corpus.open(first.directory).tokenizer) > 2


@pytest.mark.parametrize("stop", [RuntimeError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_and_keeps_the_older_corpus(
    run: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    def fail(*arguments: Any, **settings: Any) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr("axml_ray.corpus.word_vectors.save_vectors", fail)  # nearly the last that is written
        with pytest.raises(type(stop)):
            run(train=many(20), test=many(4, "test"))
        assert leftovers(tmp_path) == []
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    old = content(run(train=many(20), test=many(4, "test")))
    monkeypatch.setattr("axml_ray.corpus.word_vectors.save_vectors", fail)
    with pytest.raises(type(stop)):
        run(train=many(30), test=many(4, "test"))
    assert leftovers(tmp_path) == ["corpus"]
    assert content(Corpus.open(tmp_path / "corpus")) == old


def test_what_is_no_corpus_is_never_replaced(run: Prepare, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    said = error_of(run, train=many(9), test=many(4))
    assert said.startswith(f"{folder}: exists and is not a prepared corpus; choose another corpus.name")
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    (folder / "thesis.txt").unlink()
    assert run(train=many(9), test=many(4)).documents("test") == 4


def test_what_changed_is_said(run: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(train=many(20), test=many(4, "test"))
    caplog.set_level("INFO")

    def said(**settings: Any) -> str:
        caplog.clear()
        run(**({"train": many(20), "test": many(4, "test")} | settings))
        return caplog.messages[0]

    assert said() == f"prepare: {tmp_path / 'corpus'} is up to date"
    assert "made with other settings (corpus.max_tokens, corpus.seed); preparing" in said(max_tokens=9, seed=3)
    assert f"made from other inputs ({tmp_path / 'train.jsonl'})" in said(train=many(21), max_tokens=9, seed=3)


def test_what_is_refused_stays_away(run: Prepare, tmp_path: Path) -> None:
    given: dict[str, Any] = {"train": many(20), "test": many(4, "test")}
    before = run(**given).fingerprint

    def only_that(corpus: Corpus) -> None:
        if corpus.fingerprint != before:
            raise SettingsError("another corpus")

    (tmp_path / "train.jsonl").touch()
    assert run(**given, check=only_that).fingerprint == before  # a newer file, of the same texts
    changed = {**given, "train": many(21)}
    assert error_of(run, **changed, check=only_that) == "another corpus"
    assert Corpus.open(tmp_path / "corpus").fingerprint == before and leftovers(tmp_path) == ["corpus"]
    assert run(**changed).fingerprint != before
    assert error_of(run, **changed, check=only_that) == "another corpus"
    assert run(**given, check=only_that).fingerprint == before


def test_a_file_of_two_splits_is_named(run: Prepare, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / f"{name}.jsonl").write_bytes(lines(many(9)))
    said = error_of(run, train=(tmp_path / "data",), test=(tmp_path / "data" / "b.jsonl",))
    assert said == f"corpus.train and corpus.test both name {tmp_path}/data/b.jsonl; leave it out of one"


@pytest.mark.processes
def test_what_a_killed_preparation_left_is_removed(run: Prepare, tmp_path: Path) -> None:
    def hidden() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".corpus."))

    for split, count in (("train", 20), ("test", 4)):
        (tmp_path / f"{split}.jsonl").write_bytes(lines(many(count, split), 100_000 * SPLITS.index(split)))
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(tmp_path), "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    left = hidden()
    assert len(left) == 1
    assert not (tmp_path / "corpus").exists()
    # One that still runs is let be.
    run(train=many(20), test=many(4, "test"))
    assert hidden() == left
    process.kill()
    process.wait()
    run(train=many(20), test=many(4, "test"))
    assert hidden() == []
