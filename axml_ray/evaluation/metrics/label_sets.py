"""Scores of predicted label sets: the labels of a document whose score reaches a threshold.

Rankings have no number of labels; a set has. The threshold is the one with the best micro-F1 on validation documents,
and is the same for all documents and labels. Micro-averages count (document, label) pairs over all documents, those
without a true label included; a true label that is not among the stored ones is missed.

Rankings come as `predictions.read(ENSEMBLE)` yields them: float32 scores that are not negative, with the true labels.
"""

from collections.abc import Iterable

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.evaluation.metrics.rankings import hits

Rankings = Iterable[tuple[TopK, Ragged]]
PAIRS = 1 << 20
"""Number of pairs whose counts are in memory at a time."""


def best_threshold(rankings: Rankings) -> float:
    """Return the score that, as the least one of a predicted label, gives the best micro-F1.

    Raises:
        SettingsError: no document has a true label, or no true label was predicted.
    """
    blocks, true_labels = [np.empty(0, np.uint32)], 0
    for ranking, truth in rankings:
        is_predicted = ranking.labels >= 0
        is_true = hits(ranking.labels, truth.values, truth.offsets)[is_predicted]
        # Four bytes for each pair: the bits of floats that are not negative are ordered as the floats are, and leave
        # the sign's place to whether the label is true.
        blocks.append(ranking.scores[is_predicted].view(np.uint32) << np.uint32(1) | is_true)
        true_labels += len(truth.values)
    pairs = np.concatenate(blocks)
    del blocks
    pairs.sort()
    best, threshold, correct = 0.0, np.uint32(0), 0
    for end in range(len(pairs), 0, -PAIRS):
        start = max(0, end - PAIRS)
        block = pairs[start:end][::-1]
        scores, counts = block >> 1, correct + np.cumsum(block & 1, dtype=np.int64)
        f1 = 2 * counts / (np.arange(len(pairs) - end + 1, len(pairs) - start + 1) + true_labels)
        # Equal scores are above a threshold together.
        is_last = np.append(scores[1:] != scores[:-1], not start or pairs[start - 1] >> 1 != scores[-1])
        place = np.argmax(np.where(is_last, f1, 0))
        if is_last[place] and f1[place] > best:
            best, threshold = f1[place], scores[place]
        correct = int(counts[-1])
    if not correct:
        raise SettingsError("no true label of a validation document was predicted, so no threshold can be chosen")
    return float(threshold.view(np.float32))


def scores_above(rankings: Rankings, threshold: float) -> dict[str, float]:
    """Return the scores of the sets of labels whose scores reach a threshold.

    Returns:
        `threshold`; `labels`, the mean number of labels of a document; and in percent `micro-precision`, `micro-recall`
        and `micro-F1`, which are 0 where they have no denominator.
    """
    predicted = correct = true_labels = documents = 0
    for ranking, truth in rankings:
        is_predicted = (ranking.labels >= 0) & (ranking.scores >= threshold)
        predicted += int(is_predicted.sum())
        correct += int((is_predicted & hits(ranking.labels, truth.values, truth.offsets)).sum())
        true_labels += len(truth.values)
        documents += len(truth)
    return {
        "threshold": threshold,
        "labels": predicted / max(documents, 1),
        "micro-precision": 100 * correct / max(predicted, 1),
        "micro-recall": 100 * correct / max(true_labels, 1),
        "micro-F1": 100 * 2 * correct / max(predicted + true_labels, 1),
    }
