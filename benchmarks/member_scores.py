"""Scores with and without each kind of member, and of each combiner, on a run's validation documents.

    python benchmarks/member_scores.py --run runs/docstrings [--threads N] [--json PATH]

Every member of the finished run ranks the validation documents once; each row combines the rankings in another way. The
test split is not read, so the results may be used to choose members, their weights and the combiner. The best
checkpoints of networks were chosen on the same documents, which favours `network_tree` a little.

- `KIND`: the mean of the members of one kind alone.
- `mean`: the weighted mean of all members.
- `without KIND`: the weighted mean of the others.
- `mean of halves`, `calibrated`, `weighted`: two-fold cross-validation, each combiner is fitted on one half of the
  documents and scores the other. The mean has no fit, so its row equals `mean`; compare the others with it.

Figures: `mean_P@1`, `without knn_nDCG@5` and so on, in percent.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray.core.errors import SettingsError
from axml_ray.core.limits import available_cpus
from axml_ray.core.topk import TopK
from axml_ray.ensemble.combiner import COMBINERS, Combiner, Mean, MemberWeights, Validation, combiner_class
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts, inverse_propensity
from axml_ray.network.backends.precision import use_threads
from axml_ray.runs.run import Run

COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
HALVES = 2


@dataclass(frozen=True)
class Evidence:
    """The members' rankings of a split of N documents, with the true labels and propensities.

    Attributes:
        validation: members, rankings, truth and label counts.
        inverse: float64 [L], 1 / propensity of each label.
        k: number of labels of a ranking.
    """

    validation: Validation
    inverse: np.ndarray
    k: int

    @classmethod
    def of_run(cls, run: Run) -> "Evidence":
        """Rank the validation documents with every member of a run.

        Raises:
            SettingsError: there are no validation documents, or a member is missing or broken.
        """
        if not run.corpus.documents("valid"):
            raise SettingsError(f"{run.corpus.directory}: no validation documents; prepare with corpus.valid_documents")
        split, counts = run.corpus.split("valid"), run.corpus.labels.counts
        rankings = run.open_ensemble(Mean).rank_members(split.tokens)
        validation = Validation(run.member_weights, [rankings[spec.name] for spec in run.members], split.labels, counts)
        inverse = inverse_propensity(TrainingCounts(counts, run.corpus.documents("train")), run.settings.evaluation)
        return cls(validation, inverse, run.settings.ensemble.top_labels)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each combination with its scores in percent, by `COLUMNS`."""
        kinds = list(dict.fromkeys(self.validation.members.kinds))
        yield from (self._mean(kind, [kind]) for kind in kinds)
        yield self._mean("mean", kinds)
        if len(kinds) > 1:
            yield from (self._mean(f"without {kind}", [each for each in kinds if each != kind]) for kind in kinds)
        for kind in COMBINERS:
            yield self.cross_fitted("mean of halves" if kind == "mean" else kind, combiner_class(kind))

    def _mean(self, name: str, kinds: Sequence[str]) -> dict[str, Any]:
        """Score the weighted mean of the members of some kinds."""
        members, rankings = self.validation.members, self.validation.rankings
        places = [place for place, kind in enumerate(members.kinds) if kind in kinds]
        chosen = MemberWeights([members.kinds[i] for i in places], [members.weights[i] for i in places])
        return self._scored(name, Mean().rank(chosen, [rankings[i] for i in places], self.k))

    def cross_fitted(self, name: str, combiner: type[Combiner]) -> dict[str, Any]:
        """Score a combiner by two-fold cross-validation."""
        top = TopK.empty(len(self.validation.truth), self.k)
        for rest in range(HALVES):
            rows = np.arange(len(self.validation.truth))
            fit_rows, scored_rows = rows[rows % HALVES != rest], rows[rows % HALVES == rest]
            fitted = combiner.fit(_take(self.validation, fit_rows), self.k)
            ranking = fitted.rank(self.validation.members, _take(self.validation, scored_rows).rankings, self.k)
            top.labels[scored_rows], top.scores[scored_rows] = ranking
        return self._scored(name, top)

    def _scored(self, name: str, ranking: TopK) -> dict[str, Any]:
        scores, truth = Scores(self.inverse), self.validation.truth
        scores.add(ranking.labels, truth.values, truth.offsets)
        result = scores.result()
        return {"combination": name, "scores": {column: result[column] for column in COLUMNS}}


def _take(validation: Validation, rows: np.ndarray) -> Validation:
    """Return the rankings and labels of some documents."""
    rankings = [TopK(each.labels[rows], each.scores[rows]) for each in validation.rankings]
    return Validation(validation.members, rankings, validation.truth.take(rows), validation.counts)


def shown(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows as a table for a rich console."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("combination")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(Text(row["combination"]), *(f"{row['scores'][column]:.2f}" for column in COLUMNS))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Score every combination, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="directory of a finished run")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default: all usable cores")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/members-<run name>.json")
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error("--threads: at least 1")
    use_threads(options.threads)
    run = Run.open(options.run)
    about = {"run": run.settings.name, "corpus": run.settings.corpus.name, "documents": run.corpus.documents("valid")}
    about |= {"weights": {spec.name: spec.weight for spec in run.members}}
    rows = [{**row, **about} for row in Evidence.of_run(run).rows()]
    figures = {f"{row['combination']}_{name}": round(score, 4) for row in rows for name, score in row["scores"].items()}
    path = options.json or results_file.RESULTS / f"members-{options.run.resolve().name}.json"
    results_file.write(path, figures, rows)
    console = Console()
    console.print(shown(rows))
    console.print(Text(f"written to {path}"))


if __name__ == "__main__":
    results_file.run(main)
