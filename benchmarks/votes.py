"""How the votes of a run's trees are best joined: ways to do it, scored on its validation documents.

    python benchmarks/votes.py --run runs/quality-docstrings-seed0 [--json PATH]

The members are the networks and, where the run has them, the linear classifiers of each tree; each gives its best
`ensemble.top_labels` labels of a document. What a way must learn it learns from one half of the documents and is scored
on the other, in turns. The test split isn't read.

- `networks`, `classifiers`: the mean of these members alone.
- `mean`: of both, by `linear.weight`: what runs do without a correction or a learned join.
- `geometric`: the mean of the logarithms of both means.
- `calibrated`: as `mean`, each of both means first turned into a probability by isotonic regression.
- `weights`: each member has a weight of its own, by coordinate ascent on nDCG@5.
- `stacked`: logistic regression on the logits of all members.
- `frequency`: `ensemble.frequency_correction` of the mean.
- `learned`: `linear.learned_join`, after the correction.

Figures: `mean_P@1`, `mean_nDCG@5` and so on.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from axml_ray.configuration import open_run
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.judge import Labels, inverse_propensity
from axml_ray.evaluation.metrics import Scores, ndcg_at
from axml_ray.evaluation.predictions import Ranking
from axml_ray.evaluation.rankings import hits
from axml_ray.inference.combining import Found, aligned, best_of
from axml_ray.inference.ensemble import open_trees
from axml_ray.inference.frequency import LEAST, FrequencyCorrection, logits_of
from axml_ray.inference.learned_join import LearnedJoin
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, SettingsError

COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
TOP = 100
"""Best labels by the mean from which is learned."""
FACTORS = (0.0, 0.25, 0.5, 0.75, 1.25, 1.5, 2.0)
"""Tried for each member's weight, which begins at 1."""


class MemberVotes:
    """What the members say of some documents: N documents, k labels that any member named, M members.

    Attributes:
        labels: int32 [N, k], -1 for none.
        scores: float64 [N, k, M], 0 where a member didn't name the label.
        true: bool [N, k].
        truth: true labels of each document.
        counts: int [L], training documents of each label.
        linear: how many of the members, the last ones, are linear classifiers.
        share: their share.
    """

    def __init__(self, members: Sequence[Found], truth: Ragged, counts: np.ndarray, linear: int, share: float):
        labels, scores = aligned(*zip(*members, strict=True))
        first = np.argsort(labels < 0, axis=1, kind="stable")[:, : (labels >= 0).sum(axis=1).max(initial=0)]
        self.labels = np.take_along_axis(labels, first, axis=1)
        self.scores = np.take_along_axis(scores, first[..., None], axis=1)
        self.true = hits(self.labels, truth.values, truth.offsets)
        self.truth, self.counts, self.linear, self.share = truth, counts, linear, share

    def take(self, rows: np.ndarray) -> "MemberVotes":
        """Those of some documents."""
        some = MemberVotes.__new__(MemberVotes)
        some.__dict__ |= self.__dict__
        some.labels, some.scores, some.true = self.labels[rows], self.scores[rows], self.true[rows]
        some.truth = self.truth.take(rows)
        return some

    @property
    def networks_mean(self) -> np.ndarray:
        """float64 [N, k]."""
        return self.scores[:, :, : self.scores.shape[2] - self.linear].mean(axis=2)

    @property
    def classifiers_mean(self) -> np.ndarray:
        """float64 [N, k]; zeros where there are none."""
        if not self.linear:
            return np.zeros(self.labels.shape)
        return self.scores[:, :, self.scores.shape[2] - self.linear :].mean(axis=2)

    @property
    def mean(self) -> np.ndarray:
        """float64 [N, k]: of both, by their shares."""
        return (1 - self.share) * self.networks_mean + self.share * self.classifiers_mean

    def ranking(self, scores: np.ndarray, top: int) -> Ranking:
        """The `top` best labels by some scores [N, k]."""
        order = np.argsort(np.where(self.labels >= 0, -scores, np.inf), axis=1, kind="stable")[:, :top]
        labels, best = np.take_along_axis(self.labels, order, 1), np.take_along_axis(scores, order, 1)
        return Ranking(labels, np.where(labels >= 0, best, 0).astype(np.float32), self.truth)


Way = Callable[[MemberVotes, MemberVotes], np.ndarray]
"""Learns from some votes, and scores the labels of others: float64 [N, k]."""


def _calibrated(known: MemberVotes, new: MemberVotes) -> np.ndarray:
    total, there = np.zeros(new.labels.shape), known.labels >= 0
    for mean, share in (("networks_mean", 1 - new.share), ("classifiers_mean", new.share)):
        step = IsotonicRegression(out_of_bounds="clip").fit(getattr(known, mean)[there], known.true[there])
        total += share * step.predict(getattr(new, mean).ravel()).reshape(total.shape)
    return total


def _weights(known: MemberVotes, new: MemberVotes) -> np.ndarray:
    def score(weights: np.ndarray) -> float:
        top = known.ranking(known.scores @ weights, 5).top
        return float(ndcg_at(top, known.truth.values, known.truth.offsets, 5).mean())

    weights = np.ones(known.scores.shape[2])
    best = score(weights)
    for member in [*range(len(weights))] * 2:
        for factor in FACTORS:
            changed = weights.copy()
            changed[member] = factor
            if changed.any() and (found := score(changed)) > best:
                best, weights = found, changed
    return new.scores @ weights


