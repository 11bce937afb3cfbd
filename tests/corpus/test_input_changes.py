"""Preparing again, after a change, and after a failure."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from corpus.preparing import Prepare, content, error_of, ids, leftovers, lines, many, rows

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.preparation.input_changes import content_of, read_inputs, stamp_of
from axml_ray.corpus.store import Corpus
from axml_ray.settings import SPLITS

KILLED = """
import os, sys, time
from pathlib import Path

from axml_ray.corpus.preparation import prepare
from axml_ray.corpus.text import word_vectors
from axml_ray.settings import CorpusSettings

word_vectors.save_vectors = lambda *a: (print("here", flush=True), time.sleep(600))
folder = Path(sys.argv[1])
prepare.prepare(
    CorpusSettings(train=(folder / "train.jsonl",), test=(folder / "test.jsonl",), valid_documents=3,
                   word_vectors="random", word_dimension=4, max_tokens=1 + int(sys.argv[2])),
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
        patch.setattr("axml_ray.corpus.text.word_vectors.save_vectors", fail)  # nearly the last that is written
        with pytest.raises(type(stop)):
            run(train=many(20), test=many(4, "test"))
        assert leftovers(tmp_path) == []
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    old = content(run(train=many(20), test=many(4, "test")))
    monkeypatch.setattr("axml_ray.corpus.text.word_vectors.save_vectors", fail)
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


@pytest.mark.parametrize("written", ['{"text": "mine"}\n', '{"text": "mine"}\n{"text": "too"}\n', "[]"])
def test_a_file_that_is_called_as_the_manifest_is_never_replaced(run: Prepare, tmp_path: Path, written: str) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "corpus.json").write_text(written)
    assert error_of(run, train=many(9), test=many(4)).startswith(f"{folder}: exists and is not a prepared corpus")
    assert (folder / "corpus.json").read_text() == written


def test_an_incomplete_corpus_is_prepared_anew(run: Prepare, tmp_path: Path) -> None:
    first = run(train=many(9), test=many(4))
    (first.directory / "labels.parquet").unlink()
    assert content(run(train=many(9), test=many(4))) == content(first)
    manifest = first.directory / "corpus.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 1}))
    assert content(run(train=many(9), test=many(4))) == content(first)


@pytest.mark.parametrize("is_link", [False, True])
def test_inputs_in_the_directory_of_the_corpus_are_never_replaced(run: Prepare, tmp_path: Path, is_link: bool) -> None:
    run(train=many(9), test=many(4))
    path = tmp_path / "corpus" / "names.tsv"
    path.write_text("l0\tone\nl1\tone\nall\tone\n")
    (tmp_path / "link").symlink_to(tmp_path / "corpus")
    named = tmp_path / "link" / "names.tsv" if is_link else path
    assert error_of(run, train=many(9), test=many(4), label_names=str(named)).startswith(
        f"corpus.label_names: {named} "
    )
    assert path.is_file()


def test_files_of_others_in_a_corpus_are_never_removed(run: Prepare) -> None:
    path = run(train=many(9), test=many(4)).directory / "pairs.txt"
    path.write_text("0 0")
    run(train=many(9), test=many(4))
    assert "pairs.txt" in error_of(run, train=many(10), test=many(4)) and path.read_text() == "0 0"
    path.unlink()
    assert run(train=many(10), test=many(4)).directory == path.parent


