"""The plan, held against the networks, the optimizer and the memory of real training."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import sparse
from torch.profiler import ProfilerActivity, profile

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.counts import Counts, count_corpus
from axml_ray.corpus.store import Split
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.sharding import Shard
from axml_ray.planning import memory, work
from axml_ray.planning.estimate import make_plan
from axml_ray.planning.machines import ASSUMED_GPU_GIB, Machines, choose_machines
from axml_ray.planning.phases import label_terms
from axml_ray.planning.report import duration, notes, render, warnings
from axml_ray.planning.shapes import LevelShape, level_shapes
from axml_ray.planning.work import training_rates
from axml_ray.settings import Experiment, TreeSettings, changed
from axml_ray.settings.configuration import load
from axml_ray.training.batches import LevelData, TrueNodes, make_batch, shuffle_batches
from axml_ray.training.level import LevelTraining
from axml_ray.tree.label_tree import LabelTree

ROOT = Path(__file__).parents[2]


def experiment(**groups: dict[str, Any]) -> Experiment:
    """A small one; groups override it."""
    base: dict[str, dict[str, Any]] = {
        "corpus": {"source": "installed_packages", "max_tokens": 40},
        "tree": {"height": 1, "cluster_size": 8, "beam": 6},
        "network": {"hidden": 16, "fully_connected": [16, 8]},
        "training": {"batch_size": 8, "precision": "float32"},
    }
    names = base.keys() | groups.keys()
    return load(**{name: {**base.get(name, {}), **groups.get(name, {})} for name in names})


def counts(**changes: Any) -> Counts:
    given = {"documents": 60, "valid_documents": 9, "labels": 300, "words": 70, "word_dimension": 12, "tokens": 40.0}
    return Counts(**{**given, "longest": 40, "source": "a test", **changes})


def gpus(units: int, gib: float) -> Machines:
    return Machines(
        accelerator=True, units=units, unit_share=1, memory=gib, memory_source="a test", shared=False, width=2
    )


def amazon3m(**groups: dict[str, Any]) -> tuple[Experiment, Counts]:
    settings = load(ROOT / "configs/amazon3m.yaml", corpora="/none", **groups)
    return settings, count_corpus(settings)


# Shapes


@pytest.mark.parametrize(
    ("labels", "height", "cluster_size", "sizes"),
    [
        (670_091, 3, 8, (2_048, 16_384, 131_072, 670_091)),
        (501_008, 1, 64, (8_192, 501_008)),
        (2_812_281, 3, 8, (8_192, 65_536, 524_288, 2_812_281)),
        (3_956, 0, 8, (3_956,)),
    ],
)
def test_level_sizes_are_the_papers(labels: int, height: int, cluster_size: int, sizes: tuple[int, ...]) -> None:
    tree = TreeSettings(height=height, cluster_size=cluster_size)
    assert tuple(shape.nodes for shape in level_shapes(labels, tree)) == sizes


@pytest.mark.parametrize(("labels", "height"), [(5, 0), (7, 1), (100, 1), (300, 2), (513, 2), (90, 4)])
def test_shapes_are_those_of_a_tree_that_is_built(labels: int, height: int) -> None:
    features = sparse.random_array((labels, 50), density=0.2, rng=np.random.default_rng(labels), format="csr")
    tree = LabelTree.build(features.astype(np.float32), height=height, cluster_size=8, seed=0)
    shapes = level_shapes(labels, TreeSettings(height=height, cluster_size=8, beam=6))
    assert tuple(shape.nodes for shape in shapes) == tree.level_sizes
    for shape in shapes[1:]:
        assert shape.block == tree.max_children(shape.number - 1)
        assert shape.rows == tree.level_sizes[shape.number - 2]


# Memory


def trained(
    settings: Experiment, of: Counts, shape: LevelShape, workers: int = 1
) -> tuple[LevelTraining, LevelData, np.ndarray]:
    """A level's training, and the rows of a batch of its longest documents. The shard is the first of `workers`."""
    random = np.random.default_rng(0)
    several, tokens = 3 * settings.training.batch_size, of.longest
    offsets = np.arange(several + 1, dtype=np.int64)
    texts = Ragged(random.integers(1, of.words, several * tokens, dtype=np.int32), offsets * tokens)
    true = Ragged(np.arange(several, dtype=np.int32) % shape.nodes, offsets)
    parents = None
    if shape.parents is not None:
        parents = np.stack([random.permutation(shape.rows)[: shape.parents] for _ in range(several)])
    vectors = torch.randn(of.words, of.word_dimension)
    network = FusedAttentionXML(shape.level(), vectors, settings.network, Shard(0, workers))
    data = LevelData(texts, true, parents)
    beam = None
    validation = LevelData(texts.take(np.arange(4)), true.take(np.arange(4)), beam=beam)
    return (
        LevelTraining(network, data, validation, settings.training, 0),
        data,
        np.arange(settings.training.batch_size),
    )


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"network": {"evidence": True, "fully_connected": [24]}},
        {"network": {"train_embeddings": False}},
        {"training": {"epochs": [2], "average_after": [2]}},
        {"tree": {"height": 0}},
    ],
)
def test_what_is_held_is_what_training_holds(change: dict[str, Any], workers: int) -> None:
    settings, of = experiment(**change), counts()
    for shape in level_shapes(of.labels, settings.tree):
        training, data, rows = trained(settings, of, shape, workers)
        shard = Shard(0, workers)
        training.average_after = 0
        training.step(make_batch(data, training.network.level, rows, shard))
        if settings.training.averages_at(shape.number):
            training.average.add(training.network)
        training._keep_best()
        planned = memory.level_memory(settings, of, shape, workers=workers, accelerator=False, width=4)

        def size(tensors: Any) -> int:
            return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

        network, table = training.network, training.network.attention.weight
        assert planned.label_table == size([table])
        weights = size(network.parameters())
        assert planned.label_table + planned.word_table + planned.network == weights
        states = [training.optimizer.state[parameter] for parameter in training.parameters.values()]
        assert planned.moments == size(state[part] for state in states for part in ("first", "second"))
        assert planned.average == size(training.average.mean.values())
        assert planned.best == size(training.best.values())


