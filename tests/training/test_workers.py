"""Run: pytest tests/training/test_workers.py

Two real processes with gloo, started once, do all that is tested here; one process does the same alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from tiny_corpus import experiment, key_documents, train_tree, write_corpus

from axml_ray.corpus.store import Corpus
from axml_ray.network.attention_xml import AttentionXML, Beam, Level
from axml_ray.settings import NetworkSettings, TrainingSettings
from axml_ray.training.batches import LevelData
from axml_ray.training.level import LevelTraining, Validation
from axml_ray.training.workers import CPU, Workers

LABELS, DOCUMENTS, VALID = 10, 83, 21
LEVELS = {"all nodes": Level(1, LABELS, None), "candidates": Level(2, LABELS, np.array([0, 3, 4, 8, 10]))}


def train_level(level: Level, workers: Workers) -> dict[str, Any]:
    """22 steps, the last of an epoch over 3 documents; embeddings are trained, nothing is dropped."""
    torch.manual_seed(4)
    vectors = torch.randn(LABELS + 12, 12)
    vectors[0] = 0
    sizes = NetworkSettings(hidden=8, fully_connected=(9,), embedding_dropout=0, encoder_dropout=0)
    network = AttentionXML(level, vectors, sizes)
    tokens, positives = key_documents(DOCUMENTS, LABELS)
    valid_tokens, valid_positives = key_documents(VALID, LABELS, seed=9)
    parents = beam = None
    if level.first_child is not None:
        random = np.random.default_rng(2)
        parents = np.stack([random.permutation(4)[:3] for _ in range(DOCUMENTS)])
        beam = Beam(torch.arange(4).expand(VALID, 4), torch.zeros(VALID, 4))
    settings = TrainingSettings(
        epochs=(2,), batch_size=8, learning_rate=0.01, precision="float32", average_after=(1,), score_every=6
    )
    records: list[dict] = []
    training = LevelTraining(
        network,
        LevelData(tokens, positives, parents),
        Validation(valid_tokens, valid_positives, beam),
        settings,
        1,
        workers,
        records.append,
    )
    best = training.run()
    weights = {name: value.detach() for name, value in network.named_parameters()}
    moved = not torch.equal(network.encoder.embedding.weight, vectors)
    return {"losses": training.losses, "best": best, "weights": weights, "reports": len(records), "moved": moved}


def run_all(rank: int, home: str, count: int) -> None:
    """What one process does; its results are left in a file."""
    torch.set_num_threads(1)
    directory = Path(home)
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{directory / 'meet'}", rank=rank, world_size=count)
    workers = Workers.current(CPU)
    assert (workers.rank, workers.count, workers.first) == (rank, count, rank == 0)
    found: dict[str, Any] = {name: train_level(level, workers) for name, level in LEVELS.items()}
    for name, sizes in {"uneven": (1, 4), "empty": (0, 2), "all empty": (0, 0)}.items():
        rows = torch.arange(sizes[rank] * 3).view(-1, 3) + 100 * rank
        found[f"gather, {name}"] = (workers.gather(rows), workers.gather(rows[:, 0].float()))
    found["sum"] = workers.sum(torch.tensor([1.0 + rank, 10.0], dtype=torch.float64))
    settings = experiment(directory, epochs=(2,), average_after=(1,)).model_copy(update={"name": f"by-{count}"})
    corpus = Corpus.open(settings.corpus_directory)
    records = train_tree(settings, corpus, workers)
    again = train_tree(settings, corpus, workers, build=False)
    found["tree"] = [record["valid_nDCG@5"] for record in records if "loss" in record]
    found["tree losses"] = [record["loss"] for record in records if "loss" in record]
    found["reports"], found["opened"] = len(records), [record["level"] for record in again if "opened" in record]
    torch.save(found, directory / f"{rank}-of-{count}.pt")
    if count > 1:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict[str, Any]]:
    home = tmp_path_factory.mktemp("workers")
    write_corpus(home / "corpora" / "tiny")
    torch.multiprocessing.spawn(run_all, (str(home), 2), nprocs=2)
    run_all(0, str(home), 1)
    names = {"alone": "0-of-1", "first": "0-of-2", "second": "1-of-2"}
    return {name: torch.load(home / f"{file}.pt", weights_only=False) for name, file in names.items()}


@pytest.mark.parametrize("name", LEVELS)
class TestTwoWorkersTrainAsOne:
    def test_losses(self, results, name):
        alone, first, second = (results[who][name] for who in ("alone", "first", "second"))
        assert len(alone["losses"]) == 22
        assert first["losses"] == second["losses"]
        assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert alone["moved"]

    def test_workers_stay_together_to_the_last_bit(self, results, name):
        first, second = results["first"][name], results["second"][name]
        assert first["best"] == second["best"]
        for parameter, value in first["weights"].items():
            assert torch.equal(value, second["weights"][parameter]), parameter

    def test_validation_score(self, results, name):
        assert results["first"][name]["best"] == pytest.approx(results["alone"][name]["best"], rel=1e-3)

    def test_only_the_first_reports(self, results, name):
        assert results["first"][name]["reports"] == results["alone"][name]["reports"] == 1
        assert results["second"][name]["reports"] == 0


class TestTogether:
    @pytest.mark.parametrize(("name", "sizes"), [("uneven", (1, 4)), ("empty", (0, 2)), ("all empty", (0, 0))])
    def test_gather(self, results, name, sizes):
        rows = torch.cat([torch.arange(size * 3).view(-1, 3) + 100 * rank for rank, size in enumerate(sizes)])
        for who in ("first", "second"):
            whole, column = results[who][f"gather, {name}"]
            assert torch.equal(whole, rows) and whole.dtype == torch.int64
            assert torch.equal(column, rows[:, 0].float()) and column.dtype == torch.float32

    def test_sum(self, results):
        assert results["first"]["sum"].tolist() == results["second"]["sum"].tolist() == [3.0, 20.0]

    def test_one_worker_alone(self, results):
        assert results["alone"]["sum"].tolist() == [1.0, 10.0]
        whole, _ = results["alone"]["gather, uneven"]
        assert whole.tolist() == [[0, 1, 2]]

    def test_a_tree(self, results):
        alone, first, second = (results[who] for who in ("alone", "first", "second"))
        assert first["tree losses"] == pytest.approx(alone["tree losses"], rel=1e-3)
        assert first["tree"] == pytest.approx(alone["tree"], rel=0.02)
        assert second["reports"] == 0
        assert first["opened"] == alone["opened"] == [1, 2]
