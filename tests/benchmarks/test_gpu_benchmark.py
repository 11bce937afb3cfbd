"""Run: pytest tests/benchmarks/test_gpu_benchmark.py

The GPU's benchmark with small shapes on a CPU: every part works, and the GPU's code computes what the CPU's does.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

from gpu import main
from gpu_corpus import write_compact
from gpu_workers import compare_workers
from results_file import Result
from timed_parts import measure_within
from tiny_corpus import write_corpus

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged, is_ragged
from axml_ray.corpus.text.tokenizer import UNKNOWN
from axml_ray.members.network_tree import NetworkTree
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.cpu_backend import CpuBackend

pytestmark = pytest.mark.processes  # git, for the commit in the results


@pytest.fixture(autouse=True)
def _threads_again():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def results(tmp_path: Path, *flags: str) -> dict:
    path = tmp_path / "gpu.json"
    main(["--device", "cpu", "--quick", "--json", str(path), *flags])
    assert isinstance(backend_for(torch.device("cpu")), CpuBackend)
    return json.loads(path.read_text())


def test_parity(tmp_path):
    found = results(tmp_path, "--only", "parity")
    assert 0 < found["figures"]["parity_float32"] <= 1e-4 and 1e-4 < found["figures"]["parity_bfloat16"] <= 0.1
    assert max(row["logits"] for row in found["rows"]) <= 0.01
    for row in found["rows"]:
        assert row["loss"] < 1e-3 and max(value for value in row.values() if isinstance(value, float)) < 0.1


def test_steps(tmp_path):
    figures = results(tmp_path, "--only", "steps")["figures"]
    assert figures.keys() == {"level1_ms", "deep_ms", "deep_short_ms", "share_of_floor"}
    assert all(value > 0 for value in figures.values())


def test_recipes(tmp_path):
    found = results(tmp_path, "--only", "recipes")
    assert found["figures"].keys() == {"amazon670k_hours", "amazon3m_hours"}
    assert [row["nodes"] for row in found["rows"]][-1] == 2_812_281 and len(found["rows"]) == 8


def test_a_whole_corpus_from_a_compact_copy(tmp_path):
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    copy = write_compact(corpus, tmp_path / "compact" / "tiny", 5, 1_000)
    found = results(tmp_path, "--only", "corpus", "--corpus", str(copy.directory))
    assert found["figures"]["corpus_seconds"] > 0 and 0 <= found["figures"]["tiny_P@1"] <= 100
    *levels, scores = found["rows"]
    assert levels and all(row["documents_per_second"] > 0 and 0 <= row["valid_nDCG@5"] <= 100 for row in levels)
    assert scores["documents"] == corpus.documents("test") and scores["fingerprint"] == copy.fingerprint


def test_a_compact_copy(tmp_path):
    corpus = write_corpus(tmp_path / "tiny")
    vocabulary = len(corpus.tokenizer) // 2
    copy = write_compact(corpus, tmp_path / "compact", 5, vocabulary)
    assert copy.fingerprint != corpus.fingerprint
    assert set(copy.table("train", None).column_names) == {"tokens", "labels"}
    for name in ("train", "valid", "test"):
        expected, found = corpus.split(name), copy.split(name)
        assert found.tokens.lengths.max() == 5
        cut = expected.tokens.cut(5)
        tokens = Ragged(np.where(cut.values < vocabulary, cut.values, UNKNOWN), cut.offsets)
        for rows, of_copy in ((tokens, found.tokens), (expected.labels, found.labels)):
            assert is_ragged(of_copy)
            assert np.array_equal(of_copy.values, rows.values) and np.array_equal(of_copy.offsets, rows.offsets)
    vectors = copy.word_vectors()
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, corpus.word_vectors()[:vocabulary].astype(np.float16))
    assert copy.tokenizer.words == corpus.tokenizer.words and copy.labels.names == corpus.labels.names
    assert (copy.label_features() != corpus.label_features()).nnz == 0
    sizes = [sum(of.manifest["files"].values()) for of in (copy, corpus)]
    assert sizes[0] < sizes[1]


def test_an_error_in_training_ends_the_part(tmp_path, monkeypatch):
    write_corpus(tmp_path / "tiny")
    monkeypatch.setattr(NetworkTree, "fit", lambda spec, inputs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        results(tmp_path, "--only", "corpus", "--corpus", str(tmp_path / "tiny"))
    assert json.loads((tmp_path / "gpu.json").read_text())["figures"].keys() == {"corpus_tree_seconds"}


def test_predict(tmp_path):
    found = results(tmp_path, "--only", "predict")
    assert len(found["figures"]) == 9 and all(row["documents_per_second"] > 0 for row in found["rows"])
    assert [row["trees"] for row in found["rows"]] == [1] * 6 + [3] * 2
    assert found["figures"]["predict_docs_per_second"] == found["rows"][-1]["documents_per_second"]


def test_resume(tmp_path):
    found = results(tmp_path, "--only", "resume")
    assert found["figures"] == {"resume_differing_tensors": 0, "repeat_differing_tensors": 0}
    (row,) = found["rows"]
    assert (row["killed_at"], row["resumed_from"], row["steps"]) == (17, 15, 24) and row["tensors"] > 20


def test_two_workers_equal_one():
    """Their tensors go through main memory, as on a GPU whose tensors gloo refuses."""
    (*_, (figures, _)) = compare_workers(torch.device("cpu"), quick=True, staged=True)
    assert figures["gloo_float32_loss_error"] <= 1e-5 and figures["gloo_bfloat16_loss_error"] <= 1e-2


def test_without_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SettingsError, match="cuda"):
        main(["--quick", "--json", str(tmp_path / "gpu.json")])
    for part in ("sync", "kernel"):
        with pytest.raises(SettingsError, match="nothing was measured"):
            results(tmp_path, "--only", part)


class TestTimedParts:
    """Of a benchmark: what is measured is written at once, whatever ends the run."""

    def test_a_part_that_takes_too_long(self, tmp_path):
        def slow() -> Iterator[Result]:
            yield {"slow": 2.0}, [{"step": 1}]
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # the limit comes forward, so that the test is fast
            time.sleep(60)

        def quick() -> Iterator[Result]:
            yield {"quick": 1.0}, [{"step": 1}]

        path, began = tmp_path / "parts.json", time.monotonic()
        parts = {"quick": quick, "slow": slow, "late": quick}
        rows = measure_within(parts, 5.0, path, threads=1)
        assert time.monotonic() - began < 30
        written = json.loads(path.read_text())
        assert written["figures"] == {"quick": 1.0, "slow": 2.0}
        assert written["rows"] == rows
        assert [(row["part"], "skipped" in row) for row in rows] == [
            ("quick", False), ("slow", False), ("slow", True), ("late", True),
        ]  # fmt: skip

    def test_a_part_that_is_interrupted(self, tmp_path):
        def interrupted() -> Iterator[Result]:
            yield {"first": 1.0}, [{"step": 1}]
            raise KeyboardInterrupt

        path, handler = tmp_path / "parts.json", signal.getsignal(signal.SIGALRM)
        with pytest.raises(KeyboardInterrupt):
            measure_within({"one": interrupted}, 1.0, path, threads=1)
        assert json.loads(path.read_text())["figures"] == {"first": 1.0}
        assert signal.getsignal(signal.SIGALRM) == handler and signal.getitimer(signal.ITIMER_REAL) == (0, 0)

    @pytest.mark.parametrize("minutes", ["0", "-1", "x", "nan"])
    def test_a_wrong_limit(self, minutes, capsys):
        with pytest.raises(SystemExit):
            main(["--minutes", minutes])
        assert "--minutes" in capsys.readouterr().err
