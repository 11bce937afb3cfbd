"""Comparison of two finished runs: their predictions of a split, their settings, and the HTML page.

Stored predictions are reused as in an evaluation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from axml_ray.core.errors import SettingsError
from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.evaluation.reports.comparison import compare
from axml_ray.evaluation.reports.comparison_page import write_page
from axml_ray.evaluation.reports.examples import build_examples, largest_differences
from axml_ray.runs.run import Run
from axml_ray.settings import EvaluationSettings
from axml_ray.settings.configuration import FREE
from axml_ray.workflow.evaluate import current_predictions, read_texts


@dataclass(frozen=True)
class Comparison:
    """A comparison of two runs.

    Attributes:
        first: the run that is compared with.
        second: the run whose gains are measured.
        split: split of their corpus.
        predictions: the predictions of both.
        content: what `evaluation.comparison` describes.
    """

    first: Run
    second: Run
    split: str
    predictions: tuple[Predictions, Predictions]
    content: dict[str, Any]

    def write_html(self, path: Path) -> None:
        """Write the page, with the documents on which the runs differ most."""
        corpus = self.first.corpus
        groups = []
        for title, rows in zip(("Better", "Worse"), largest_differences(*self.predictions), strict=True):
            texts = read_texts(corpus, self.split, [one for one, _ in rows])
            sides = [
                build_examples(each, [pair[side] for pair in rows], texts, corpus.labels.names, corpus.labels.counts)
                for side, each in enumerate(self.predictions)
            ]
            groups.append((title, list(zip(*sides, strict=True))))
        write_page(path, self.content, groups)


def compare_runs(first: Run, second: Run, split: str, settings: EvaluationSettings | None = None) -> Comparison:
    """Compare two runs on a split.

    Args:
        first: the run that is compared with.
        second: the run whose gains are measured.
        split: split of their corpus.
        settings: propensities, bands, and number of samples; by default those of the first run.

    Raises:
        SettingsError: the corpora have other labels or documents, or a split must be predicted and a member is missing.
    """
    one, other = first.corpus.labels, second.corpus.labels
    directories = f"{first.layout.directory} and {second.layout.directory}"
    if one.labels != other.labels or (one.counts != other.counts).any():
        raise SettingsError(
            f"{directories}: their corpora differ ({first.corpus.directory} and {second.corpus.directory} have other "
            "labels or training documents). Compare runs on the same corpus"
        )
    settings = settings or first.settings.evaluation
    predictions = current_predictions(first, split, settings), current_predictions(second, split, settings)
    training = TrainingCounts(one.counts, first.corpus.documents("train"))
    content = {
        "split": split,
        "corpus": first.settings.corpus.name,
        "runs": _names(first, second),
        **compare(*predictions, training, settings),
        "settings": dict(differing_settings(first, second)),
    }
    return Comparison(first, second, split, predictions, content)


def differing_settings(first: Run, second: Run) -> Iterator[tuple[str, list[Any]]]:
    """Yield the settings whose values differ, with both values; paths, names and resources are left out."""
    values = [dict(_flat(run.settings.model_dump(mode="json"))) for run in (first, second)]
    for key in sorted(values[0].keys() | values[1].keys()):
        pair = [each.get(key) for each in values]
        if pair[0] != pair[1] and key.partition(".")[0] not in (*FREE, "name"):
            yield key, pair


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by path, such as `tree.height`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _names(first: Run, second: Run) -> list[str]:
    """Return the names of the runs; their directories if the names are the same."""
    names = [first.settings.name, second.settings.name]
    return names if names[0] != names[1] else [str(run.layout.directory) for run in (first, second)]
