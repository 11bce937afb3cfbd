"""A kind of member from outside, `most_frequent.py`: trained, predicted with, exported, served and explained.

Run: pytest tests/members/test_new_kind.py. Real jobs with real Ray, and a real server; nothing in the house names it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import requests
from ports import free_port

ROOT = Path(__file__).parents[2]
SECONDS = 300
KIND = "most_frequent"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A corpus in which label a is in two texts of three."""
    home = tmp_path_factory.mktemp("plugin")
    rows = [
        {"text": f"word{i % 7} word{i % 3} number{i}", "labels": ["a"] if i % 3 else [f"b{i % 4}"]} for i in range(120)
    ]
    (home / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "members")])
    return {**kept, "HOME": str(home), "AXML_RAY_HOME": str(home), "AXML_RAY_PLUGINS": KIND, "PYTHONPATH": paths}


@pytest.fixture(scope="module")
def bundle(home: Path, environment: dict[str, str]) -> Path:
    """A run that was trained, exported and predicted with, by one process with one cluster."""
    train: list[object] = [
        "train", "--name", "plugin", "--corpus.name", "plugin", "--corpus.train", home / "texts.jsonl",
        "--corpus.word_vectors", "random", "--tree.height", 0, "--ensemble.trees", 1,
        "--members.network_tree.weight", 0, "--members.knn.weight", 0.25, f"--members.{KIND}.weight", 0.75,
        f"--members.{KIND}.power", 2,
    ]  # fmt: skip
    export = ["export", "--run", home / "runs" / "plugin", "--to", home / "bundle"]
    predict = [
        "predict",
        "--bundle",
        home / "bundle",
        "--input",
        home / "texts.jsonl",
        "--output",
        home / "predictions",
    ]
    commands = [[str(word) for word in words] for words in (train, export, predict)]
    program = f"from axml_ray.cli.dispatch import main\nfor words in {commands}:\n    main(words)"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True,
                          timeout=SECONDS)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return home / "bundle"


@pytest.mark.slow
def test_it_is_trained_and_evaluated(bundle: Path, home: Path) -> None:
    metrics = json.loads((home / "runs" / "plugin" / "metrics.json").read_text())
    assert set(metrics["members"]) == {KIND, "knn"} and metrics["members"][KIND]["P@1"] > 30
    shares = json.loads((home / "runs" / "plugin" / "members" / KIND / "shares.json").read_text())
    assert shares[0] == max(shares) and 0.3 < shares[0] ** 0.5 < 0.9


@pytest.mark.slow
def test_it_predicts_from_its_bundle(bundle: Path, home: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert {member["kind"]: member["weight"] for member in manifest["members"]} == {KIND: 0.75, "knn": 0.25}
    [file] = (home / "predictions").glob("*.parquet")
    assert all(row[0] == "a" for row in pq.read_table(file)["labels"].to_pylist())


@pytest.mark.slow
def test_a_program_that_does_not_know_it_refuses_the_bundle(bundle: Path, environment: dict[str, str]) -> None:
    stranger = {name: value for name, value in environment.items() if name != "AXML_RAY_PLUGINS"}
    program = f"from axml_ray import Tagger; Tagger.load({str(bundle)!r})"
    done = subprocess.run([sys.executable, "-c", program], env=stranger, capture_output=True, text=True, timeout=180)
    assert done.returncode == 1 and "BundleError" in done.stderr and repr(KIND) in done.stderr


@pytest.mark.processes
def test_a_module_that_is_missing_is_named(environment: dict[str, str]) -> None:
    program = "from axml_ray.settings.members import kinds; kinds()"
    wrong = {**environment, "AXML_RAY_PLUGINS": "no_such_module"}
    done = subprocess.run([sys.executable, "-c", program], env=wrong, capture_output=True, text=True, timeout=180)
    assert "SettingsError: AXML_RAY_PLUGINS: no_such_module " in done.stderr


@pytest.mark.slow
def test_it_is_served_and_explained(bundle: Path, environment: dict[str, str]) -> None:
    port = free_port()
    flags = [f"--bundle={bundle}", f"--port={port}", "--cpus=0.1"]
    server = subprocess.Popen([sys.executable, "-m", "serve_app", *flags], env=environment, cwd=ROOT)
    try:
        end = time.monotonic() + SECONDS
        while True:
            assert server.poll() is None and time.monotonic() < end
            try:
                if requests.get(f"http://127.0.0.1:{port}/readyz", timeout=5).ok:
                    break
            except requests.RequestException:
                time.sleep(0.5)
        body = {"text": "word1 word2", "explain": True, "top_k": 1}
        answer = requests.post(f"http://127.0.0.1:{port}/v1/tag", json=body, timeout=60).json()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=180)
    assert answer["members"] == answer["members_used"] == 2
    [label] = answer["results"][0]["labels"]
    why = label["explanation"]
    parts = {each["member"]: each for each in why["contributions"]}
    assert label["label"] == "a" and set(parts) == {"most frequent", "knn"}
    assert parts["most frequent"]["share"] == pytest.approx(0.75)
    assert sum(each["points"] for each in parts.values()) == pytest.approx(label["score"], rel=1e-4)
    [path] = why["paths"]
    assert path["member"] == "most frequent" and [word["weight"] for word in why["words"]] == [1, 0]
