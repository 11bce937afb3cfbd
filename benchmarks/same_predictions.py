"""Comparison of two runs' stored predictions of the test split, before and after a change of the code.

    python benchmarks/same_predictions.py --before runs/OLD --after runs/NEW [--json PATH]

Both runs are of one prepared corpus with the same settings and seed. Only their stored predictions are read, whichever
version of the program wrote them.

Figures: `P@1_before`, `P@1_after` and so on, in percent; `P@1_difference`; `same_top_label`, the share of documents
with the same best label, in percent. Exit status 1 if a precision differs by more than `MOST_POINTS`, or fewer than
`LEAST_SAME` percent of the best labels are the same.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import results_file
from rich.console import Console

from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions

MEASURES = ("P@1", "P@3", "P@5")
MOST_POINTS, LEAST_SAME = 0.2, 99.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print the figures, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--before", "--after"):
        parser.add_argument(name, type=absolute, required=True, metavar="RUN", help="directory of a finished run")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "same-predictions.json")
    options = parser.parse_args(arguments)
    try:
        figures = compare(options.before, options.after)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    Console().print(figures)
    results_file.write(options.json, figures, [])
    apart = [name for name in MEASURES if abs(figures[f"{name}_difference"]) > MOST_POINTS]
    if apart or figures["same_top_label"] < LEAST_SAME:
        print("error: the runs do not predict alike", file=sys.stderr)
        raise SystemExit(1)


def compare(before: Path, after: Path) -> dict[str, float]:
    """Return the figures of two runs.

    Raises:
        SettingsError: a run has no predictions of the test split, or the documents differ.
    """
    both = [_read(run) for run in (before, after)]
    if both[0][0] != both[1][0]:
        raise SettingsError(f"{before} and {after}: predictions of other documents; compare runs on one corpus")
    figures: dict[str, float] = {}
    for name, (_, _, scores) in zip(("before", "after"), both, strict=True):
        result = scores.result()
        figures |= {f"{measure}_{name}": round(result[measure], 4) for measure in MEASURES}
    for measure in MEASURES:
        figures[f"{measure}_difference"] = round(figures[f"{measure}_after"] - figures[f"{measure}_before"], 4)
    same = both[0][1] == both[1][1]
    return figures | {"documents": float(len(same)), "same_top_label": round(100 * float(same.mean()), 3)}


def _read(run: Path) -> tuple[list[str], np.ndarray, Scores]:
    """Return the ids, the best labels (int32 [documents]) and the scores of a run's predictions."""
    directory = run / "predictions" / "test"
    predictions = Predictions.open(directory)
    if predictions is None and list(directory.glob("[0-9]*.parquet")):  # of a version that wrote no manifest
        predictions = Predictions.complete(directory, "unknown")
    if predictions is None:
        raise SettingsError(f"{run}: no predictions of the test split; run axml-ray train")
    rankings = list(predictions.read(ENSEMBLE))
    labels = (
        max(int(max(ranking.labels.max(initial=0), truth.values.max(initial=0))) for ranking, truth in rankings) + 1
    )
    scores = Scores(np.ones(labels))
    for ranking, truth in rankings:
        scores.add(ranking.labels, truth.values, truth.offsets)
    return predictions.documents()[0], np.concatenate([ranking.labels[:, 0] for ranking, _ in rankings]), scores


if __name__ == "__main__":
    main()
