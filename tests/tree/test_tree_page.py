"""The page of a whole tree: its clusters by hand, and one file that escapes names and fetches nothing."""

import json
import re

import numpy as np
import pytest
from label_indexes import index_of

from axml_ray.tree.label_tree import LabelTree
from axml_ray.tree.tree_page import nested_clusters, write_tree_page

EVIL = "</script><script>alert('x')</script>"


def tree_of(first_child: list[list[int]], order: list[int]) -> LabelTree:
    return LabelTree(
        label_order=np.array(order, np.int32), first_child=tuple(np.array(starts) for starts in first_child)
    )


SHALLOW = tree_of([[0, 2], [0, 3, 5]], [4, 0, 2, 3, 1])
DEEP = tree_of([[0, 2], [0, 1, 3], [0, 2, 3, 5]], [0, 3, 2, 4, 1])
FLAT = tree_of([[0, 3]], [2, 0, 1])


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (FLAT, {"n": 3, "l": [0, 1, 2]}),
        (SHALLOW, {"n": 5, "c": [{"n": 3, "l": [0, 2, 4]}, {"n": 2, "l": [1, 3]}]}),
        (
            DEEP,
            {
                "n": 5,
                "c": [
                    {"n": 2, "c": [{"n": 2, "l": [0, 3]}]},
                    {"n": 3, "c": [{"n": 1, "l": [2]}, {"n": 2, "l": [1, 4]}]},
                ],
            },
        ),
    ],
)
def test_clusters_by_hand(tree: LabelTree, expected: dict) -> None:
    assert nested_clusters(tree, 100) == (expected, list(range(len(tree.label_order))))


def test_a_large_tree_keeps_the_most_frequent_labels_of_each_cluster() -> None:
    root, kept = nested_clusters(SHALLOW, 3)
    assert kept == [0, 1]  # one of each cluster
    assert root == {"n": 5, "c": [{"n": 3, "l": [0]}, {"n": 2, "l": [1]}]}


def test_the_page_escapes_names_and_fetches_nothing(tmp_path) -> None:
    index = index_of({f"label{i}": 9 - i for i in range(5)}, names={"label0": EVIL})
    path = tmp_path / "new" / "tree.html"
    write_tree_page(path, SHALLOW, index, f"a tree & {EVIL}")
    html = path.read_text(encoding="utf-8")
    assert html.count("<script>") == html.count("</script>") == 1
    assert not re.search(r"https?://|@import|url\(", html)
    found = re.search(r"^const LABELS = (.*);  //", html, re.MULTILINE)
    assert found and json.loads(found[1]) == [[EVIL, 9], ["label1", 8], ["label2", 7], ["label3", 6], ["label4", 5]]
