"""Example documents for the report: those that the ensemble labelled best and worst by nDCG@5.

Ties are broken at random. Documents without a true label are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.evaluation.metrics.rankings import hits

EXAMPLES_PER_GROUP = 10
TOP_LABELS = 5
EXPLAINED_LABELS = 3
"""Top labels of a document that are shown with an explanation."""
MAX_CHARACTERS = 1_200

WordWeights = list[tuple[str, int, int, float]]
"""Words of a text: word, start and end (exclusive) of its characters, weight."""


@dataclass(frozen=True, slots=True)
class LabelExplanation:
    """Why a label was predicted for a text."""

    words: WordWeights
    """Words of the text, weighted by the label's attention."""
    contributions: Sequence[tuple[str, float]]
    """Display name of each member, and its contribution to the score."""


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A part of a text, unescaped."""

    text: str
    weight: float
    """The label's attention relative to the highest-weighted word, 0 to 1; 0 is not highlighted."""


@dataclass(frozen=True, slots=True)
class PredictedLabel:
    """One of a document's top labels; without an explanation, it has neither spans nor contributions."""

    name: str
    count: int
    """Number of its training documents."""
    score: float
    """The ensemble's score, 0 to 1."""
    is_true: bool
    spans: tuple[TextSpan, ...]
    """The text, highlighted where the label attended to it."""
    contributions: tuple[tuple[str, float], ...] = ()
    """Display name of each member, and its contribution to the score."""


@dataclass(frozen=True, slots=True)
class Example:
    """A document with its predicted and its true labels."""

    id: str
    text: str
    """The beginning of its text; empty if the corpus stores no texts."""
    is_truncated: bool
    predicted: tuple[PredictedLabel, ...]
    """Its top five labels."""
    missed: tuple[tuple[str, int], ...]
    """Name and number of training documents of each true label that is not among them."""


def best_and_worst(predictions: Predictions) -> tuple[list[int], list[int]]:
    """Select the documents with the highest and those with the lowest nDCG@5.

    Returns:
        Row numbers of the best documents, best first, and of the worst, worst first: at most ten each, and no document
        in both.
    """
    scores = _ndcg_of_documents(predictions)
    labelled = np.flatnonzero(~np.isnan(scores))
    # Shuffled before the stable sort, so that ties are in random order.
    shuffled = np.random.default_rng(0).permutation(labelled)
    order = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    size = min(EXAMPLES_PER_GROUP, len(order) // 2)
    return order[:size].tolist(), order[::-1][:size].tolist()


def largest_differences(first: Predictions, second: Predictions) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Select the documents whose nDCG@5 rises most, and those whose nDCG@5 falls most, from one run to another.

    Args:
        first: predictions of a split.
        second: predictions of the same documents, in any order.

    Returns:
        The rows of each document in both, the largest difference first: at most ten that rise, and ten that fall.
    """
    row_of = {document: row for row, document in enumerate(second.documents()[0])}
    order = np.array([row_of[document] for document in first.documents()[0]], np.int64)
    gains = _ndcg_of_documents(second)[order] - _ndcg_of_documents(first)
    ranked = [row for row in np.argsort(-gains, kind="stable").tolist() if not np.isnan(gains[row])]
    rising = [row for row in ranked[:EXAMPLES_PER_GROUP] if gains[row] > 0]
    falling = [row for row in ranked[::-1][:EXAMPLES_PER_GROUP] if gains[row] < 0]
    return [(row, int(order[row])) for row in rising], [(row, int(order[row])) for row in falling]


def _ndcg_of_documents(predictions: Predictions) -> np.ndarray:
    """Return the ensemble's nDCG@5 of each document, float64[N]; NaN for those without a true label."""
    scores = [np.empty(0)]
    for ranking, truth in predictions.read(ENSEMBLE):
        ndcg = ndcg_at(ranking.labels, truth.values, truth.offsets, 5)
        scores.append(np.where(truth.lengths > 0, ndcg, np.nan))
    return np.concatenate(scores)


def build_examples(
    predictions: Predictions,
    rows: Sequence[int],
    texts: Sequence[str],
    names: Sequence[str],
    counts: np.ndarray,
    explanations: Mapping[int, Sequence[LabelExplanation]] | None = None,
) -> list[Example]:
    """Collect what the report shows about some documents.

    Args:
        predictions: predictions of the split.
        rows: row numbers of the documents, in the order of the predictions.
        texts: their texts; empty strings if the corpus stores none.
        names: names of all labels, by id.
        counts: int64[L], training documents of each label.
        explanations: explanations of the first `EXPLAINED_LABELS` labels of documents, by row.
    """
    ids = predictions.ids_of(rows)
    text_of = dict(zip(rows, texts, strict=True))
    examples: dict[int, Example] = {}
    start = 0  # row of the first document of a file
    for ranking, truth in predictions.read(ENSEMBLE):
        is_true = hits(ranking.labels, truth.values, truth.offsets)
        for row, text in text_of.items():
            place = row - start
            if not 0 <= place < len(truth):
                continue
            labels = [int(label) for label in ranking.labels[place, :TOP_LABELS] if label >= 0]
            of_labels = (explanations or {}).get(row, ())
            predicted = [
                PredictedLabel(
                    names[label],
                    int(counts[label]),
                    float(ranking.scores[place, rank]),
                    bool(is_true[place, rank]),
                    highlight(text, of_labels[rank].words) if rank < len(of_labels) else (),
                    tuple(of_labels[rank].contributions) if rank < len(of_labels) else (),
                )
                for rank, label in enumerate(labels)
            ]
            missed = [(names[label], int(counts[label])) for label in truth[place] if label not in labels]
            beginning, is_truncated = text[:MAX_CHARACTERS], len(text) > MAX_CHARACTERS
            examples[row] = Example(ids[row], beginning, is_truncated, tuple(predicted), tuple(missed))
        start += len(truth)
    return [examples[row] for row in rows]


def highlight(text: str, weighted: WordWeights) -> tuple[TextSpan, ...]:
    """Divide the beginning of a text into spans, with the words' weights divided by the largest one.

    Args:
        text: the whole text.
        weighted: weighted words in any order; a word that overlaps an earlier one is left out.
    """
    largest = max((weight for *_, weight in weighted), default=0.0)
    spans, position = [], 0
    for _, start, end, weight in sorted(weighted, key=lambda word: word[1]):
        if start < position or end > min(len(text), MAX_CHARACTERS) or largest <= 0:
            continue
        if start > position:
            spans.append(TextSpan(text[position:start], 0.0))
        spans.append(TextSpan(text[start:end], max(0.0, weight / largest)))
        position = end
    return (*spans, TextSpan(text[position:MAX_CHARACTERS], 0.0))
