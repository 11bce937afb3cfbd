"""docs/paper-map.md lists all of the paper, and each of its targets exists. Run: pytest tests/test_paper_map.py"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "paper-map.md"

PAPER = [
    "1 Introduction",
    "2 AttentionXML",
    "2.1 Overview",
    "2.2 Building Shallow and Wide PLT",
    "2.3 Learning AttentionXML",
    "2.4 Attention-Aware Deep Model",
    "2.4.1 Word Representation Layer",
    "2.4.2 Bidirectional LSTM Layer",
    "2.4.3 Multi-Label Attention",
    "2.4.4 Fully Connected and Output Layer",
    "2.4.5 Loss Function",
    "2.5 Initialization on parameters of AttentionXML",
    "2.6 Complexity Analysis",
    "3 Experimental Results",
    "3.1 Dataset",
    "3.2 Evaluation Measures",
    "3.3 Competing Methods and Experimental Settings",
    "3.4 Performance comparison",
    "3.5 Performance on tail labels",
    "3.6 Ablation Analysis",
    "3.7 Impact of Number of PLTs in AttentionXML",
    "3.8 Computation Time and Model Size",
    "4 Conclusion",
    "A Examples of PLT in AttentionXML",
    "B Algorithms",
    "C Related Work",
    "C.1 1-vs-All Methods",
    "C.2 Embedding-based Methods",
    "C.3 Tree-based Methods",
    "C.4 Deep learning-based Methods",
    "D Experiments and Results",
    "D.1 Evaluation Metrics",
    "D.2 Performance Results",
    "D.3 Impact of height and maximum cluster size",
    "E Effectiveness of Attention",
    *(f"Equation {number}" for number in range(1, 8)),
    *(f"Algorithm {number}" for number in range(1, 5)),
    *(f"Table {number}" for number in range(1, 10)),
    *(f"Figure {number}" for number in range(1, 4)),
]
"""Sections, and the numbers of all else, in the paper and its appendix. The acknowledgments have no number."""


def rows() -> dict[str, str]:
    """Right of each first cell of the map's tables, all that follows; the departures' table has keys of its own."""
    cells = [
        line.strip("| \n").split(" | ", 1) for line in MAP.read_text(encoding="utf-8").splitlines() if line[:2] == "| "
    ]
    assert len({row[0] for row in cells if row[0] != "paper"}) == len([row for row in cells if row[0] != "paper"])
    return {row[0]: row[1] for row in cells}


def targets(cell: str) -> list[tuple[str, str]]:
    """Files named in a cell, each with the name in it, or an empty one."""
    return re.findall(r"`((?:[\w.-]+/)+[\w.-]+|README\.md)(?:: ([\w.]+))?`", cell)


def names_in(path: Path) -> set[str]:
    """Functions, classes, and their methods as `Class.method`, of a Python file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, kinds):
            found.add(node.name)
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, kinds)}
    return found


def test_lists_all_of_the_paper():
    assert [name for name in PAPER if name not in rows()] == []


@pytest.mark.parametrize("name", PAPER)
def test_each_part_leads_somewhere(name):
    """To a file, to another row of the map, or to the reason why there is none."""
    cell = rows()[name]
    to_another_row = any(other in cell for other in PAPER if other != name)
    assert targets(cell) or to_another_row or cell.startswith(("not implemented: ", "not reproduced: "))


def test_each_target_exists():
    found = [target for cell in rows().values() for target in targets(cell)]
    assert len(found) > 80
    missing = [path for path, _ in found if not (ROOT / path).is_file()]
    assert missing == []
    wrong = [f"{path}: {name}" for path, name in found if name and name not in names_in(ROOT / path)]
    assert wrong == []


def test_nothing_in_backticks_with_a_slash_escapes_the_check():
    for cell in rows().values():
        for quoted in re.findall(r"`([^`]*/[^`]*)`", cell):
            assert targets(f"`{quoted}`"), quoted
