"""The figures of the code, counted on a few lines by hand, and printed by `make figures`."""

import figures
import pytest
from pydantic import BaseModel

SOURCE = '''"""Docstring."""

import os  # noqa: F401


# A comment alone.
def add(a, b):
    """Add

    two numbers.
    """
    return a + b  # why
'''


class Group(BaseModel):
    one: int = 1
    two: str | None = None


class Model(BaseModel):
    group: Group = Group()
    three: tuple[int, ...] = ()


def test_counts_by_hand() -> None:
    assert figures.comments(SOURCE) == 2
    assert figures.code_lines(SOURCE) == {3, 7, 12}
    assert list(figures.functions(SOURCE)) == [(6, "add")]
    assert figures.count_settings(Model) == 3
    assert figures.room(figures.ROOT / "axml_ray" / "tree" / "growth.py") == "axml_ray/tree"
    assert figures.room(figures.ROOT / "axml_ray" / "estimator.py") == "axml_ray"


def test_all_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    figures.main()
    printed = capsys.readouterr().out
    rows = {line[2:62].strip(): line.split() for line in printed.splitlines() if line.startswith("  ")}
    assert int(rows["settings of a run"][-1]) > 40 and int(rows["settings of the server"][-1]) > 5
    lines = [
        int(row[1].replace(",", ""))
        for name, row in rows.items()
        if name.startswith("axml_ray/") and row[-1][-1] == "%"
    ]
    assert len(lines) > 15 and sum(lines) < int(rows["all"][-1].replace(",", ""))
