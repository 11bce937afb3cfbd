"""Run: pytest tests/tree/test_hierarchy.py"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from axml_ray.core.errors import SettingsError
from axml_ray.tree.hierarchy import Hierarchy, cut_runs

ANIMALS = """cat\tfeline
dog\tmammal
lion\tfeline
feline\tmammal
mammal\tanimal

eel\tfish
fish\tanimal
animal\t
granite\tstone
"""


def write(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "parents.tsv"
    path.write_text(content, encoding="utf-8")
    return path


def no_features(labels: int) -> sparse.csr_array:
    return sparse.csr_array((labels, 1))


def test_labels_below_a_node_are_a_run(tmp_path):
    labels = ["eel", "lion", "granite", "feline", "dog", "quark", "cat", "lepton"]
    order, shared_depth = Hierarchy.read(write(tmp_path, ANIMALS)).order(labels, no_features(8), 4, 0)
    # animal (1) over mammal (2) over dog and feline (3), that over cat and lion (4); the file knows no quark or lepton
    assert [labels[i] for i in order] == ["dog", "feline", "cat", "lion", "eel", "granite", "quark", "lepton"]
    assert shared_depth.tolist() == [0, 2, 3, 3, 1, 0, 0, 1]


def test_cuts_by_hand(tmp_path):
    shared_depth = np.array([0, 2, 3, 3, 1, 0, 0, 1])
    # of at most 4 labels, and more than 2: before place 4 the relation is weakest, then before 6 rather than 7
    assert cut_runs(shared_depth, np.array([0, 8]), 4).tolist() == [0, 4, 8]
    assert cut_runs(shared_depth, np.array([0, 8]), 5).tolist() == [0, 5, 8]
    assert cut_runs(shared_depth, np.array([0, 4, 8]), 2).tolist() == [0, 2, 4, 6, 8]


@given(shared_depth=st.lists(st.integers(0, 5), min_size=1, max_size=200), c=st.integers(1, 4))
def test_inner_nodes_have_at_most_k_children(shared_depth, c):
    size = 2**c
    labels, ranges = len(shared_depth), np.array([0, len(shared_depth)])
    for level in (2, 1, 0):
        most = size * (size // 2) ** level
        finer = cut_runs(np.array(shared_depth), ranges, most)
        assert np.isin(ranges, finer).all() and finer[0] == 0 and finer[-1] == labels
        sizes = np.diff(finer)
        assert sizes.min() > 0 and sizes.max() <= most
        if level < 2:
            assert np.diff(np.searchsorted(finer, ranges)).max() <= size
        ranges = finer


def test_labels_may_be_deeper_than_they_are_many(tmp_path):
    path = write(tmp_path, "n0\t\nn3\tn0\nn4\tn3\nn5\tn4\n")
    order, shared_depth = Hierarchy.read(path).order(["n4", "n5"], no_features(2), 4, 1)
    assert order.tolist() == [0, 1] and shared_depth.tolist() == [0, 3]


@given(data=st.data(), names=st.integers(1, 60))
def test_any_hierarchy_orders_each_label_once_with_families_together(tmp_path_factory, data, names):
    # the parent of a name has a smaller number, so there are no circles
    parents = {i: data.draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None for i in range(names)}
    chosen = data.draw(st.lists(st.integers(0, names - 1), min_size=1, unique=True))
    lines = [f"n{i}\t" + ("" if parent is None else f"n{parent}") for i, parent in parents.items()]
    path = write(tmp_path_factory.getbasetemp(), "\n".join(reversed(lines)))
    labels = [f"n{i}" for i in chosen]
    order, shared_depth = Hierarchy.read(path).order(labels, no_features(len(labels)), 4, 1)
    assert sorted(order) == list(range(len(labels)))

    def ancestry(i):
        line = []
        while i is not None:
            line.append(i)
            i = parents[i]
        return line[::-1]

    lines_of = [ancestry(chosen[i]) for i in order]
    for before, after, steps in zip(lines_of[:-1], lines_of[1:], shared_depth[1:], strict=True):
        shared = sum(a == b for a, b in zip(before, after, strict=False))
        assert steps == min(shared, len(after) - 1)
    for family in range(names):
        places = [place for place, line in enumerate(lines_of) if family in line]
        assert places == list(range(places[0], places[0] + len(places))) if places else True


def test_children_that_are_too_many_for_a_cluster_are_brought_next_to_those_like_them(tmp_path):
    labels = [f"l{i}" for i in range(16)]
    path = write(tmp_path, "".join(f"{label}\ttop\n" for label in labels))
    like = sparse.csr_array(np.eye(4)[np.arange(16) % 4])
    first = [Hierarchy.read(path).order(labels, like, 4, seed)[0] for seed in range(6)]
    pure = [len(set(order[i : i + 4] % 4)) for order in first for i in range(0, 16, 4)]
    assert np.mean(pure) < 2.2  # four at random hold 2.8 kinds
    assert Hierarchy.read(path).order(labels, like, 16, 0)[0].tolist() == list(range(16))


@pytest.mark.parametrize(
    ("content", "line", "names"),
    [
        ("cat\tfeline\ndog mammal\n", 2, ()),
        ("\tfeline\n", 1, ()),
        ("cat\tfeline\tpet\n", 1, ()),
        ("cat\tfeline\n\ncat\tpet\n", 3, ("'cat'", "'feline'", "'pet'", "line 1")),
        ("z\tb\na\tb\nb\tc\nc\ta\n", 3, ("b → c → a → b",)),
        ("a\ta\n", 1, ("a → a",)),
        ("\n \n", None, ()),
    ],
)
def test_a_wrong_file_is_one_error_with_file_and_line(tmp_path, content, line, names):
    with pytest.raises(SettingsError) as caught:
        Hierarchy.read(write(tmp_path, content))
    place = f"tree.hierarchy: {tmp_path}/parents.tsv"
    assert str(caught.value).startswith(f"{place} " if line is None else f"{place}:{line}: ")
    assert all(name in str(caught.value) for name in names)


def test_a_file_that_cannot_be_read_or_is_of_other_labels(tmp_path):
    with pytest.raises(SettingsError, match=r"tree\.hierarchy: .*none\.tsv cannot be read"):
        Hierarchy.read(tmp_path / "none.tsv")
    (tmp_path / "latin").write_bytes(b"caf\xe9\tdrink\n")
    with pytest.raises(SettingsError, match="latin cannot be read"):
        Hierarchy.read(tmp_path / "latin")
    hierarchy = Hierarchy.read(write(tmp_path, ANIMALS))
    with pytest.raises(SettingsError, match=r"parents\.tsv names none of .* 2 labels .*'x'"):
        hierarchy.order(["x", "y"], no_features(2), 4, 0)
    assert Hierarchy.read(write(tmp_path, "a\tb\r\na\tb\r\n")).parents == {"a": "b"}  # a line twice is no contradiction
