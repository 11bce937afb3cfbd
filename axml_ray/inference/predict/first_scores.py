"""First scores of a run: those of the members without networks, which are fitted minutes before the networks.

They are computed twice: while the run is made, as soon as these members are fitted, from at most `MOST_DOCUMENTS`
documents, so that they come early on a large corpus, too, by the weighted mean; and in the end from the stored
predictions of all documents by the run's combiner, so that the gain by the networks is not that of a better combiner.
"""

from dataclasses import dataclass

import numpy as np
from rich.table import Table

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.corpus.store import rows_of_part
from axml_ray.ensemble.combiner import Mean
from axml_ray.ensemble.ensemble import Combination, Ensemble
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.evaluation.metrics.predictions import Predictions, title_of
from axml_ray.evaluation.metrics.rankings import labels_without, rank_without
from axml_ray.evaluation.reports.report import empty_table
from axml_ray.inference.bundle.export import accuracy
from axml_ray.inference.bundle.model_card import VALIDATION_MEASURES as MEASURES
from axml_ray.members.member import MemberInfo
from axml_ray.runs.run import Run

MOST_DOCUMENTS = 10_000
TABLE_WIDTH = 64


@dataclass(frozen=True)
class FirstScores:
    """The scores of the members without networks on a random part of a split, in percent by measure (`MEASURES`)."""

    corpus: str
    split: str
    documents: int
    """Number of documents that were ranked."""
    of: int
    """Number of documents of the split."""
    members: dict[str, dict[str, float]]
    """Scores of each member."""
    together: dict[str, float]
    """Scores of the members' mean."""

    def table(self, seconds: float) -> Table:
        """Return the scores as a table for a rich console, `seconds` after the start of the command."""
        documents = f"{self.documents:,}" + (f" of {self.of:,}" if self.documents < self.of else "")
        table = empty_table(
            f"{self.corpus} · first scores · {documents} {self.split} documents",
            ("", *MEASURES),
            caption=f"without networks, after {seconds:,.0f} s",
            min_width=TABLE_WIDTH,
        )
        for member, scores in self.members.items():
            table.add_row(title_of(member), *(f"{scores[name]:.2f}" for name in MEASURES))
        table.add_section()
        table.add_row("together", *(f"{self.together[name]:.2f}" for name in MEASURES), style="bold")
        return table


def first_scores(
    run: Run, split: str, most: int = MOST_DOCUMENTS, left_out: Ragged | None = None
) -> FirstScores | None:
    """Rank a random part of a split by the members without networks; a text without a word has no labels, as in use.

    Args:
        run: a run with these members fitted; the others need not be.
        split: name of the split.
        most: largest number of documents to rank.
        left_out: label ids of each document of the split that rankings and true labels are read without.

    Returns:
        The scores; None if there are no such members, or if no document has a label.
    """
    combination = Combination(_without_networks(run), Mean(), run.settings.ensemble.top_labels)
    rows = rows_of_part(run.corpus.documents(split), most)
    documents = run.corpus.split(split).take(rows)
    truth = documents.labels
    pairs = None if left_out is None else left_out.take(rows)
    if pairs is not None:
        truth = labels_without(pairs, truth)
    if not combination.members or not len(truth.values):
        return None

    def scores_of(ranking: TopK) -> dict[str, float]:
        return accuracy(ranking if pairs is None else rank_without(pairs, ranking), truth, run.corpus.labels)

    featurizer = run.open_features() if run.needs_features else None
    members = {info.name: run.open_member(run.spec(info.name), featurizer) for info in combination.members}
    ranked = Ensemble(combination, members).rank_members(documents.tokens)
    has_words = run.corpus.has_words(split)[rows]
    rankings = {name: ranking.of_documents(has_words) for name, ranking in ranked.items()}
    return FirstScores(
        corpus=run.settings.corpus.name,
        split=split,
        documents=len(documents),
        of=run.corpus.documents(split),
        members={name: scores_of(ranking) for name, ranking in rankings.items()},
        together=scores_of(combination.rank(rankings)),
    )


def scores_without_networks(
    run: Run, predictions: Predictions, inverse_propensity: np.ndarray
) -> dict[str, float] | None:
    """Return the scores that stored predictions would have without the networks, in percent by metric.

    Args:
        run: the run.
        predictions: predictions of a split by all members of the run.
        inverse_propensity: 1 / propensity of each label, float64 [L].

    Returns:
        The scores; None if the run has no networks, or nothing else.
    """
    names = [info.name for info in _without_networks(run)]
    if not 0 < len(names) < len(run.member_infos):
        return None
    combination, scores = run.combination(run.open_combiner()), Scores(inverse_propensity)
    for rankings, truth in predictions.read_all(names):
        ranking = combination.rank(dict(zip(names, rankings, strict=True)))
        scores.add(ranking.labels, truth.values, truth.offsets)
    return scores.result()


def _without_networks(run: Run) -> tuple[MemberInfo, ...]:
    return tuple(info for info in run.member_infos if not info.implementation.trained_by_workers)
