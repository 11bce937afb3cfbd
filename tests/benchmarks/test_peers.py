"""The comparison with other systems, and the file that benchmarks write.

python -m pytest tests/benchmarks/test_peers.py
"""

import json
import subprocess
import sys
from dataclasses import replace

import environments
import numpy as np
import peers
import peers_tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import results_file
import yaml
from label_indexes import encode, index_of
from rich.console import Console
from scipy import sparse

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import write_json
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import FORMAT, VERSION, Corpus

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
    index = index_of(counts)
    assert index.trained == LABELS
    for split, rows in drawn.items():
        texts = [" ".join(f"Word{n}, filler" for n in row) for row in rows]
        if split == "train":
            texts[0] = "unique"  # no word of it is known, which leaves a line without features
        (corpus / split).mkdir(parents=True)
        columns = {
            "id": [f"{split}-{i}" for i in range(len(rows))],
            "tokens": pa.array([[2]] * len(rows), pa.list_(pa.int32())),
            "labels": encode(index, [[f"label{n}" for n in row] for row in rows]).to_arrow(),
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
        "ensemble": dict.fromkeys(peers_tables.COLUMNS, 50.0),
        "members": {"network_tree-0": {}, "network_tree-1": {}, "network_tree-2": {}},
        "seconds": {
            "prepare": 1.0,
            "cluster": 2.0,
            "network_tree": 30.0,
            "linear_tree": 5.0,
            "combiner": 0.5,
            "predict": 4.0,
        },
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
        "peak_gib": 0.5,
        "model_bytes": 3 << 20,
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
        console.print(peers.costs_table(rows))
    return capture.get()


def test_figures_and_table(run):
    mine = peers.ours(peers.open_run(run))
    rows = [
        mine,
        peer_row("parabel", dict.fromkeys(peers_tables.COLUMNS, 61.23456)),
        peer_row("bonsai", {"P@1": 70}),
    ]
    figures = peers.figures(rows)
    assert figures["ours_P@1"] == 50.0
    assert figures["ours_train_seconds"] == 38.5
    assert figures["ours_predict_seconds"] == 4.0
    assert figures["parabel_PSP@5"] == 61.2346
    assert figures["parabel_train_seconds"] == 3.5
    assert figures["parabel_predict_seconds"] == 0.75
    assert figures["parabel_peak_gib"] == 0.5 and figures["parabel_model_mib"] == 3
    assert figures["parabel_R@10"] == 61.2346
    assert figures["bonsai_P@1"] == 70
    assert "bonsai_P@3" not in figures
    text = shown(rows)
    assert "…" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["ours", *["50.00"] * 9] in lines and ["ours", "3", "38.5", "4.0", "–", "–"] in lines
    assert ["parabel", *["61.23"] * 9] in lines and ["parabel", "3", "3.5", "0.8", "0.5", "3.0"] in lines
    assert ["bonsai", "70.00", *["–"] * 8] in lines
    assert "toy-run · toy · 40 test documents" in text
    assert "quick" not in text


def test_what_a_run_holds_on_disk_and_held_in_memory(run):
    level = "tree-0/network_tree/level-1"
    sizes = {"tree-0/tree.json": 3, f"{level}/model.safetensors": 50, "tree-1/network_tree/level-1/rows-0": 40}
    others = {f"{level}.scored/scores.npy": 1000, "tree-0/tensorboard/level-1/events": 1000, "metrics2.json": 9}
    for name, size in {**sizes, **others}.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b"x" * size)
    for tree, memory in ((0, 1.5), (1, 2.25)):
        records = [{"memory_gib": 1.0}, {"memory_gib": memory}, {"scored": 9}]
        (run / f"tree-{tree}" / "training.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    row = peers.ours(peers.open_run(run))
    assert (row["model_bytes"], row["peak_gib"]) == (93, 2.25)
    assert (row["members"], row["combiner"], row["trees"]) == (["network_tree"], "mean", 3)


def test_all_members_of_a_run_count(run):
    kinds = ["network_tree", "linear_tree", "knn", "label_names"]
    experiment = yaml.safe_load((run / "settings.yaml").read_text())
    experiment |= {"members": {kind: {"weight": 0.25} for kind in kinds}, "ensemble": {"combiner": "calibrated"}}
    (run / "settings.yaml").write_text(yaml.safe_dump(experiment))
    files = [
        "members/features",
        "members/knn/texts",
        "members/label_names/names",
        "tree-0/linear_tree/linear",
        "combiner/a",
    ]
    for size, name in enumerate(files, start=1):
        path = run / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10**size)
    row = peers.ours(peers.open_run(run))
    assert row["model_bytes"] == 111_110
    assert (row["members"], row["combiner"]) == (kinds, "calibrated")


