"""Documents of a split that were labelled well and badly, to be read by a person.

Chosen by nDCG@5 of the ensemble: the best and the worst documents, at random among equals. Documents without a true
label are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from axml_ray.evaluation.metrics import ndcg_at
from axml_ray.evaluation.predictions import ENSEMBLE, Predictions
from axml_ray.evaluation.rankings import hits

SHOWN = 10
LABELS = 5
EXPLAINED = 3
LETTERS = 1_200

Words = list[tuple[str, int, int, float]]
"""Words of a text: word, first place in the text, last one (exclusive), weight."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a text has a label.

    Attributes:
        words: weighted by the label's attention to them.
        contributions: name for people of each member, and the points that it contributes to the score.
    """

    words: Words
    contributions: Sequence[tuple[str, float]]


Explain = Callable[[str, Sequence[int]], Sequence[Reason]]
"""From a text and label ids: why it has each label."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a text.

    Attributes:
        text: as it stands there.
        weight: 0 to 1, attention of the label; 0 is plain text.
    """

    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class Guess:
    """A predicted label.

    Attributes:
        name: of the label.
        count: training documents of it.
        score: of the ensemble, 0 to 1.
        true: whether it is right.
        pieces: the text, marked where the label attended to it; empty where that is not known.
        contributions: of each member to the score; empty where that is not known.
    """

    name: str
    count: int
    score: float
    true: bool
    pieces: tuple[Piece, ...]
    contributions: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """A document, what was predicted, and what is true.

    Attributes:
        id: of the document.
        text: its beginning; empty where the corpus keeps no texts.
        cut: whether the text goes on.
        guesses: the best five labels.
        missed: name and training documents of the true labels that aren't among them.
    """

    id: str
    text: str
    cut: bool
    guesses: tuple[Guess, ...]
    missed: tuple[tuple[str, int], ...]


def right_and_wrong(predictions: Predictions, *, seed: int) -> tuple[list[int], list[int]]:
    """Rows of the best documents, best first, and of the worst, worst first: at most ten each, no document twice."""
    parts = []
    for each in predictions.read(ENSEMBLE):
        score = ndcg_at(each.top, each.truth.values, each.truth.offsets, 5)
        parts.append(np.where(each.truth.lengths > 0, score, np.nan))
    scores = np.concatenate(parts or [np.empty(0)])
    labelled = np.flatnonzero(~np.isnan(scores))
    shuffled = np.random.default_rng(seed).permutation(labelled)
    order = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    shown = min(SHOWN, len(order) // 2)
    return order[:shown].tolist(), order[::-1][:shown].tolist()


def examples(
    predictions: Predictions,
    rows: Sequence[int],
    texts: Sequence[str],
    names: Sequence[str],
    counts: np.ndarray,
    explain: Explain | None = None,
) -> list[Example]:
    """What to show of some documents.

    Args:
        predictions: of the split.
        rows: of the documents, in the order of the predictions.
        texts: of these documents; empty ones where they aren't kept.
        names: of all labels, by id.
        counts: int64[L], training documents of each label.
        explain: why a text has a label, if that is known.
    """
    ids, _ = predictions.documents()
    wanted = {row: text for row, text in zip(rows, texts, strict=True)}
    found: dict[int, Example] = {}
    start = 0
    for part in predictions.read(ENSEMBLE):
        right = hits(part.top, part.truth.values, part.truth.offsets)
        for row in [row for row in wanted if start <= row < start + len(part.truth)]:
            here, text = row - start, wanted[row]
            given = [int(label) for label in part.top[here, :LABELS] if label >= 0]
            reasons = explain(text, given[:EXPLAINED]) if explain and text else []
            guesses = [
                Guess(
                    names[label],
                    int(counts[label]),
                    float(part.scores[here, place]),
                    bool(right[here, place]),
                    marked(text, reasons[place].words) if place < len(reasons) else (),
                    tuple(reasons[place].contributions) if place < len(reasons) else (),
                )
                for place, label in enumerate(given)
            ]
            missed = [int(label) for label in part.truth[here] if label not in part.top[here, :LABELS]]
            found[row] = Example(
                ids[row],
                text[:LETTERS],
                len(text) > LETTERS,
                tuple(guesses),
                tuple((names[label], int(counts[label])) for label in missed),
            )
        start += len(part.truth)
    return [found[row] for row in rows]


def marked(text: str, words: Words) -> tuple[Piece, ...]:
    """The beginning of a text in pieces, words with their weight over the largest one.

    Args:
        text: all of it.
        words: in any order, those that overlap another are left out.
    """
    most = max((weight for *_, weight in words), default=0.0)
    pieces, position = [], 0
    for _, start, end, weight in sorted(words, key=lambda word: word[1]):
        if start < position or end > min(len(text), LETTERS) or most <= 0:
            continue
        if start > position:
            pieces.append(Piece(text[position:start], 0.0))
        pieces.append(Piece(text[start:end], max(0.0, weight / most)))
        position = end
    return (*pieces, Piece(text[position:LETTERS], 0.0))