def _stacked(known: MemberVotes, new: MemberVotes) -> np.ndarray:
    there = known.labels >= 0
    model = LogisticRegression(max_iter=1_000).fit(logits_of(known.scores[there]), known.true[there])
    flat = logits_of(new.scores).reshape(-1, new.scores.shape[2])
    return np.asarray(model.decision_function(flat)).reshape(new.labels.shape)


def _corrected(known: MemberVotes) -> FrequencyCorrection:
    return FrequencyCorrection.fit(known.ranking(known.mean, TOP), known.counts, trees=1)


def _frequency(known: MemberVotes, new: MemberVotes) -> np.ndarray:
    return _corrected(known).scores(new.labels, new.mean.astype(np.float32), trees=1).astype(np.float64)


def _learned(known: MemberVotes, new: MemberVotes) -> np.ndarray:
    def means(votes: MemberVotes) -> np.ndarray:
        return np.stack([votes.mean, votes.networks_mean, votes.classifiers_mean], axis=2)

    correction = _corrected(known)
    labels, *best = best_of(known.labels, TOP, *np.moveaxis(means(known), 2, 0))
    join = LearnedJoin.fit(labels, np.stack(best, axis=2), known.truth, known.counts, correction)
    return join.scores(new.labels, means(new), correction)


WAYS: dict[str, Way] = {
    "networks": lambda _, new: new.networks_mean,
    "classifiers": lambda _, new: new.classifiers_mean,
    "mean": lambda _, new: new.mean,
    "geometric": lambda _, new: np.log(new.networks_mean + LEAST) + np.log(new.classifiers_mean + LEAST),
    "calibrated": _calibrated,
    "weights": _weights,
    "stacked": _stacked,
    "frequency": _frequency,
    "learned": _learned,
}
OF_BOTH = ("classifiers", "geometric", "calibrated", "learned")


def main(arguments: Sequence[str] | None = None) -> None:
    """Score, print the table, write the results; an error exits 2 with one message."""
    parser = argparse.ArgumentParser(description="Validation scores of ways to join a run's votes.")
    parser.add_argument("--run", type=Path, required=True, help="a finished run")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/votes-<run name>.json")
    given = parser.parse_args(arguments)
    console = Console()
    try:
        settings = open_run(given.run.absolute())
        corpus = Corpus.open(settings.corpus_directory)
        rows = by_way(votes_of_members(settings, corpus), inverse_of(settings, corpus))
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    about = {"corpus": settings.corpus.name, "split": "valid", "trees": settings.ensemble.trees, "seed": settings.seed}
    console.print(shown(rows))
    figures = {f"{row['way']}_{name}": round(row["scores"][name], 4) for row in rows for name in COLUMNS}
    path = given.json or results_file.RESULTS / f"votes-{given.run.resolve().name}.json"
    results_file.write(path, figures, [row | about for row in rows])
    console.print(Text(f"written to {path}"))


def votes_of_members(settings: Experiment, corpus: Corpus) -> MemberVotes:
    """The votes of a finished run's members on its validation documents.

    Raises:
        SettingsError: it isn't finished.
    """
    use_threads(results_file.cores())
    valid, top = corpus.split("valid"), settings.ensemble.top_labels
    networks, classifiers = [], []
    for tree in open_trees(settings, corpus):
        if tree.linear is None:
            networks.append(tree.predict(valid.tokens, top))
            continue
        by_networks, by_classifiers = tree.by_members(valid.tokens, top)
        networks.append(by_networks)
        classifiers.append(by_classifiers)
    share = settings.linear.weight
    return MemberVotes([*networks, *classifiers], valid.labels, corpus.labels.counts, len(classifiers), share)


def inverse_of(settings: Experiment, corpus: Corpus) -> np.ndarray:
    """Inverse propensities of a run's labels."""
    return inverse_propensity(Labels(corpus.labels.counts, corpus.documents("train")), settings.evaluation)


def by_way(votes: MemberVotes, inverse: np.ndarray) -> list[dict[str, Any]]:
    """A row a way: `way`, `documents`, `scores` in percent by measure."""
    order = np.random.default_rng(0).permutation(len(votes.labels))
    halves = [np.sort(half) for half in np.array_split(order, 2)]
    rows = []
    for name, way in WAYS.items():
        if name in OF_BOTH and not votes.linear:
            continue
        scores = Scores(inverse)
        for known, new in (halves, halves[::-1]):
            there = votes.take(new)
            top = there.ranking(way(votes.take(known), there), TOP).top
            scores.add(top, there.truth.values, there.truth.offsets)
        rows.append({"way": name, "documents": len(votes.labels), "scores": scores.result()})
    return rows


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table for a rich console."""
    table = Table("", *COLUMNS, box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        table.add_row(row["way"], *(f"{row['scores'][name]:.2f}" for name in COLUMNS))
    return table


if __name__ == "__main__":
    main()
