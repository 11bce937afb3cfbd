"""Run: pytest tests/tree/test_hierarchy.py"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from axml_ray.settings import SettingsError
from axml_ray.tree.hierarchy import Hierarchy, cut

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


def test_families_are_runs_and_kinship_says_where_they_part(tmp_path):
    labels = ["eel", "lion", "granite", "feline", "dog", "quark", "cat", "lepton"]
    order, kinship = Hierarchy.read(write(tmp_path, ANIMALS)).order(labels, no_features(8), 4, 0)
    # animal (1) over mammal (2) over dog and feline (3), that over cat and lion (4); the file knows no quark or lepton
    assert [labels[i] for i in order] == ["dog", "feline", "cat", "lion", "eel", "granite", "quark", "lepton"]
    assert kinship.tolist() == [0, 2, 3, 3, 1, 0, 0, 1]


def test_cuts_by_hand(tmp_path):
    kinship = np.array([0, 2, 3, 3, 1, 0, 0, 1])
    # of at most 4 labels, and more than 2: before place 4 the relation is weakest, then before 6 rather than 7
    assert cut(kinship, np.array([0, 8]), 4).tolist() == [0, 4, 8]
    assert cut(kinship, np.array([0, 8]), 5).tolist() == [0, 5, 8]
    assert cut(kinship, np.array([0, 4, 8]), 2).tolist() == [0, 2, 4, 6, 8]


@given(kinship=st.lists(st.integers(0, 5), min_size=1, max_size=200), c=st.integers(1, 4))
def test_inner_nodes_have_at_most_k_children(kinship, c):
    size = 2**c
    labels, ranges = len(kinship), np.array([0, len(kinship)])
    for level in (2, 1, 0):
        most = size * (size // 2) ** level
        finer = cut(np.array(kinship), ranges, most)
        assert np.isin(ranges, finer).all() and finer[0] == 0 and finer[-1] == labels
        sizes = np.diff(finer)
        assert sizes.min() > 0 and sizes.max() <= most
        if level < 2:
            assert np.diff(np.searchsorted(finer, ranges)).max() <= size
        ranges = finer


@given(data=st.data(), names=st.integers(1, 60))
def test_any_hierarchy_orders_each_label_once_with_families_together(tmp_path_factory, data, names):
    # the parent of a name has a smaller number, so there are no circles
    parents = {i: data.draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None for i in range(names)}
    chosen = data.draw(st.lists(st.integers(0, names - 1), min_size=1, unique=True))
    lines = [f"n{i}\t" + ("" if parent is None else f"n{parent}") for i, parent in parents.items()]
    path = write(tmp_path_factory.getbasetemp(), "\n".join(reversed(lines)))
    labels = [f"n{i}" for i in chosen]
    order, kinship = Hierarchy.read(path).order(labels, no_features(len(labels)), 4, 1)
    assert sorted(order) == list(range(len(labels)))

    def ancestry(i):
        line = []
        while i is not None:
            line.append(i)
            i = parents[i]
        return line[::-1]

    lines_of = [ancestry(chosen[i]) for i in order]
    for before, after, steps in zip(lines_of[:-1], lines_of[1:], kinship[1:], strict=True):
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
    ("content", "expected"),
    [
        ("cat\tfeline\ndog mammal\n", "parents.tsv:2: found no tab; write label, tab, parent"),
        ("\tfeline\n", "parents.tsv:1: no label before the tab; write label, tab, parent"),
        ("cat\tfeline\tpet\n", "parents.tsv:1: more than one tab; write one line a label, with one parent"),
        (
            "cat\tfeline\n\ncat\tpet\n",
            "parents.tsv:3: 'cat' stands below 'pet' here and below 'feline' on line 1; keep one of the two",
        ),
        (
            "z\tb\na\tb\nb\tc\nc\ta\n",
            "parents.tsv:3: 'b' stands below itself (b → c → a → b); change the parent of one of these",
        ),
        ("a\ta\n", "parents.tsv:1: 'a' stands below itself (a → a); change the parent of one of these"),
        ("\n \n", "parents.tsv is empty; write lines of label, tab, parent"),
    ],
)
def test_wrong_files_are_one_error_with_file_line_and_mend(tmp_path, content, expected):
    with pytest.raises(SettingsError) as caught:
        Hierarchy.read(write(tmp_path, content))
    assert str(caught.value) == f"tree.hierarchy: {tmp_path}/{expected}"


def test_a_file_that_cannot_be_read_or_is_of_other_labels(tmp_path):
    with pytest.raises(SettingsError, match=r"tree\.hierarchy: .*none\.tsv cannot be read"):
        Hierarchy.read(tmp_path / "none.tsv")
    (tmp_path / "latin").write_bytes(b"caf\xe9\tdrink\n")
    with pytest.raises(SettingsError, match="latin cannot be read"):
        Hierarchy.read(tmp_path / "latin")
    hierarchy = Hierarchy.read(write(tmp_path, ANIMALS))
    with pytest.raises(SettingsError, match=r"names none of the corpus's 2 labels, as 'x'; write labels as the corpus"):
        hierarchy.order(["x", "y"], no_features(2), 4, 0)
    assert Hierarchy.read(write(tmp_path, "a\tb\r\na\tb\r\n")).parents == {"a": "b"}  # a line twice is no contradiction
