"""A part of the training documents: what trials train on, by a setting of the main job."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny_corpus import DOCUMENTS, experiment, train_tree, write_corpus

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import Split
from axml_ray.runs.run import Run
from axml_ray.settings import ResourceSettings


def numbered(documents: int) -> Split:
    rows = Ragged.from_rows([[row] * (row % 4 + 1) for row in range(documents)])
    return Split(rows, rows)


@given(documents=st.integers(1, 60), small=st.integers(1, 70), more=st.integers(0, 30))
def test_the_same_documents_every_time_and_in_order(documents: int, small: int, more: int) -> None:
    split = numbered(documents)
    parts = [[int(row[0]) for row in split.part(size).tokens] for size in (small, small, small + more)]
    assert parts[0] == parts[1] == sorted(set(parts[0]))
    assert set(parts[0]) <= set(parts[2]) and len(parts[0]) == min(small, documents)
    part = split.part(small)
    assert (part.tokens.values == part.labels.values).all() and (np.diff(part.tokens.offsets) > 0).all()
    assert split.part(None) is split


def test_a_level_trains_on_that_many_and_is_known_by_it(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    settings = experiment(tmp_path, epochs=(2,), average_after=(1,), batch_size=10, eval_every_steps=5, documents=100)
    scorings = [record["scoring"] for record in train_tree(settings, corpus) if "scoring" in record]
    assert [one["documents"] for one in scorings] == [50, 100, 150, 200] * 2
    whole = settings.model_copy(update={"training": settings.training.model_copy(update={"documents": None})})
    part, all_of_them = Run(settings, corpus), Run(whole, corpus)
    assert part.tree_key(0) == all_of_them.tree_key(0)
    assert part.members[0].key != all_of_them.members[0].key
    assert DOCUMENTS["train"] > 100


def test_what_a_worker_reserves() -> None:
    assert ResourceSettings().of_a_worker == {"CPU": 1.0}
    asked = ResourceSettings(cpus_per_worker=0.5, gpus_per_worker=1).of_a_worker
    assert asked == {"CPU": 0.5, "GPU": 1.0}
