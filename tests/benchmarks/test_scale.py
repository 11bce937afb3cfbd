import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import scale
from process_costs import descendants, proportional_bytes
from scipy import sparse

from axml_ray.corpus.preparation.prepare import prepare
from axml_ray.settings import CorpusSettings


@pytest.fixture(autouse=True)
def fewer_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "WORDS", 20_000)


def test_equal_seeds_generate_equal_documents() -> None:
    some = list(scale.generate(50, 3, 1000))
    assert some == list(islice(scale.generate(5000, 3, 1000), 50))
    assert some != list(scale.generate(50, 4, 1000))
    records = [json.loads(line) for line in some]
    assert all(isinstance(record["text"], str) for record in records)
    assert 90 < np.mean([len(record["text"].split()) for record in records]) < 120
    assert 25 < np.mean([len(record["labels"]) for record in records]) < 40
    assert max(map(len, scale._names(2000, 11, shortest=8))) == 8
    assert len(set(scale._names(5000, 7, shortest=2))) == 5000


@pytest.mark.usefixtures("ray_cluster")
def test_the_plain_loop_does_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, (name, documents) in enumerate({"train": 300, "valid": 5, "test": 5}.items()):
        scale.write(tmp_path / f"{name}.jsonl", documents, seed=seed, names=400)
    monkeypatch.setattr("axml_ray.corpus.labels.label_features.MANY_LABELS", 1)
    monkeypatch.setattr("axml_ray.corpus.labels.label_features.MAX_TERMS", 20)
    assert scale.plain(tmp_path / "train.jsonl", tmp_path / "plain") > 0
    corpus = prepare(
        CorpusSettings(
            train=(tmp_path / "train.jsonl",),
            valid=(tmp_path / "valid.jsonl",),
            test=(tmp_path / "test.jsonl",),
            word_vectors="random",
            word_dimension=2,
        ),
        tmp_path / "corpus",
    )
    plain = pq.read_table(tmp_path / "plain" / "train.parquet")
    ours = corpus.table("train", ["id", "tokens", "labels", "text"])
    for column in ("id", "tokens", "labels", "text"):
        assert plain[column].to_pylist() == ours[column].to_pylist()
    theirs = sparse.load_npz(tmp_path / "plain" / "label_features.npz")
    found = corpus.label_features()
    # Among equally strong terms either may keep another one.
    assert abs(theirs - found[: theirs.shape[0]]).max(axis=1).toarray().ravel().__gt__(1e-5).mean() < 0.05
    np.testing.assert_allclose(np.sqrt(theirs.multiply(theirs).sum(axis=1)), 1, rtol=1e-5)


@pytest.mark.processes
def test_memory_is_that_of_the_whole_tree() -> None:
    child = "import sys; held = bytearray(b'x') * (64 << 20); print('held', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    held = sum(map(proportional_bytes, (process.pid, *descendants(process.pid))))
    process.communicate()
    assert 64 << 20 <= held < 160 << 20