def test_what_changed_is_said(run: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(train=many(20), test=many(4, "test"))
    caplog.set_level("INFO")

    def said(**settings: Any) -> str:
        caplog.clear()
        run(**({"train": many(20), "test": many(4, "test")} | settings))
        return caplog.messages[0]

    assert said() == f"prepare: {tmp_path / 'corpus'} is up to date"
    assert "made with other settings (corpus.max_tokens); preparing" in said(max_tokens=9)
    assert f"made from other inputs ({tmp_path / 'train.jsonl'})" in said(train=many(21), max_tokens=9)
    manifest = tmp_path / "corpus" / "corpus.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"inputs": "of a key with other parts"}))
    assert "made by another version" in said(train=many(21), max_tokens=9)


def test_a_suffix_that_decides_how_names_are_read_counts(run: Prepare, tmp_path: Path) -> None:
    given: dict[str, Any] = {"train": many(20), "test": many(4, "test")}
    content = "".join(f"l{i},Name {i}\n" for i in range(4))
    (tmp_path / "names.csv").write_text(content)
    (tmp_path / "names.tsv").write_text(content.replace(",", "\t"))
    named = [run(**given, label_names=str(tmp_path / f"names.{suffix}")) for suffix in ("csv", "tsv", "csv")]
    assert len({corpus.manifest["inputs"] for corpus in named}) == 2
    assert all("Name 0" in corpus.labels.names for corpus in named)
    (tmp_path / "names.csv").rename(tmp_path / "moved.csv")
    moved = run(**given, label_names=str(tmp_path / "moved.csv"))
    assert moved.manifest["inputs"] == named[0].manifest["inputs"]


def test_a_directory_that_is_in_ids_counts(run: Prepare, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"y{number}").mkdir()
        (tmp_path / f"y{number}" / "part.jsonl").write_bytes(
            b"".join(json.dumps({"text": f"text {number} {i}", "labels": ["a"]}).encode() + b"\n" for i in range(20))
        )
    given = {"train": (tmp_path / "y*" / "part.jsonl",), "test": (), "valid_documents": 2}
    first = run(**given)
    assert run(**given).manifest["inputs"] == first.manifest["inputs"]
    (tmp_path / "y1").rename(tmp_path / "y0")
    renamed = run(**given)
    assert renamed.manifest["inputs"] != first.manifest["inputs"]
    assert {name.partition("/")[0] for name in ids(renamed, "train")} == {"y0", "y2"}


def test_the_names_of_classes_count(run: Prepare, tmp_path: Path) -> None:
    """Hugging Face `datasets` writes them into a file of their own."""
    folder = tmp_path / "saved"
    folder.mkdir()
    table = pa.table({"text": [f"text {i}" for i in range(60)], "labels": [i % 2 for i in range(60)]})
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    for names in (["cat", "dog"], ["dog", "cat"]):
        features = {"labels": {"names": names, "_type": "ClassLabel"}}
        (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
        corpus = run(train=(folder,), test=[("test", names)])
        found = {text: labels for labels, text in rows(corpus, "train").values()}
        assert found and all(labels == [names[int(text.split()[1]) % 2]] for text, labels in found.items())


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were hashed."""
    names: list[str] = []
    digest = hashlib.file_digest

    def counted(file: Any, *rest: Any) -> Any:
        if Path(file.name).suffix in (".jsonl", ".tsv"):
            names.append(Path(file.name).name)
        return digest(file, *rest)

    monkeypatch.setattr("axml_ray.corpus.preparation.input_changes.hashlib.file_digest", counted)
    return names


def state_of(corpus: Corpus) -> tuple[str, int]:
    """What differs if it was prepared anew, even if it came out the same."""
    return corpus.fingerprint, (corpus.directory / "tokenizer.json").stat().st_ino


def texts(directory: Path, **splits: int) -> dict[str, Any]:
    directory.mkdir(parents=True, exist_ok=True)
    for number, (split, count) in enumerate(splits.items()):
        (directory / f"{split}.jsonl").write_bytes(lines(many(count, split), 1000 * number))
    return {split: (directory / f"{split}.jsonl",) for split in splits}


def test_a_touched_input_is_hashed_once_and_nothing_is_prepared(
    run: Prepare, tmp_path: Path, hashed: list[str]
) -> None:
    given = texts(tmp_path / "in", train=20, test=4)
    before = state_of(run(**given))
    assert sorted(set(hashed)) == ["test.jsonl", "train.jsonl"]
    hashed.clear()
    assert state_of(run(**given)) == before and hashed == []
    os.utime(given["train"][0], (1, 1))
    given["test"][0].write_bytes(given["test"][0].read_bytes())
    assert state_of(run(**given)) == before
    assert sorted(hashed) == ["test.jsonl", "train.jsonl"]
    hashed.clear()
    assert state_of(run(**given)) == before and hashed == []


@pytest.mark.parametrize("how", [Path.rename, shutil.copytree])
def test_inputs_in_another_place_are_the_same(run: Prepare, tmp_path: Path, hashed: list[str], how: Any) -> None:
    given = texts(tmp_path / "in", train=20, test=4)
    names = tmp_path / "in" / "names.tsv"
    names.write_text("all\tone\nl0\ttwo\nl1\tthree\n")
    before = state_of(run(**given, label_names=names))
    hashed.clear()
    place = tmp_path / "mnt"
    how(tmp_path / "in", place)
    moved = {split: (place / f"{split}.jsonl",) for split in given}
    assert state_of(run(**moved, label_names=place / "names.tsv")) == before
    assert len(hashed) == (0 if how is Path.rename else 3)  # inodes are kept by a move
    assert state_of(run(**{split: (place / f"{split[:2]}*.jsonl",) for split in given},
                        label_names=place / "names.tsv")) == before  # fmt: skip
    (place / "names.tsv").rename(place / "other.tsv")
    assert state_of(run(**moved, label_names=place / "other.tsv")) == before
    assert state_of(run(**moved)) != before


def test_another_content_of_the_same_size_and_time_is_seen(run: Prepare, tmp_path: Path) -> None:
    given = texts(tmp_path / "in", train=20, test=4)
    before, [file] = state_of(run(**given)), given["train"]
    status, content = file.stat(), file.read_bytes()
    file.write_bytes(content.replace(b"text 3 of", b"text 9 of"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    other = state_of(run(**given))
    assert other[0] != before[0] and other[1] != before[1]
    file.rename(file.with_name("renamed.jsonl"))  # ids may have the name of the file
    assert state_of(run(train=(file.with_name("renamed.jsonl"),), test=given["test"])) != other


def test_the_order_of_the_inputs_counts(run: Prepare, tmp_path: Path) -> None:
    given = texts(tmp_path / "in", train=20, test=4, more=6)
    train, more = given["train"][0], given["more"][0]
    first = state_of(run(train=(train, more), test=given["test"]))
    assert state_of(run(train=(more, train), test=given["test"])) == first  # they are sorted
    names = [path.read_bytes() for path in (train, more)]
    train.write_bytes(names[1])
    more.write_bytes(names[0])
    assert state_of(run(train=(train, more), test=given["test"])) != first


def test_a_package_is_known_by_its_sources(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "a.py").write_text("a = 1")
    (package / "inner" / "b.py").write_text("b = 1")
    before = content_of(package), stamp_of(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_text("compiled")
    assert (content_of(package), stamp_of(package)) == before
    shutil.copytree(package, tmp_path / "copy")
    assert content_of(tmp_path / "copy") == before[0]
    (package / "a.py").write_text("a = 2")
    assert content_of(package) != before[0] and stamp_of(package) != before[1]
    (package / "a.py").rename(package / "c.py")
    (tmp_path / "copy" / "a.py").write_text("a = 2")
    assert content_of(package) != content_of(tmp_path / "copy")
    (tmp_path / "empty").mkdir()
    assert stamp_of(tmp_path / "empty") == (0, 0, 0, 0) and content_of(tmp_path / "empty")


def test_a_url_of_a_local_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    url = (tmp_path / "a.jsonl").as_uri()
    assert content_of(url) == content_of(tmp_path / "a.jsonl") and stamp_of(url) == stamp_of(tmp_path / "a.jsonl")
    assert content_of(url) == hashlib.sha256(b"{}").hexdigest()


def test_a_lost_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"{tmp_path}/none"):
        read_inputs([("train", tmp_path / "none.jsonl")], {}, {})


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
