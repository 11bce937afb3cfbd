"""Comparison of two finished runs: their predictions of a split, their settings, and example documents.

Stored predictions are reused as in an evaluation.
"""

from typing import Any

from axml_ray.core.errors import SettingsError
from axml_ray.evaluation.metrics.comparison import compare_predictions
from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts
from axml_ray.evaluation.reports.examples import Example, build_examples, largest_differences
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import FREE, by_path, differences
from axml_ray.workflow.evaluate import current_predictions, read_texts


def compare_runs(first: Run, second: Run, split: str) -> dict[str, Any]:
    """Compare two runs on a split.

    Args:
        first: the run that is compared with; its settings of the evaluation hold for both.
        second: the run whose gains are measured.
        split: split of their corpus.

    Returns:
        The content that `evaluation.reports.comparison` describes.

    Raises:
        SettingsError: the corpora have other labels or documents, or a split must be predicted and a member is missing.
    """
    corpus, labels, other = first.corpus, first.corpus.labels, second.corpus.labels
    if labels.labels != other.labels or (labels.counts != other.counts).any():
        raise SettingsError(
            f"{first.layout.directory} and {second.layout.directory}: their corpora differ ({corpus.directory} and "
            f"{second.corpus.directory} have other labels or training documents). Compare runs on the same corpus"
        )
    names = [run.settings.name for run in (first, second)]
    if names[0] == names[1]:
        names = [str(run.layout.directory) for run in (first, second)]
    settings = first.settings.evaluation
    predictions = current_predictions(first, split, settings), current_predictions(second, split, settings)
    before, now = (run.settings.model_dump(mode="json") for run in (first, second))
    values = dict(by_path(before)), dict(by_path(now))
    return {
        "split": split,
        "corpus": first.settings.corpus.name,
        "runs": names,
        **compare_predictions(*predictions, TrainingCounts(labels.counts, corpus.documents("train")), settings),
        "settings": {
            key: [each.get(key) for each in values] for key in sorted(differences(before, now, (*FREE, "name")))
        },
    }


def differing_examples(first: Run, second: Run, split: str) -> list[tuple[str, list[tuple[Example, Example]]]]:
    """Return the documents on which two runs that can be compared differ most, by the run that ranks better."""
    corpus, labels = first.corpus, first.corpus.labels
    settings = first.settings.evaluation
    predictions = current_predictions(first, split, settings), current_predictions(second, split, settings)
    groups = []
    for title, rows in zip(("Better", "Worse"), largest_differences(*predictions), strict=True):
        texts = read_texts(corpus, split, [row for row, _ in rows])
        before, after = (
            build_examples(ranked, [pair[side] for pair in rows], texts, labels.names, labels.counts)
            for side, ranked in enumerate(predictions)
        )
        groups.append((title, list(zip(before, after, strict=True))))
    return groups