def test_a_system_that_cannot_be_installed_gets_a_row_that_says_so(run, monkeypatch):
    def refuse(console, name, *_):
        raise environments.PeerError(f"pip could not install {name} (exit status 1):\nno wheel for this Python")

    monkeypatch.setattr(peers, "environment", refuse)
    mine, row = peers.compare(run, systems=["napkinxc"])
    assert row["failed"].endswith("no wheel for this Python") and mine["system"] == "ours"
    assert not [name for name in peers.figures([mine, row]) if name.startswith("napkinxc")]
    text = shown([mine, row])
    assert "napkinxc can't be installed here: no wheel for this Python" in " ".join(text.split())
    assert ["napkinxc", "1", *["–"] * 4] in [line.split() for line in text.splitlines()]


def test_a_phase_without_seconds_is_a_dash(run):
    mine = peers.ours(peers.open_run(run))
    del mine["seconds"]["prepare"]
    assert peers_tables.seconds(mine) == (None, 4.0)
    assert "ours_train_seconds" not in peers.figures([mine])
    mine["seconds"] = {"prepare": 1.0, "cluster": 2.0}
    assert peers_tables.seconds(mine) == (None, None)


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


@pytest.mark.processes
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


@pytest.mark.processes
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
@pytest.mark.parametrize("program", peers.PROGRAMS)
def test_peers_learn_the_toy_corpus(run, tmp_path, capsys, monkeypatch, program):
    own = peers.PEERS["extremetext"]
    slower = replace(own, hyperparameters={**own.hyperparameters, "lr": 0.1})  # 0.5 diverges on texts of three words
    monkeypatch.setitem(peers.PEERS, "extremetext", slower)
    if peers.PROGRAMS[program].built and not (environments.ENVIRONMENTS / program).exists():
        pytest.skip(f"building {program} takes a minute; python benchmarks/peers.py --systems {program} does it")
    try:
        environments.environment(Console(quiet=True), program, peers.PROGRAMS[program])
    except environments.PeerError as error:
        pytest.skip(f"no environment with {program}: {error}")
    systems = [name for name, peer in peers.PEERS.items() if peer.program == program]
    path = tmp_path / "peers.json"
    given = ["--run", str(run), "--with-valid", "--threads", "2", "--json", str(path), "--systems", *systems]
    peers.main(given)
    content = json.loads(path.read_text())
    figures = content["figures"]
    assert {f"{system}_P@{k}" for system in ("ours", *systems) for k in (1, 3, 5)} <= set(figures)
    for system, row in zip(systems, content["rows"][1:], strict=True):
        assert figures[f"{system}_P@1"] > 90
        assert figures[f"{system}_P@5"] <= 60  # three true labels
        assert figures[f"{system}_model_mib"] > 0.01 and 0.01 < figures[f"{system}_peak_gib"] < 4
        assert row["trained_on"] == "train + valid" and row["training_documents"] == 620
        assert row["program"].startswith(f"{program} ") and row["hyperparameters"]
    assert systems[-1] in capsys.readouterr().out
    if program == "omikuji":
        parabel, bonsai = (row["hyperparameters"] for row in content["rows"][1:])
        assert parabel["cluster_k"] == 2
        assert bonsai == parabel | {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3}
