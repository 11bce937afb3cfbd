"""The same corpus however its input is cut, and on however many machines."""

import subprocess
import sys
from pathlib import Path

import pytest
from corpus.preparing import BAD, CUT, Prepare, lines, many, mixed, written

from axml_ray.corpus.preparation.passes import stage_inputs
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


def test_a_task_that_is_started_again_stages_what_it_would_have(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(many(40)) + BAD)
    settings = CorpusSettings.model_construct()
    [reader] = open_readers([tmp_path / "a.jsonl"], settings)
    stage = tmp_path / "stage"
    stage.mkdir()
    rows = stage_inputs([(0, reader), (1, reader)], stage, settings, 500)
    assert len(rows) == 4 and not any(row["failure"] for row in rows)
    before = {path: path.read_bytes() for path in stage.rglob("*") if path.is_file()}
    (stage / "000000-000099").mkdir()
    assert stage_inputs([(0, reader)], stage, settings, 500) == rows[: len(rows) // 2]
    assert {path: path.read_bytes() for path in stage.rglob("*") if path.is_file()} == before
    assert not (stage / "000000-000099").exists()


@pytest.mark.skipif(not Path("/proc/self/fdinfo").is_dir(), reason="no directory at hand that takes no files")
def test_a_place_that_takes_no_blocks_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(many(4)))
    settings, stage = CorpusSettings.model_construct(), Path("/proc/self/fdinfo")
    [row] = stage_inputs(list(enumerate(open_readers([tmp_path / "a.jsonl"], settings))), stage, settings, 500)
    assert row["path"] == str(stage) and row["failure"].startswith("cannot be written: ")


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
