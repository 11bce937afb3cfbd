"""The same corpus however its input is cut, and on however many machines."""

import gzip
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus.preparing import BAD, CUT, Prepare, error_of, lines, many, mixed, written

from axml_ray.core.errors import JobError, SettingsError
from axml_ray.corpus.preparation.source_stream import SourceBlock, blocks_of, read_blocks, stage_source_block
from axml_ray.corpus.preparation.split_assignment import FILE_DOCUMENTS
from axml_ray.corpus.readers.sources import open_readers
from axml_ray.corpus.store import Corpus
from axml_ray.settings import CorpusSettings


def test_how_the_input_is_split_changes_nothing(run: Prepare, tmp_path: Path) -> None:
    records = many(FILE_DOCUMENTS + 100)
    whole = run(train=records, test=many(20, "test"), word_vectors="train", max_train_documents=2_000)
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, (begin, end) in enumerate([(0, 7), (7, 700), (700, FILE_DOCUMENTS + 100)]):
        (parts / f"{number}.jsonl").write_bytes(lines(records[begin:end], begin))
    split = run(
        train=(parts / "*.jsonl",),
        test=many(20, "test"),
        word_vectors="train",
        max_train_documents=2_000,
        directory="s",
    )
    assert written(whole) == written(split)
    assert whole.fingerprint == split.fingerprint


def blocks_and_stage(tmp_path: Path) -> tuple[list[SourceBlock], Path]:
    (tmp_path / "a.jsonl").write_bytes(lines(many(40)) + BAD)
    readers = open_readers([tmp_path / "a.jsonl"], CorpusSettings.model_construct())
    (tmp_path / "stage").mkdir()
    return list(read_blocks(list(enumerate(readers * 2)), 1_000)), tmp_path / "stage"


def test_a_task_that_is_started_again_stages_what_it_would_have(tmp_path: Path) -> None:
    blocks, stage = blocks_and_stage(tmp_path)
    settings = CorpusSettings.model_construct()
    rows = [stage_source_block(pickle.loads(pickle.dumps(block)), 1_000, stage, settings) for block in blocks]
    assert sum(row["rows"] for of_block in rows for row in of_block) == 80
    before = {path: path.read_bytes() for path in stage.rglob("*") if path.is_file()}
    (stage / f"{blocks[0].name}-000000" / "words.arrow").write_bytes(b"half of it")
    (stage / f"{blocks[0].name}-000001").mkdir()
    assert stage_source_block(blocks[0], 1_000, stage, settings) == rows[0]
    assert {path: path.read_bytes() for path in stage.rglob("*") if path.is_file()} == before
    assert not (stage / f"{blocks[0].name}-000001").exists()
    [rejected] = map(json.loads, (stage / f"{blocks[-1].name}-000000.rejected.jsonl").read_text().splitlines())
    assert (rejected["file"], rejected["line"]) == (str(tmp_path / "a.jsonl"), 41)


@pytest.mark.skipif(not Path("/proc/self/fdinfo").is_dir(), reason="no directory at hand that takes no files")
def test_a_place_that_takes_no_blocks_is_named(tmp_path: Path) -> None:
    stage = Path("/proc/self/fdinfo")
    [row] = stage_source_block(blocks_and_stage(tmp_path)[0][0], 1_000, stage, CorpusSettings.model_construct())
    assert row["failure"].startswith(f"{stage} cannot be written: ")


@pytest.mark.parametrize("size", [100, 1_000, 1 << 20])
def test_the_blocks_of_every_kind_of_file_are_the_file(tmp_path: Path, size: int) -> None:
    settings = CorpusSettings.model_construct()
    for reader in open_readers(write_kinds(tmp_path), settings):
        blocks = list(pickle.loads(pickle.dumps(list(blocks_of(reader, size)))))
        assert [record for block in blocks for record in block.read()] == list(reader.read())
        assert len(blocks) > 1 or size > 1_000 or Path(reader.path).name[0] not in "abcdh"


