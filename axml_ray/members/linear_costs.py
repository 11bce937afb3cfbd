"""Memory, time and files that the fit of a label tree's linear classifiers (`linear_fit.py`) takes, estimated."""

import math
from collections.abc import Sequence
from itertools import pairwise

from axml_ray.corpus.counts import Counts
from axml_ray.members.featurizer import COUNTED_PER_SECOND, COUNTING_BYTES, FEATURE_BYTES, WORD_BYTES
from axml_ray.members.label_clusters import CLUSTERED_PER_SECOND
from axml_ray.members.linear_fit import FEW_RANGES, MOST_MARGINS, MOST_VIOLATING, SAMPLED, SIMILAR, rows_of_range
from axml_ray.members.member import FitCosts

CLUSTERING_BYTES, COLLECTING_BYTES, NODE_BYTES = 36, 48, 40
"""Bytes of a term of a label's vector while labels are clustered, of a pair of a text and a label while the texts of
nodes are collected, and of a node while the ranges are found."""
MARGIN_ARRAYS, FITTING_BYTES = 6, 28
"""Arrays of margins, or of weights, that the fit of siblings holds, and bytes of an entry of a working set."""
MOST_WEIGHTS = 200
"""Largest mean number of weights of a classifier (assumed); with fewer texts of a label, these are their words."""
ENTRIES_PER_SECOND, PRODUCTS_PER_SECOND, ROW_ENTRIES, NODE_SECONDS = 5e7, 2e9, 80, 2e-4
"""Entries of working sets that a core fits in a second, entries whose products with classifiers it computes, entries
that take as long as what each row takes besides, and seconds that each node takes besides."""
COMMON, REFITTED = 0.5, 150
"""Texts of a cluster relative to its pairs of a text and a label, and the number of violating texts of a node above
which it is always fitted again. With these six numbers, plans are within a factor of 1.5 of the seconds of six corpora
(`benchmarks/results/linear-times-*.json`)."""
LEVEL_SECONDS = 1e-3
"""Seconds in which a core scores a level for a text (assumed)."""


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
    parts = [-(-of_level // rows_of_range(sum(rows))) for of_level in rows]
    is_divided = sum(parts) > FEW_RANGES
    seconds = entries / COUNTED_PER_SECOND
    if terms:
        seconds += terms * math.log2(max(2, sizes[-2])) / CLUSTERED_PER_SECOND
    fitting = fit_seconds(sizes, entries, counts)
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


def fit_seconds(sizes: Sequence[int], entries: int, counts: Counts) -> float:
    """Estimate the seconds in which a core fits the classifiers of all nodes; arguments of `range_costs`."""
    return sum(_level_seconds(above, below, entries, counts) for above, below in pairwise((1, *sizes)))


def _level_seconds(parents: int, nodes: int, entries: int, counts: Counts) -> float:
    """Estimate the seconds in which a core fits the classifiers of a level, given the nodes of the level above."""
    documents = counts.documents if parents == 1 else min(counts.documents, COMMON * counts.pairs / parents)
    positive = min(documents, counts.pairs / nodes * (COMMON if nodes < counts.labels else 1))
    working_set = min(documents, 3 * positive + SIMILAR + SAMPLED)
    # The square fits the counts of the six corpora: labels with more texts are harder to tell from their siblings.
    violating = min(positive**2 / 2, max(working_set, MOST_VIOLATING), documents - working_set)
    rows = nodes * (working_set + min(1.0, violating / REFITTED) * (working_set + violating))
    row = entries / counts.documents + ROW_ENTRIES
    products = 2 * nodes * documents * row  # similarities, then margins
    return rows * row / ENTRIES_PER_SECOND + products / PRODUCTS_PER_SECOND + NODE_SECONDS * nodes


def _siblings_bytes(parents: int, nodes: int, entries: int, counts: Counts) -> int:
    """Estimate the bytes of the margins, weights and working sets of siblings, given their level's number of nodes."""
    documents = counts.documents if parents == 1 else min(counts.documents, counts.pairs / parents)
    features = min(counts.words, entries / counts.documents * math.sqrt(documents))
    margins = min(MOST_MARGINS, nodes / parents * max(documents, features))
    working_set = 3 * min(documents, counts.pairs / nodes) + SIMILAR + SAMPLED
    working_set = min(documents, working_set + max(working_set, MOST_VIOLATING))
    return round(4 * MARGIN_ARRAYS * margins + FITTING_BYTES * working_set * entries / counts.documents)
