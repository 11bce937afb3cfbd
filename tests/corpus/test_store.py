import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import SPLITS, VERSION, Corpus, Split

ROWS = {"train/b.parquet": [[5], [6, 7]], "train/a.parquet": [[1, 2], [3], [4]], "test/a.parquet": [[8]]}


def manifest(directory: Path, **changes: Any) -> None:
    files = {
        path.relative_to(directory).as_posix(): path.stat().st_size for path in sorted(directory.rglob("*.parquet"))
    }
    counts = {"documents": {"train": 5, "valid": 0, "test": 1}, "trained_labels": 8}
    content = {"format": "axml-ray corpus", "version": VERSION, "fingerprint": "f", "files": files, "counts": counts}
    (directory / "corpus.json").write_text(json.dumps(content | changes))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, rows in ROWS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        column = Ragged.from_rows(rows).to_arrow()
        pq.write_table(pa.table({"id": [name] * len(rows), "tokens": column, "labels": column}), path)
    manifest(tmp_path)
    return tmp_path


def test_splits_are_read_in_the_order_of_their_files(directory: Path) -> None:
    corpus = Corpus.open(directory)
    assert (corpus.fingerprint, corpus.trained, corpus.documents("train")) == ("f", 8, 5)
    assert [file.name for file in corpus.files("train")] == ["a.parquet", "b.parquet"]
    split = corpus.split("train")
    assert [split.tokens[i].tolist() for i in range(len(split))] == [[1, 2], [3], [4], [5], [6, 7]]
    assert split.tokens.values.dtype == np.int32
    assert corpus.table("train", ["id"]).column_names == ["id"]


def listed(split: Split) -> list[tuple[list[int], list[int]]]:
    return [(tokens.tolist(), labels.tolist()) for tokens, labels in zip(split.tokens, split.labels, strict=True)]


def test_a_split_is_written_once_for_each_corpus(directory: Path) -> None:
    path = directory / SPLITS / "train.safetensors"
    expected = [([1, 2], [1, 2]), ([3], [3]), ([4], [4]), ([5], [5]), ([6, 7], [6, 7])]
    assert listed(Corpus.open(directory).split("train")) == expected
    written = path.stat().st_ino, path.stat().st_mtime_ns
    assert listed(Corpus.open(directory).split("train")) == expected
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == written
    assert [len(Corpus.open(directory).split(name)) for name in ("valid", "test")] == [0, 1]
    (directory / "train/b.parquet").unlink()
    manifest(directory, fingerprint="another")
    assert listed(Corpus.open(directory).split("train")) == expected[:3]
    path.write_bytes(path.read_bytes()[:-1])
    assert listed(Corpus.open(directory).split("train")) == expected[:3]


def test_a_split_is_read_where_nothing_may_be_written(directory: Path) -> None:
    (directory / SPLITS).touch()
    assert listed(Corpus.open(directory).split("train"))[3:] == [([5], [5]), ([6, 7], [6, 7])]


PRIVATE = """
import re, sys
from pathlib import Path

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.training.batches import LevelData, TrueNodes, make_batch
from axml_ray.tree.label_tree import LabelTree
from axml_ray.network.tree_level import Level


def private():
    return int(re.search(r"Private_Dirty: +([0-9]+)", Path("/proc/self/smaps_rollup").read_text())[1]) << 10


corpus, tree = Corpus.open(Path(sys.argv[1])), LabelTree.from_cuts(np.arange(100), [])
level = Level.from_tree(tree, 1)
opened = []
for name in ("test", "train"):  # the first one only so that everything is imported and allocated once
    before = private()
    split = corpus.split(name).part(corpus.documents(name) - 1).cut(150)
    data = LevelData(split.tokens, TrueNodes(tree, 1, split.labels))
    for start in range(0, len(split), 64):
        make_batch(data, level, np.arange(start, min(start + 64, len(split))))
    opened.append(data)
print(private() - before)
"""


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_a_second_worker_of_a_node_shares_the_split(tmp_path: Path) -> None:
    """Cut, in part, and read from end to end, as training does."""
    random = np.random.default_rng(0)
    documents = {"train": 20_000, "valid": 0, "test": 200}
    for name, count in documents.items():
        (tmp_path / name).mkdir()
        tokens = Ragged(random.integers(0, 9, 200 * count, np.int32), 200 * np.arange(count + 1))
        labels = Ragged(np.tile(np.arange(50, dtype=np.int32), count), 50 * np.arange(count + 1))
        columns = {"tokens": tokens.to_arrow(), "labels": labels.to_arrow()}
        pq.write_table(pa.table(columns), tmp_path / name / "0.parquet")
    manifest(tmp_path, counts={"documents": documents, "trained_labels": 100})
    split = Corpus.open(tmp_path).split("train")
    size = split.tokens.values.nbytes + split.labels.values.nbytes
    done = subprocess.run([sys.executable, "-c", PRIVATE, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 0.1 * size


def test_documents_are_taken_together() -> None:
    split = Split(Ragged.from_rows([[1], [2, 3], [4]]), Ragged.from_rows([[], [0, 1], [2]])).take(np.array([2, 1]))
    assert [split.tokens[i].tolist() for i in range(2)] == [[4], [2, 3]]
    assert [split.labels[i].tolist() for i in range(2)] == [[2], [0, 1]]


def error_of(directory: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        Corpus.open(directory)
    assert "prepare it with axml-ray prepare" in str(caught.value)
    return str(caught.value)


def test_no_manifest(directory: Path) -> None:
    (directory / "corpus.json").unlink()
    assert error_of(directory).startswith(f"{directory}: no prepared corpus (corpus.json is missing)")
    assert "no prepared corpus" in error_of(directory / "nowhere")


@pytest.mark.parametrize(
    ("content", "expected"),
    [('{"format": "axml', "not valid JSON"), ("", "not valid JSON"), ("[]", "not the manifest of a corpus")],
)
def test_a_broken_manifest(directory: Path, content: str, expected: str) -> None:
    (directory / "corpus.json").write_text(content)
    assert error_of(directory).startswith(f"{directory / 'corpus.json'}: {expected}")


@pytest.mark.parametrize("change", [{"version": 1}, {"format": "something else"}])
def test_another_version(directory: Path, change: dict[str, Any]) -> None:
    manifest(directory, **change)
    said = error_of(directory)
    assert said.startswith(f"{directory / 'corpus.json'}: expected 'axml-ray corpus' version 2, found ")
    assert repr(next(iter(change.values()))) in said


@pytest.mark.fault("truncated file of a corpus", "files")
@pytest.mark.parametrize("cut", [True, False])
def test_a_missing_or_cut_off_file(directory: Path, cut: bool) -> None:
    path = directory / "train/b.parquet"
    size = path.stat().st_size
    if cut:
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    assert error_of(directory).startswith(f"{path}: missing or not {size} bytes long as corpus.json says")
