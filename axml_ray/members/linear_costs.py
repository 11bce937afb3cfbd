"""Memory, time and files that the fit of a label tree's linear classifiers (`linear_fit.py`) takes, estimated."""

import math
from collections.abc import Sequence
from itertools import pairwise

from axml_ray.corpus.counts import Counts
from axml_ray.members.featurizer import COUNTED_PER_SECOND, COUNTING_BYTES, FEATURE_BYTES, WORD_BYTES
from axml_ray.members.label_clusters import CLUSTERED_PER_SECOND
from axml_ray.members.linear_fit import FEW_RANGES, MOST_MARGINS, MOST_VIOLATING, RANGE_ROWS, SAMPLED, SIMILAR
from axml_ray.members.member import FitCosts

CLUSTERING_BYTES, COLLECTING_BYTES, NODE_BYTES = 36, 48, 40
"""Bytes of a term of a label's vector while labels are clustered, of a pair of a text and a label while the texts of
nodes are collected, and of a node while the ranges are found."""
MARGIN_ARRAYS, FITTING_BYTES = 6, 28
"""Arrays of margins, or of weights, that the fit of siblings holds, and bytes of an entry of a working set."""
MOST_WEIGHTS = 200
"""Largest mean number of weights of a classifier (assumed); with fewer texts of a label, these are their words."""
ROWS_PER_SECOND, LEVEL_SECONDS = 2.0e5, 1e-3
"""Rows of working sets that a core fits in a second (`benchmarks/results/linear-docstrings.json`; large sets are slow,
small ones faster), and the seconds in which it scores a level for a text (assumed)."""


def range_costs(sizes: Sequence[int], terms: float, entries: int, counts: Counts) -> FitCosts:
    """Estimate what a fit takes.

    Args:
        sizes: number of nodes of each level.
        terms: terms of the label vectors that are clustered for it; 0 for a tree that is there.
        entries: entries of the feature matrix of the training texts.
        counts: sizes of the corpus.
    """
    pairs, rows_bytes, nodes = counts.pairs, FEATURE_BYTES * entries, sum(sizes)
    counting = WORD_BYTES * round(counts.documents * counts.tokens) + COUNTING_BYTES * entries
    inputs = rows_bytes + round(CLUSTERING_BYTES * terms) + COLLECTING_BYTES * pairs + NODE_BYTES * nodes
    part = (
        rows_bytes
        + NODE_BYTES * nodes
        + max(_siblings_bytes(above, below, entries, counts) for above, below in pairwise((1, *sizes)))
    )
    rows = [3 * min(pairs, counts.documents * size) + (SIMILAR + SAMPLED) * size for size in sizes]
    parts = [-(-of_level // RANGE_ROWS) for of_level in rows]
    is_divided = sum(parts) > FEW_RANGES
    seconds = entries / COUNTED_PER_SECOND
    if terms:
        seconds += terms * math.log2(max(2, sizes[-2])) / CLUSTERED_PER_SECOND
    fitting = sum(rows) / ROWS_PER_SECOND
    words = entries / counts.documents * math.sqrt(max(1.0, pairs / counts.labels))
    files = round(FEATURE_BYTES * (min(MOST_WEIGHTS, words) + 1) * nodes) + 4 * counts.labels
    return FitCosts(
        memory=max(counting, inputs, 0 if is_divided else part),
        files=files,
        # The features are written once, and read by each range of level 1, and once by all of another level together;
        # classifiers are written by ranges, read, and written into one file.
        moved=rows_bytes * (parts[0] + len(sizes)) + 8 * len(sizes) * pairs + 3 * files,
        seconds=seconds if is_divided else seconds + fitting,
        text_seconds=LEVEL_SECONDS * len(sizes),
        parts=sum(parts) if is_divided else 0,
        part_memory=part if is_divided else 0,
        part_seconds=fitting if is_divided else 0.0,
    )


def _siblings_bytes(parents: int, nodes: int, entries: int, counts: Counts) -> int:
    """Estimate the bytes of the margins, weights and working sets of siblings, given their level's number of nodes."""
    documents = counts.documents if parents == 1 else min(counts.documents, counts.pairs / parents)
    features = min(counts.words, entries / counts.documents * math.sqrt(documents))
    margins = min(MOST_MARGINS, nodes / parents * max(documents, features))
    working_set = 3 * min(documents, counts.pairs / nodes) + SIMILAR + SAMPLED
    working_set = min(documents, working_set + max(working_set, MOST_VIOLATING))
    return round(4 * MARGIN_ARRAYS * margins + FITTING_BYTES * working_set * entries / counts.documents)
