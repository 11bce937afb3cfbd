"""The comparison with omikuji, and the file that benchmarks write.

python -m pytest tests/benchmarks/test_peers.py
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import peers
import results_file

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.store import FORMAT, VERSION, Corpus
from axml_ray.files import write_json
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

LABELS = 150  # more than omikuji's min_branch_size, so that its trees have branches


@pytest.fixture
def run(tmp_path):
    """A run on a corpus where label `n` is true of the texts with the word `word<n>`."""
    corpus = tmp_path / "corpora" / "toy"
    random = np.random.default_rng(0)
    drawn = {
        split: [random.choice(LABELS, 3, replace=False).tolist() for _ in range(documents)]
        for split, documents in (("train", 600), ("valid", 20), ("test", 40))
    }
    counts = {f"label{n}": sum(n in row for row in drawn["train"]) for n in range(LABELS)}
    index = LabelIndex.build(counts)
    assert index.trained == LABELS
    for split, rows in drawn.items():
        texts = [" ".join(f"Word{n}, filler" for n in row) for row in rows]
        if split == "train":
            texts[0] = "unique"  # no word of it is known, which leaves a line without features
        (corpus / split).mkdir(parents=True)
        columns = {
            "id": [f"{split}-{i}" for i in range(len(rows))],
            "tokens": pa.array([[2]] * len(rows), pa.list_(pa.int32())),
            "labels": index.encode([[f"label{n}" for n in row] for row in rows]).to_arrow(),
            "text": texts,
        }
        pq.write_table(pa.table(columns), corpus / split / "000000.parquet")
    index.save(corpus / "labels.parquet")
    files = {path.relative_to(corpus).as_posix(): path.stat().st_size for path in corpus.rglob("*.parquet")}
    documents = {split: len(rows) for split, rows in drawn.items()}
    manifest = {"format": FORMAT, "version": VERSION, "fingerprint": "0123456789ab", "files": files}
    write_json(
        corpus / "corpus.json",
        manifest | {"counts": {"documents": documents, "labels": LABELS, "trained_labels": LABELS}},
    )
    directory = tmp_path / "runs" / "toy-run"
    directory.mkdir(parents=True)
    experiment = {
        "name": "toy-run",
        "runs": str(tmp_path / "runs"),
        "corpora": str(tmp_path / "corpora"),
        "corpus": {"name": "toy", "source": "installed_packages"},
    }
    (directory / "settings.yaml").write_text(yaml.safe_dump(experiment))
    metrics = {
        "corpus": "toy",
        "split": "test",
        "documents": 40,
        "ensemble": dict.fromkeys(peers.COLUMNS, 50.0),
        "trees": [{}, {}, {}],
        "seconds": {"prepare": 1.0, "cluster": 2.0, "train": 30.0, "predict": 4.0},
        "propensity": {"A": 0.6, "B": 2.6},
    }
    write_json(directory / "metrics.json", metrics)
    return directory


def peer_row(system, scores, **given):
    row = {
        "system": system,
        "scores": scores,
        "seconds": {"features": 1.0, "fit": 2.5, "transform": 0.25, "predict": 0.5},
        "trees": 3,
        "trained_on": "train",
        "training_documents": 1000,
        "training_documents_left_out_by_quick": 0,
        "test_documents": 40,
    }
    return row | given


def shown(rows):
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(peers.table(rows))
    return capture.get()


def test_figures_and_table(run):
    mine = peers.ours(peers.open_run(run))
    rows = [
        mine,
        peer_row("parabel", dict.fromkeys(peers.COLUMNS, 61.23456)),
        peer_row("bonsai", {"P@1": 70}),
    ]
    figures = peers.figures(rows)
    assert figures["ours_P@1"] == 50.0
    assert figures["ours_train_seconds"] == 33.0
    assert figures["ours_predict_seconds"] == 4.0
    assert figures["parabel_PSP@5"] == 61.2346
    assert figures["parabel_train_seconds"] == 3.5
    assert figures["parabel_predict_seconds"] == 0.75
    assert figures["bonsai_P@1"] == 70
    assert "bonsai_P@3" not in figures
    text = shown(rows)
    assert "…" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["ours", *["50.00"] * 7, "33.0", "4.0"] in lines
    assert ["parabel", *["61.23"] * 7, "3.5", "0.8"] in lines
    assert ["bonsai", "70.00", *["–"] * 6, "3.5", "0.8"] in lines
    assert "toy-run · toy · 40 test documents" in text
    assert "quick" not in text


def test_a_phase_without_seconds_is_a_dash(run):
    mine = peers.ours(peers.open_run(run))
    del mine["seconds"]["prepare"]
    assert peers.seconds(mine) == (None, 4.0)
    assert "ours_train_seconds" not in peers.figures([mine])


def test_the_table_says_what_quick_left_out(run):
    limited = peer_row("parabel", {}, training_documents_left_out_by_quick=12000, test_documents=10)
    text = " ".join(shown([peers.ours(peers.open_run(run)), limited]).split())
    assert "--quick left out 12,000, so they score lower than they can; tested on 10" in text


def test_runs_that_cannot_be_compared(run, capsys, tmp_path):
    def message():
        with pytest.raises(SettingsError) as caught:
            peers.open_run(run)
        return str(caught.value)

    path = run / "metrics.json"
    metrics = json.loads(path.read_text())
    write_json(path, metrics | {"documents": 39})
    assert "of 39 documents, but the test split" in message()
    write_json(path, metrics | {"split": "valid"})
    assert "evaluate the run" in message()
    path.write_text("{")
    assert "not valid JSON" in message()
    path.unlink()
    assert "train the run first" in message()
    with pytest.raises(SystemExit) as caught:
        peers.main(["--run", str(run), "--json", str(tmp_path / "out.json")])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "out.json").exists()


def test_training_documents_leave_validation_out_and_spread_evenly(run):
    corpus = Corpus.open(run.parents[1] / "corpora" / "toy")
    texts, labels = peers.documents(corpus, ("train",))
    assert len(texts) == len(labels) == 600
    assert len(peers.documents(corpus, ("train", "valid"))[0]) == 620
    some, some_labels = peers.documents(corpus, ("train",), 4)
    assert some == [texts[0], texts[150], texts[300], texts[450]]
    assert some_labels[2].tolist() == labels[300].tolist()


def test_documents_in_omikujis_format(tmp_path, monkeypatch):
    features = sparse.csr_matrix(np.array([[0.5, 0, 1 / 3], [0, 0, 0], [0, 1, 0], [0, 0, 0]]))
    labels = Ragged.from_rows([[1, 6], [2], [], []])
    for rows in (2, 4096):
        monkeypatch.setattr(peers, "WRITE_ROWS", rows)
        peers.write_documents(tmp_path / "some.txt", features, labels, 7)
        assert (tmp_path / "some.txt").read_text() == "4 3 7\n1,6 0:0.5 2:0.333333\n2\n 1:1\n\n"
    peers.write_documents(tmp_path / "some.txt", features, None, 7)
    assert (tmp_path / "some.txt").read_text() == "4 3 7\n 0:0.5 2:0.333333\n\n 1:1\n\n"


def test_the_command_names_no_place_of_one_machine(tmp_path, monkeypatch):
    root = results_file.ROOT
    words = [
        str(root / "benchmarks" / "some.py"),
        "--data",
        str(root.parent / "shared" / "data"),
        f"--json={tmp_path}/a.json",
    ]
    monkeypatch.setattr(sys, "argv", [*words, str(root / "runs" / "one"), "../left", "--corpus.name=b"])
    expected = "python benchmarks/some.py --data ../shared/data --json=a.json runs/one ../left --corpus.name=b"
    assert results_file.command() == expected


def test_the_results_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(results_file.ROOT / "benchmarks" / "some.py"), "--run", "a b"])
    path = tmp_path / "new" / "some.json"
    results_file.write(path, {"speedup": 2.5, "documents": 3}, [{"name": "é", "seconds": 0.1}])
    content = json.loads(path.read_text(encoding="utf-8"))
    assert list(content) == ["command", "commit", "machine", "date", "figures", "rows"]
    assert content["command"] == "python benchmarks/some.py --run 'a b'"
    assert content["figures"] == {"speedup": 2.5, "documents": 3}
    assert content["rows"] == [{"name": "é", "seconds": 0.1}]
    assert content["machine"]["cores"] >= 1
    assert content["date"].endswith("+00:00")
    for bad in ({"x": float("nan")}, {"x": "3"}, {"x": True}):
        with pytest.raises(ValueError, match="'x'"):
            results_file.write(path, bad, [])
    with pytest.raises(ValueError):
        results_file.write(path, {}, [{"x": float("inf")}])
    assert json.loads(path.read_text(encoding="utf-8")) == content


def test_the_commit_says_when_files_changed(tmp_path, monkeypatch):
    def git(*words):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(results_file, "ROOT", tmp_path)
    monkeypatch.setattr(results_file, "RESULTS", tmp_path / "benchmarks" / "results")
    git("init", "-q")
    assert results_file.commit() is None
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    result, code = tmp_path / "benchmarks" / "results" / "a.json", tmp_path / "code.py"
    result.write_text("1")
    code.write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = results_file.commit()
    assert len(clean) == 40
    result.write_text("2")
    assert results_file.commit() == clean
    code.write_text("2")
    assert results_file.commit() == f"{clean}-changed"


@pytest.mark.slow
def test_omikuji_learns_the_toy_corpus(run, tmp_path, capsys):
    try:
        peers.environment(Console(quiet=True))
    except peers.PeerError as error:
        pytest.skip(f"no environment with omikuji: {error}")
    path = tmp_path / "peers.json"
    peers.main(["--run", str(run), "--with-valid", "--threads", "2", "--json", str(path)])
    content = json.loads(path.read_text())
    figures = content["figures"]
    assert {f"{system}_P@{k}" for system in ("ours", "parabel", "bonsai") for k in (1, 3, 5)} <= set(figures)
    for system in ("parabel", "bonsai"):
        assert figures[f"{system}_P@1"] > 90
        assert figures[f"{system}_P@5"] <= 60  # three true labels
    parabel, bonsai = content["rows"][1:]
    assert parabel["trained_on"] == "train + valid"
    assert parabel["training_documents"] == 620
    assert parabel["hyperparameters"]["cluster_k"] == 2
    assert bonsai["hyperparameters"] == parabel["hyperparameters"] | {
        "cluster_balanced": False,
        "cluster_k": 100,
        "max_depth": 3,
    }
    assert "bonsai" in capsys.readouterr().out