@pytest.mark.parametrize(("precision", "width"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize(("height", "batch", "hidden"), [(0, 16, 64), (1, 16, 64), (1, 96, 48)])
def test_a_steps_memory_is_bounded_and_not_by_much(
    precision: str, width: int, height: int, batch: int, hidden: int
) -> None:
    settings = experiment(
        tree={"height": height, "cluster_size": 16, "beam": 20},
        network={"hidden": hidden, "fully_connected": [64, 32]},
        training={"batch_size": batch, "precision": precision},
    )
    of = counts(labels=4_000, words=3_000, word_dimension=50, longest=96)
    shape = level_shapes(of.labels, settings.tree)[-1]
    training, data, rows = trained(settings, of, shape)
    one = make_batch(data, training.network.level, rows)
    training.step(one)  # makes the moments
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        training.step(one)
    assert seen.profiler is not None
    found = seen.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]")
    peak = np.cumsum([change for _, change in changes]).max()
    planned = memory.level_memory(settings, of, shape, workers=1, accelerator=False, width=width)
    assert 1 <= (planned.gradients + planned.activations) / peak < 1.5


def test_memory_falls_with_workers() -> None:
    settings, of = amazon3m()
    plans = [
        make_plan(load(ROOT / "configs/amazon3m.yaml", corpora="/none", resources={"workers": w}), of, gpus(64, 1e6))
        for w in (1, 2, 4, 8, 16)
    ]
    for level in range(4):
        totals = [plan.levels[level].memory.total for plan in plans]
        assert totals == sorted(totals, reverse=True)
    deepest = [plan.levels[3].memory for plan in plans]
    assert deepest[1].label_table == deepest[0].label_table / 2
    # 2.8 million labels of 1,024 float32, and what blocks of six leave unused
    assert 2_812_281 * 4_096 < deepest[0].label_table < 1.15 * 2_812_281 * 4_096
    assert settings.resources.workers == 8


def test_a_document_takes_its_rows_and_orders_and_not_its_words() -> None:
    """Each worker maps the words and labels of the split, of which part and cut texts are views."""
    documents = 100_000
    split = Split(
        Ragged(np.zeros(4 * documents, np.int32), 4 * np.arange(documents + 1)),
        Ragged(np.zeros(documents, np.int32), np.arange(documents + 1)),
    )
    tree = LabelTree.from_cuts(np.arange(9), [])
    tracemalloc.start()
    try:
        train = split.part(documents - 1).cut(3)
        data = LevelData(train.tokens, TrueNodes(tree, 1, train.labels))
        assert data.positives.lengths.sum() == documents - 1
        batches = shuffle_batches(data.tokens.lengths, 100, seed=0, epoch=0)
        assert len(batches) == documents // 100
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    words, longer = (memory.corpus_bytes(counts(documents=documents, tokens=tokens)) for tokens in (4.0, 400.0))
    assert words == longer
    assert 0.9 * peak < words < 1.2 * peak


# What does not fit


@pytest.mark.parametrize(
    ("gib", "change", "settings_named"),
    [
        (24.0, {"resources": {"workers": 1}}, ("resources.workers", "network.hidden")),
        (6.0, {"resources": {"workers": 64}, "training": {"batch_size": 2_000}}, ("training.batch_size",)),
    ],
)
def test_a_warning_names_the_level_its_need_and_the_settings_to_change(
    gib: float, change: dict[str, Any], settings_named: tuple[str, ...]
) -> None:
    settings, of = amazon3m(**change)
    plan = make_plan(settings, of, gpus(64, gib))
    largest = max(plan.levels, key=lambda level: level.memory.total)
    assert largest.shape.number in plan.too_large
    (said,) = warnings(plan)
    assert said.startswith(f"WARNING: level {largest.shape.number} needs {largest.memory.total / memory.GIB:,.1f} GiB ")
    assert f" {0.9 * gib:.1f} of " in said
    assert all(name in said for name in settings_named)


def test_too_few_gpus_are_named() -> None:
    settings, of = amazon3m()
    plan = make_plan(settings, of, gpus(4, 80))
    (said,) = warnings(plan)
    assert plan.side_by_side == 0 and plan.seconds is None
    assert said.startswith("WARNING: ") and " 8 GPUs " in said and " 4; " in said
    assert warnings(make_plan(settings, of, gpus(8, 80))) == ["Every level fits."]


# Work


def test_operations_are_counted_by_hand() -> None:
    settings = experiment(network={"hidden": 2, "fully_connected": [3, 5]})
    # a token: 2 LSTMs × 4 gates × 2 units × (7 + 2) inputs, 4 states × 3 units folded; a candidate and token: 4 + 3;
    # a candidate: 3 × 5 + 5. A multiplication and an addition each.
    expected = 2 * (10 * (2 * 4 * 2 * 9 + 4 * 3 + 11 * (4 + 3)) + 11 * 20)
    assert work.forward_operations(settings.network, 7, 10, 11) == expected


def test_work_of_a_level() -> None:
    settings = experiment(training={"epochs": [4, 2], "eval_every_steps": 5})
    of = counts()
    first, last = level_shapes(of.labels, settings.tree)
    one, two = work.level_work(settings, of, first, last=False), work.level_work(settings, of, last, last=True)
    assert work.count_steps(settings, of, 1) == 4 * 8
    assert one.training == 3 * 4 * of.documents * one.document
    assert one.validation == 7 * of.valid_documents * one.document
    assert one.scoring == (of.documents + of.valid_documents) * one.document
    assert two.training == 3 * 2 * of.documents * two.document
    assert two.scoring == 0


def test_time_follows_rate_and_trees() -> None:
    settings, of = amazon3m()
    rates = (5e13,) * 4
    one_by_one = make_plan(settings, of, gpus(8, 80), rates, "a test")
    together = make_plan(settings, of, gpus(24, 80), rates, "a test")
    assert one_by_one.side_by_side == 1
    assert together.side_by_side == 3
    assert together.seconds == pytest.approx(one_by_one.seconds / 3)
    alone = make_plan(amazon3m(resources={"workers": 1})[0], of, gpus(8, 80), rates, "a test")
    for level in alone.levels:
        assert level.seconds == level.work.total / 5e13
    assert make_plan(settings, of, gpus(8, 80)).seconds is None
    assert any("--rate TFLOPS" in note for note in notes(make_plan(settings, of, gpus(8, 80))))


def test_only_the_papers_network_is_planned() -> None:
    settings = experiment(network={"kind": "bilstm"})
    with pytest.raises(SettingsError, match=r"^network.kind: bilstm "):
        work.training_rates(settings, counts(), gpus(1, 80), 50.0)


@pytest.mark.parametrize("documents", [200, 20, 3])
def test_a_measured_document_touches_as_many_new_rows_as_in_a_whole_step(documents: int) -> None:
    settings = experiment(training={"batch_size": 200})
    shape = LevelShape(number=3, nodes=65_536 * 8, rows=65_536, block=8, parents=160)
    small = work.measured_shape(settings, shape, documents, 1 << 40)
    assert (small == shape) == (documents == 200)
    whole = memory.distinct_rows(200 * 160, shape.rows) / 200
    assert memory.distinct_rows(documents * 160, small.rows) / documents == pytest.approx(whole, rel=0.02)


def test_a_measured_table_is_bounded_by_memory_and_holds_all_parents_of_a_document() -> None:
    settings = experiment(training={"batch_size": 200})
    shape = LevelShape(number=3, nodes=65_536 * 8, rows=65_536, block=8, parents=160)
    row = work.TABLES * 4 * 8 * 32
    assert work.measured_shape(settings, shape, 200, 1_000 * row).rows == 1_000
    assert work.measured_shape(settings, shape, 200, row).rows == 160
    flat = LevelShape(number=1, nodes=5_000, rows=5_000, block=1, parents=None)
    assert work.measured_shape(settings, flat, 2, row) == flat


def test_a_rate_is_measured_by_real_steps() -> None:
    settings, of = experiment(), counts()
    for shape in level_shapes(of.labels, settings.tree):
        assert 1e6 < work.measured_rate(settings, of, shape, torch.device("cpu"), 0.05) < 1e14


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "–"), (59, "59 seconds"), (150, "2.5 minutes"), (9e5, "10.4 days")]
)
def test_durations(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


# Counts


def test_counts_of_a_prepared_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests/training"))
    import tiny_corpus

    corpus = tiny_corpus.write_corpus(tmp_path / "corpora" / "tiny")
    settings = load(
        corpora=str(tmp_path / "corpora"),
        corpus={"name": "tiny", "source": "installed_packages", "expected": {"documents": 5, "labels": 5, "tokens": 5}},
    )
    found = count_corpus(settings)
    lengths = corpus.split("train").tokens.lengths
    assert found.documents == tiny_corpus.DOCUMENTS["train"]
    assert found.valid_documents == tiny_corpus.DOCUMENTS["valid"]
    assert found.labels == tiny_corpus.LABELS
    assert found.words == len(corpus.tokenizer)
    assert found.word_dimension == tiny_corpus.DIMENSION
    assert found.tokens == pytest.approx(lengths.mean())
    assert found.longest == lengths.max()
    # Networks read fewer words than members that count features.
    cut = count_corpus(changed(settings, "network.max_tokens", 2))
    assert cut.tokens == found.tokens and cut.longest == 2
    assert cut.network_tokens == pytest.approx(np.minimum(lengths, 2).mean())
    assert "named" not in found.source
    train = str(tmp_path / "train.jsonl")
    content = json.loads((corpus.directory / "corpus.json").read_text())
    (corpus.directory / "corpus.json").write_text(json.dumps({**content, "settings": {"train": [train]}}))
    for name in ("train", "other"):
        given = {"name": "tiny", "train": [str(tmp_path / f"{name}.jsonl")]}
        source = count_corpus(load(corpora=str(tmp_path / "corpora"), corpus=given)).source
        assert ("corpus.train named" in source) == (name == "other")


def test_a_run_on_a_part_has_the_label_trees_of_the_whole_corpus() -> None:
    whole, part, limited = (
        count_corpus(load(corpora="/none", corpus={**EXPECTED, **corpus}, training=training))
        for corpus, training in (({}, {}), ({}, {"documents": 100}), ({"max_train_documents": 100}, {}))
    )
    assert (whole.documents, part.documents, limited.documents) == (10_000, 100, 100)
    assert whole.valid_documents == limited.valid_documents  # drawn before the limit
    assert label_terms(whole) == label_terms(part) > label_terms(limited)


EXPECTED = {"source": "installed_packages", "expected": {"documents": 10_000, "labels": 500, "tokens": 50}}


def test_without_corpus_or_expectation_it_says_what_to_do(tmp_path: Path) -> None:
    settings = load(corpora=str(tmp_path), corpus={"source": "installed_packages", "expected": {"labels": 7}})
    with pytest.raises(SettingsError, match=r"axml-ray prepare, or set corpus.expected.documents, .labels and"):
        count_corpus(settings)


def test_machines(tmp_path: Path) -> None:
    half = choose_machines(experiment(resources={"gpus_per_worker": 0.5}), None, None)
    assert (half.units, half.unit_share, half.side_by_side(1, 3)) == (0.5, 0.5, 1)
    settings = experiment(resources={"workers": 2, "gpus_per_worker": 1}, ensemble={"trees": 3})
    assert choose_machines(settings, None, None).units == 2
    assert choose_machines(settings, None, None).side_by_side(2, 3) == 1
    shared = choose_machines(experiment(resources={"gpus_per_worker": 0.5}), 1, None)
    assert (shared.side_by_side(1, 3), shared.memory) == (2, ASSUMED_GPU_GIB / 2)
    eight = choose_machines(settings, 8, 24)
    assert (eight.units, eight.unit_share, eight.memory) == (8, 1, 24)
    assert eight.side_by_side(2, 3) == 3
    here = choose_machines(experiment(resources={"cpus_per_worker": 0.5}), None, None)
    assert here.shared
    assert here.memory_of_worker(1, 2) == pytest.approx(here.memory / min(2, here.units * 2))
    assert not choose_machines(experiment(), None, 3.0).shared


# The job


def job(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "plan.py"), *arguments],
        env={**os.environ, "AXML_RAY_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_run_without_networks_has_no_plan_of_them() -> None:
    of = counts(documents=1_700_000, labels=2_800_000)
    members = {"network_tree": {"weight": 0}, "linear_tree": {"weight": 1}}
    settings = experiment(members=members, network={"kind": "bilstm"})
    machines = choose_machines(settings, None, None)
    rates = training_rates(settings, of, machines, None)
    plan = make_plan(settings, of, machines, *rates)
    assert plan.levels == plan.too_large == () and plan.seconds == 0 and "worker" not in plan.task_memory
    assert {"linear tree", "predict"} <= {phase.name for phase in plan.phases} - {"networks"}
    assert all(phase.seconds is not None for phase in plan.phases)
    console = Console(width=120, record=True)
    console.print(render(plan))
    assert "Workers" not in console.export_text()


def test_the_memory_of_a_worker_is_taken_as_given() -> None:
    settings = experiment(resources={"gpus_per_worker": 0.5})
    assert choose_machines(settings, None, 40).memory == 40
    assert choose_machines(settings, None, None).memory == ASSUMED_GPU_GIB / 2


@pytest.mark.processes
def test_the_job_plans_and_measures_without_a_corpus(tmp_path: Path) -> None:
    result = job(
        tmp_path, "--config", str(ROOT / "configs/quickstart.yaml"), "--network.hidden=16",
        "--network.fully_connected=[16]", "--corpus.expected.documents=8000", "--corpus.expected.labels=6500",
        "--corpus.expected.tokens=20", "--corpus.expected.words=9000", "--json", "plan.json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "8,000 training documents of 20 words on average, 6,500 labels, 9,000 words" in result.stdout
    assert "measured on this machine" in result.stdout
    assert "Every level fits." in result.stdout
    written = json.loads((tmp_path / "plan.json").read_text())
    assert [level["shape"]["nodes"] for level in written["levels"]] == [512, 6_500]
    assert written["seconds"] > 0
    assert written["operations"] == pytest.approx(3 * sum(level["operations"]["total"] for level in written["levels"]))
    settings = load(ROOT / "configs/quickstart.yaml", network={"hidden": 16, "fully_connected": [16]})
    for level, shape in zip(written["levels"], level_shapes(6_500, settings.tree), strict=True):
        network = FusedAttentionXML(shape.level(), torch.zeros(9_000, settings.corpus.word_dimension), settings.network)
        assert level["parameters"] == sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.processes
def test_the_job_plans_gpus_that_are_not_here(tmp_path: Path) -> None:
    config = str(ROOT / "configs/amazon3m.yaml")
    knn = ["--members.knn.weight", "0.1"]
    result = job(tmp_path, "--config", config, *knn, "--gpus=8", "--memory=12", "--rate=50", "--json", "plan.json")
    assert result.returncode == 0, result.stderr
    assert "at 50 TFLOPS a worker, as --rate says" in " ".join(result.stdout.split())
    assert "WARNING: level 4 needs" in result.stdout
    assert "kNN would take" in " ".join(result.stdout.split())
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["too_large"] == [4]
    assert written["side_by_side"] == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpus", "0"], "argument --gpus: expected a whole number above 0 (given: '0')"),
        (["--rate", "-1"], "argument --rate: expected"),
        (["--gpu", "8"], "--gpu: unknown setting; did you mean '--gpus'?"),
        (["--config", "docstrings"], "set corpus.expected.documents, .labels and .tokens"),
    ],
)
def test_the_job_ends_in_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    result = job(tmp_path, "--config", str(ROOT / "configs/quickstart.yaml"), *arguments)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr
