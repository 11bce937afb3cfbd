"""Run: pytest tests/training/test_workers.py

Two and three real processes with gloo, started once each, do all that is tested here; one process does the same alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from tiny_corpus import FLAT, WIDE, curve_of, experiment, small_network, small_training, train_tree, write_corpus

from axml_ray.core.errors import JobError
from axml_ray.corpus.store import Corpus
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.network_tree import NetworkTree
from axml_ray.network.level_network import TABLE, Beam, LevelNetwork
from axml_ray.network.tree_level import Level
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.training.beam_search import expand_rows
from axml_ray.training.distributed import CPU, DistributedContext
from axml_ray.training.level_files import LEVEL_MANIFEST, MODEL, ROWS, check_rows, save_rows
from axml_ray.training.tree import level_directory

pytestmark = pytest.mark.processes

COUNTS = (2, 3)
LEVELS = {
    "all nodes": FLAT,
    "candidates": WIDE,
    # two nodes and two parents: one of three workers holds none
    "few nodes": Level(1, 2, None),
    "few parents": Level(2, 5, np.array([0, 2, 5])),
}
# The last of 11 batches is of one document, so all workers but the first have none.
DOCUMENTS, BATCH, STEPS = 81, 8, 33


def train_level(level: Level, workers: DistributedContext) -> dict[str, Any]:
    """33 steps with dropout; word vectors are trained, and averaged with the rest from the second epoch."""
    network = small_network(level, 0.3, workers.shard)
    words = network.encoder.embedding.weight.detach().clone()
    records: list[dict] = []
    training = small_training(
        network, DOCUMENTS, keep=2, workers=workers, report=records.append,
        epochs=(3,), batch_size=BATCH, learning_rate=0.003, average_after=(1,), eval_every_steps=6,
    )  # fmt: skip
    training.clip.clip = 0.9  # so that gradients are clipped, by the norm of all workers' gradients
    losses, best = curve_of(training), training.run()
    table = training.parameters[TABLE]
    return {
        "losses": losses,
        "best": best,
        "weights": {name: value.detach() for name, value in network.named_parameters()},
        "moments": {key: training.optimizer.state[table][key] for key in ("step", "first", "second")},
        "mean": training.average.mean,
        "reports": len(records),
        "moved": (network.encoder.embedding.weight != words).any(dim=1),
        "words": np.unique(training.data.tokens.values).tolist(),
    }


def score(network: LevelNetwork, workers: DistributedContext) -> dict[str, Beam]:
    """Untrained, of the validation documents: of fewer and of more nodes than there are, under a ragged beam."""
    tokens, beam = (given := small_training(network).validation).tokens, given.beam
    if beam is not None:
        random = torch.Generator().manual_seed(3)
        nodes = torch.stack([torch.randperm(beam.nodes.shape[1], generator=random)[:4] for _ in range(len(tokens))])
        scores = -torch.rand(nodes.shape, generator=random)
        nodes[::3, 2:], scores[::3, 2:] = -1, -torch.inf
        beam = Beam(nodes, scores)
    return {f"best {n}": expand_rows(network, tokens, beam, n, precision="float32", context=workers) for n in (3, 60)}


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes of all tensors that are handed to torch.distributed."""
    sizes: list[int] = []

    def counting(name: str):
        real = getattr(dist, name)

        def call(*arguments: Any, **named: Any) -> Any:
            for one in (*arguments, *named.values()):
                tensors = one if isinstance(one, list) else [one]
                sizes.extend(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
            return real(*arguments, **named)

        return patch.object(dist, name, call)

    names = [name for name in dist.distributed_c10d.__all__ if name.startswith(COLLECTIVES)]
    patches = [counting(name) for name in names if callable(getattr(dist, name, None))]
    for one in patches:
        one.start()
    try:
        yield sizes
    finally:
        for one in patches:
            one.stop()


COLLECTIVES = "all_", "broadcast", "reduce", "gather", "scatter", "send", "recv", "isend", "irecv"


def traffic(workers: DistributedContext, deep: bool) -> list[int]:
    """Bytes that a step exchanges at a level, and at one of ten times the nodes with the same documents."""
    found = []
    for times in (1, 10):
        first_child = np.arange(17 * times + 1) * 3
        level = Level(2, 51 * times, first_child) if deep else Level(1, 51 * times, None)
        small = small_training(small_network(Level(2, 51, np.arange(18) * 3) if deep else Level(1, 51, None)))
        training = small_training(small_network(level, 0.3, workers.shard, train_embeddings=False), workers=workers)
        training.data, training.validation = small.data, small.validation
        with counted() as sizes:
            training.step(next(training.batches()))
        found.append(sum(sizes))
    return found


def settings_of(home: Path, count: int) -> Experiment:
    # Slow enough that no two nodes score alike: which of them is taken could be another one with other workers.
    settings = experiment(home, epochs=(3,), average_after=(1,), learning_rate=0.005)
    return settings.model_copy(update={"name": f"by-{count}"})


def run_all(rank: int, home: str, count: int) -> None:
    """What one process does; its results are left in a file."""
    torch.set_num_threads(1)
    directory = Path(home)
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{directory}/meet-{count}", rank=rank, world_size=count)
    workers = DistributedContext.current(CPU)
    assert (workers.rank, workers.world_size, workers.is_first) == (rank, count, rank == 0)
    found: dict[str, Any] = {name: train_level(level, workers) for name, level in LEVELS.items()}
    for name, level in LEVELS.items():
        found[f"scores, {name}"] = score(small_network(level, shard=workers.shard), workers)
    for name, size in GATHERED.items():
        rows = torch.arange(size * 3).view(-1, 3) + 100 * rank
        found[f"gather, {name}"] = (workers.gather(rows), workers.gather(rows[:, 0].float()))
    found["sum"] = workers.sum(torch.tensor([1.0 + rank, 10.0], dtype=torch.float64))
    for name, able in CARDS.items():
        with patch("axml_ray.training.distributed.fast_formats", lambda device, able=able: able[rank]):
            found[f"precision, {name}"] = [workers.agree_on_precision(one) for one in ("auto", "float32", "bfloat16")]
    found["from first"] = workers.from_first(torch.tensor([7.0 + rank]))
    if count > 1:
        found["traffic"] = {deep: traffic(workers, deep) for deep in (False, True)}
    if count < 3:
        settings = settings_of(directory, count)
        corpus = Corpus.open(settings.corpus_directory)
        records = train_tree(settings, corpus, workers)
        again = train_tree(settings, corpus, workers, build=False)
        found["tree"] = [record["valid_nDCG@5"] for record in records if "loss" in record]
        found["tree losses"] = [record["loss"] for record in records if "loss" in record]
        found["reports"], found["opened"] = len(records), [record["level"] for record in again if "opened" in record]
    torch.save(found, directory / f"{rank}-of-{count}.pt")
    if count > 1:
        dist.destroy_process_group()


GATHERED = {"rows": 4, "one row": 1}
NEW, OLD = (torch.bfloat16, torch.float16), (torch.float16,)
CARDS = {"all new": [NEW] * 3, "one old": [NEW, OLD, NEW], "one without": [NEW, (), OLD], "CPUs": [NEW[:1]] * 3}
"""The fast formats of each worker's hardware."""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("workers")
    write_corpus(home / "corpora" / "tiny")
    run_all(0, str(home), 1)
    for count in COUNTS:
        torch.multiprocessing.spawn(run_all, (str(home), count), nprocs=count)
    return home


@pytest.fixture(scope="module")
def results(home) -> dict[int, list[dict[str, Any]]]:
    """What each of one, two and three workers found."""
    return {
        count: [torch.load(home / f"{rank}-of-{count}.pt", weights_only=False) for rank in range(count)]
        for count in (1, *COUNTS)
    }


def joined(shards: list[torch.Tensor]) -> torch.Tensor:
    whole = shards[0].new_empty(sum(map(len, shards)), *shards[0].shape[1:])
    for rank, rows in enumerate(shards):
        whole[rank :: len(shards)] = rows
    return whole


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", LEVELS)
class TestWorkersTrainAsOne:
    def test_losses(self, results, name, count):
        (alone,), many = ([one[name] for one in results[n]] for n in (1, count))
        assert len(alone["losses"]) == STEPS
        assert all(one["losses"] == many[0]["losses"] for one in many)
        assert many[0]["losses"] == pytest.approx(alone["losses"], rel=1e-4)

    def test_replicated_parameters_are_equal_to_the_last_bit(self, results, name, count):
        first, *others = (one[name] for one in results[count])
        for other in others:
            assert other["best"] == first["best"]
            for kind in ("weights", "mean"):
                assert other[kind].keys() == first[kind].keys()
                for parameter, value in first[kind].items():
                    if parameter != TABLE:
                        assert torch.equal(value, other[kind][parameter]), (kind, parameter)

    def test_each_holds_its_part_of_the_table(self, results, name, count):
        """Of the weights, of Adam's moments and of the average; put together they are those of one worker."""
        (alone,), many = ([one[name] for one in results[n]] for n in (1, count))
        level = LEVELS[name]
        rows = level.nodes if level.first_child is None else len(level.first_child) - 1
        kinds = {
            "weights": lambda one: one["weights"][TABLE],
            "mean": lambda one: one["mean"][TABLE],
            "first": lambda one: one["moments"]["first"],
            "second": lambda one: one["moments"]["second"],
        }
        for kind, of in kinds.items():
            assert [len(of(one)) for one in many] == [len(range(rank, rows, count)) for rank in range(count)]
            torch.testing.assert_close(joined([of(one) for one in many]), of(alone), rtol=1e-3, atol=1e-4, msg=kind)
        assert {one["moments"]["step"].item() for one in (alone, *many)} == {STEPS}

    def test_other_parameters_are_those_of_one_worker(self, results, name, count):
        alone, first = results[1][0][name], results[count][0][name]
        for parameter, value in alone["weights"].items():
            if parameter != TABLE:
                torch.testing.assert_close(first["weights"][parameter], value, rtol=1e-3, atol=1e-4, msg=parameter)

    def test_word_vectors_are_trained_wherever_their_text_is(self, results, name, count):
        alone, first = results[1][0][name], results[count][0][name]
        assert torch.equal(first["moved"], alone["moved"])
        moved = alone["moved"].nonzero()[:, 0].tolist()
        # the best weights may be those of a scoring before all documents were seen
        assert set(moved) <= set(alone["words"]) and len(moved) > 0.7 * len(alone["words"])

    def test_validation_score(self, results, name, count):
        assert results[count][0][name]["best"] == pytest.approx(results[1][0][name]["best"], rel=1e-3)

    def test_only_the_first_reports(self, results, name, count):
        alone = results[1][0][name]["reports"]
        assert alone > 1  # every scoring, and the epochs
        assert [one[name]["reports"] for one in results[count]] == [alone] + [0] * (count - 1)


@pytest.mark.parametrize("count", COUNTS)
class TestTogether:
    @pytest.mark.parametrize("name", LEVELS)
    def test_score_as_one(self, results, name, count):
        for what, expected in results[1][0][f"scores, {name}"].items():
            for one in results[count]:
                found = one[f"scores, {name}"][what]
                assert torch.equal(found.nodes, expected.nodes), what
                torch.testing.assert_close(found.scores, expected.scores, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("deep", [False, True], ids=["all nodes", "candidates"])
    def test_what_is_exchanged_does_not_grow_with_the_level(self, results, deep, count):
        for one in results[count]:
            small, large = one["traffic"][deep]
            assert small == large > 20 * 16 * 20 * 4  # the encodings are among it

    @pytest.mark.parametrize("name", GATHERED)
    def test_gather(self, results, name, count):
        rows = torch.cat([torch.arange(GATHERED[name] * 3).view(-1, 3) + 100 * rank for rank in range(count)])
        for one in results[count]:
            whole, column = one[f"gather, {name}"]
            assert torch.equal(whole, rows) and whole.dtype == torch.int64
            assert torch.equal(column, rows[:, 0].float()) and column.dtype == torch.float32

    def test_sum(self, results, count):
        for one in results[count]:
            assert one["sum"].tolist() == [count * (count + 1) / 2, 10.0 * count]
            assert one["from first"].tolist() == [7.0]


def test_all_workers_compute_in_one_precision(results):
    for count in COUNTS:
        for found in results[count]:
            agreed = {name: found[f"precision, {name}"][0] for name in CARDS}
            assert agreed == {"all new": "bfloat16", "one old": "float16", "one without": "float32", "CPUs": "bfloat16"}
            assert all(found[f"precision, {name}"][1:] == ["float32", "bfloat16"] for name in CARDS)


def test_one_worker_alone(results):
    (alone,) = results[1]
    assert alone["sum"].tolist() == [1.0, 10.0] and alone["from first"].tolist() == [7.0]
    whole, _ = alone["gather, one row"]
    assert whole.tolist() == [[0, 1, 2]]


class TestTree:
    def test_of_two_workers_is_that_of_one(self, results):
        (alone,), (first, second) = results[1], results[2]
        assert first["tree losses"] == pytest.approx(alone["tree losses"], rel=1e-4)
        assert first["tree"] == pytest.approx(alone["tree"], rel=1e-4)
        assert second["reports"] == 0
        assert first["opened"] == alone["opened"] == [1, 2]

    def test_opens_for_inference_in_one_process(self, home, results):
        found = []
        for count in (1, 2):
            settings = settings_of(home, count)
            corpus = Corpus.open(settings.corpus_directory)
            run = Run(settings, corpus)
            spec = run.spec("network_tree-0")
            for level in (1, 2):
                files = {path.name for path in level_directory(spec.directory, level).iterdir()}
                assert files == {LEVEL_MANIFEST, MODEL, ROWS.format(0)}  # the table is whole, so it is memory-mapped
            assert not spec.is_fitted
            spec.mark_fitted()
            member = run.open_member(spec, None)
            assert isinstance(member, NetworkTree)
            found.append((*member.rank(TextViews(corpus.split("test").tokens), 14), member.networks))
        (labels, scores, networks), (other_labels, other_scores, other_networks) = found
        for network, other in zip(networks, other_networks, strict=True):
            for name, value in network.state_dict().items():
                torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)
        assert np.array_equal(other_labels, labels) and (labels >= 0).any()
        assert np.allclose(other_scores, scores, rtol=1e-3, atol=1e-5)


def write_rows(rank: int, home: str) -> None:
    """One of two workers that write their rows, each to a disk of its own."""
    dist.init_process_group("gloo", init_method=f"file://{home}/meet-rows", rank=rank, world_size=2)
    workers, disk = DistributedContext.current(CPU), Path(home) / f"disk-{rank}"
    disk.mkdir()
    save_rows(disk, {"weight": torch.ones(3, 2)}, workers.shard)
    try:
        check_rows(disk, workers)
    except JobError as error:
        (Path(home) / f"error-{rank}").write_text(str(error))
    dist.destroy_process_group()


@pytest.mark.fault("stale listing: a worker does not see the files of another", "training")
def test_rows_that_rank_0_does_not_see_are_an_error(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(write_rows, (str(tmp_path),), nprocs=2)
    assert [path.name for path in tmp_path.glob("error-*")] == ["error-0"]
    assert ROWS.format(1) in (tmp_path / "error-0").read_text()
