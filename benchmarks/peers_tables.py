"""The results of `peers.py` as figures by name and as tables for a terminal.

A row is one system's: `system`, `scores` (percent), `seconds` (by phase), `peak_gib`, `model_bytes`, and what it was
given; the run's own comes first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

COLUMNS = (*(f"{measure}@{k}" for measure in ("P", "nDCG", "PSP") for k in (1, 3, 5)), "R@10", "RP@5")
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "RP@5")
COSTS = ("train_seconds", "predict_seconds", "peak_gib", "model_mib")


def seconds(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Seconds to train and to predict, from texts to scores; None where a phase was not measured.

    Training is all that a new corpus costs: features, label trees and fit. For the run that is every phase but
    `predict`: `prepare` (its words, word vectors and label features), `choose members` by `auto`, `cluster`, each kind
    of member, `combiner`.
    """
    measured, run = row["seconds"], row["system"] == "ours"

    def total(phases: tuple[str, ...]) -> float | None:
        return sum(measured[phase] for phase in phases) if all(phase in measured for phase in phases) else None

    if run:
        phases = ["prepare", "cluster", *(phase for phase in measured if phase != "predict")]
        fitted = set(phases) - {"prepare", "choose members", "cluster", "combiner"}
        return total(tuple(dict.fromkeys(phases))) if fitted else None, total(("predict",))
    return total(("features", "fit")), total(("transform", "predict"))


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of the tables by name, such as `parabel_P@1` or `ours_train_seconds`; scores in percent."""
    result: dict[str, float] = {}
    for row in rows:
        cells = {name: row["scores"].get(name) for name in COLUMNS} | dict(zip(COSTS, _costs(row), strict=True))
        result |= {f"{row['system']}_{name}": round(cell, 4) for name, cell in cells.items() if cell is not None}
    return result


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the scores as a table for a rich console; missing values are dashes."""
    first, *peers = rows
    title = f"{first['run']} · {first['corpus']} · {first['test_documents']:,} test documents"
    shown = _table(title, SHOWN, _caption(peers, first["test_documents"]))
    for row in rows:
        scores = [row["scores"].get(name) for name in SHOWN]
        cells = [f"{score:.2f}" if score is not None else "–" for score in scores]
        shown.add_row(row["system"], *cells, style="bold" if row is first else None)
    return shown


def costs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the costs of each system as a table for a rich console; missing values are dashes."""
    failed = [
        f"{row['system']} can't be installed here: {row['failed'].splitlines()[-1]}" for row in rows if "failed" in row
    ]
    shown = _table("", ("trees", "train s", "predict s", "peak GiB", "model MiB"), "\n".join(failed))
    for row in rows:
        cells = [f"{cost:,.1f}" if cost is not None else "–" for cost in _costs(row)]
        shown.add_row(row["system"], str(row["trees"]), *cells, style="bold" if row is rows[0] else None)
    return shown


def _table(title: str, columns: Sequence[str], caption: str) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, title=Text(title), caption=Text(caption), show_edge=False, collapse_padding=True)
    shown.add_column()
    for name in columns:
        shown.add_column(name, justify="right")
    return shown


def _costs(row: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return the values of `COSTS`, None for those that weren't measured."""
    size = row.get("model_bytes")
    return (*seconds(row), row.get("peak_gib"), None if size is None else size / 2**20)


def _caption(peers: Sequence[Mapping[str, Any]], tested: int) -> str:
    if not peers:
        return ""
    row = peers[0]
    text = f"peers: word TF-IDF, {row['training_documents']:,} documents of {row['trained_on']}"
    left_out = row["training_documents_left_out_by_quick"]
    if left_out:
        text += f"; --quick left out {left_out:,}, so they score lower than they can"
    return f"{text}; tested on {row['test_documents']:,}" if row["test_documents"] != tested else text