def write_kinds(folder: Path) -> tuple[Path, ...]:
    """The same kinds of documents in each kind of file, with some records that are none."""
    records = [{"text": text, "labels": labels} for text, labels in mixed(60, "kinds")]
    json_lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    files = {
        "a.jsonl": json_lines + BAD,
        "b.jsonl.gz": gzip.compress(json_lines + BAD + json_lines),
        "c.jsonl.gz": gzip.compress(json_lines),
        "d.jsonl": json_lines.decode().encode("utf-16"),
        "e.json": json.dumps([*records, {"text": 1}, *records], indent=1).encode(),
        "f.csv": b"text,labels\n" + b'"a ""cell"", \nof two lines",x;y\n' * 60 + b"a,b,c\n",
        "g.jsonl": b"",
        "h.jsonl": b"\n" * 5_000,
        "j_texts.txt": b"a text\n" * 50,
        "j_labels.txt": b"one two\n" * 50,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    pq.write_table(
        pa.Table.from_pylist([*records, {"text": None, "labels": []}]), folder / "i.parquet", row_group_size=9
    )
    return tuple(path for path in sorted(folder.iterdir()) if path.name != "j_labels.txt")


@pytest.mark.usefixtures("ray_cluster")
def test_a_stream_of_every_kind_of_file_gives_the_same(
    run: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kinds"
    folder.mkdir()
    settings: dict[str, Any] = {"train": write_kinds(folder), "test": many(9, "test"), "max_rejected_share": 0.1}
    alone = run(**settings)
    monkeypatch.setattr("axml_ray.corpus.preparation.tasks.SMALL_BYTES", 2_000)
    streamed = run(**settings, block_bytes=4_000, directory="streamed")
    assert written(alone) == written(streamed)
    assert alone.manifest["summary"] == streamed.manifest["summary"]
    rejected = [json.loads(line) for line in (streamed.directory / "rejected.jsonl").read_text().splitlines()]
    assert [(Path(one["file"]).name, one["line"]) for one in rejected] == [
        ("a.jsonl", 61),
        ("b.jsonl.gz", 61),
        ("e.json", 462),
        ("f.csv", 122),
        ("i.parquet", 61),
    ]
    (damaged_file := folder / "k.jsonl").write_bytes(b"%PDF-1.7\n" * 200)
    settings["train"] = (*settings["train"], damaged_file)
    assert f"{damaged_file} cannot be read: " in error_of(run, **settings)


@pytest.mark.usefixtures("ray_cluster")
def test_one_compressed_file_is_tokenised_by_several_tasks(
    run: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one task decompresses it."""
    import ray
    from ray.util.state import list_tasks

    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines(many(20_000))))
    monkeypatch.setattr("axml_ray.corpus.preparation.tasks.SMALL_BYTES", 1)
    run(train=(path,), test=many(9, "test"), block_bytes=100_000)
    processes: list[int] = []
    end = time.monotonic() + 20
    while len(processes) < 15 and time.monotonic() < end:  # workers report their tasks about once a second
        found = list_tasks(
            ray.get_runtime_context().gcs_address, filters=[("name", "=", "FlatMap(_stage_row)")], detail=True
        )
        processes = [task.worker_pid for task in found if task.worker_pid]
        time.sleep(0.2)
    assert len(processes) >= 15 and len(set(processes)) >= 2


@pytest.mark.fault("full disk", "preparation", work_repeated="the preparation")
@pytest.mark.processes
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("in_tasks", [False, True])
def test_a_full_disk_leaves_nothing_and_the_same_command_goes_on(
    run: Prepare, small_disk: Path, monkeypatch: pytest.MonkeyPatch, in_tasks: bool
) -> None:
    if in_tasks:
        monkeypatch.setattr("axml_ray.corpus.preparation.tasks.SMALL_BYTES", 1)
    settings = {"train": many(20_000), "test": many(9, "test"), "block_bytes": 100_000}
    with pytest.raises((SettingsError, JobError, OSError), match=r"No space left|Errno 28"):
        run(**settings, directory=f"{small_disk.name}/corpus")
    assert list(small_disk.iterdir()) == []
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    corpus = run(**settings, directory=f"{small_disk.name}/corpus")
    assert corpus.documents("train") + corpus.documents("valid") == 20_000


TWO_NODES = """
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from axml_ray.corpus.labels import label_features
from axml_ray.corpus.preparation import build, prepare, tasks
from axml_ray.settings import CorpusSettings

folder, nodes = Path(sys.argv[1]), int(sys.argv[2])
cluster = Cluster()
for number in range(nodes):
    cluster.add_node(num_cpus=1, object_store_memory=128 << 20, include_dashboard=False)
ray.init(address=cluster.address, log_to_driver=False)
assert len([node for node in ray.nodes() if node["Alive"]]) == nodes
tasks.SMALL_BYTES, build.BLOCK_BYTES = 1, 40_000
label_features.MANY_LABELS, label_features.MAX_TERMS = 1, 3
prepare.prepare(
    CorpusSettings(
        train=(folder / "train.jsonl",), test=(folder / "test.jsonl",), valid_documents=20,
        word_vectors="train", word_dimension=4, max_tokens=8, min_label_count=2,
    ),
    folder / sys.argv[2],
)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("blocks", "subwords"), [(2, False), (8, True)])
def test_the_number_of_blocks_changes_nothing(
    run: Prepare, monkeypatch: pytest.MonkeyPatch, blocks: int, subwords: bool
) -> None:
    settings = {"train": mixed(400, "train"), "test": mixed(80, "test"), "subwords": subwords, **CUT}
    settings["word_vectors"] = "train"
    monkeypatch.setattr("axml_ray.corpus.text.cooccurrence.STRIPE_PAIRS", 5_000)
    monkeypatch.setattr("axml_ray.corpus.labels.label_features.MANY_LABELS", 1)
    monkeypatch.setattr("axml_ray.corpus.labels.label_features.MAX_TERMS", 3)
    whole = run(**settings)
    size = len(lines(settings["train"])) // blocks + 1
    # Not in this process, as so little would be.
    monkeypatch.setattr("axml_ray.corpus.preparation.tasks.SMALL_BYTES", 1)
    monkeypatch.setattr("axml_ray.corpus.labels.label_features.RANGE_TERMS", 50)
    cut = run(**settings, block_bytes=size, directory="cut")
    assert written(whole) == written(cut)
    assert whole.manifest["summary"] == cut.manifest["summary"]
    assert whole.fingerprint == cut.fingerprint


@pytest.mark.slow
def test_two_nodes_give_the_same(tmp_path: Path) -> None:
    for split, count in (("train", 3000), ("test", 200)):
        (tmp_path / f"{split}.jsonl").write_bytes(lines(mixed(count, split)))
    script = tmp_path / "prepare.py"
    script.write_text(TWO_NODES)
    for nodes in ("1", "2"):
        subprocess.run([sys.executable, script, str(tmp_path), nodes], check=True, timeout=240)
    one, two = (Corpus.open(tmp_path / nodes) for nodes in ("1", "2"))
    assert written(one) == written(two)
    assert one.fingerprint == two.fingerprint
