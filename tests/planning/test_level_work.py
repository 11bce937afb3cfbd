"""The planned work of levels: operations, steps, and the rates at which they are measured."""

import pytest
import torch
from planning.planned import amazon3m, counts, experiment, gpus

from axml_ray.core.errors import SettingsError
from axml_ray.planning import memory, work
from axml_ray.planning.estimate import make_plan
from axml_ray.planning.report import notes
from axml_ray.planning.shapes import LevelShape, level_shapes


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
