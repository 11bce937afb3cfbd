"""Choice of members' settings and weights for a small corpus, by documents held out from training (preset `auto`).

A small corpus has a few hundred validation documents, too few to choose by. Members that are fitted in seconds can rank
training documents instead: they are fitted on all but one fold of these and rank that fold. `HELD_OUT` of the `FOLDS`
folds are ranked, two fifths of the documents. Settings are tried one after the other (`presets.TRIED`); another value
than the preset's is taken if it gains more nDCG@5 than a standard error. Then the weights of these kinds are fitted
like those of a combiner (`ensemble/weights.py`), and networks keep theirs.

A fold is fitted by `fit_run`, as a run of its own whose corpus has other splits.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.core.ragged import Ragged
from axml_ray.core.run_layout import RunLayout
from axml_ray.core.topk import TopK
from axml_ray.corpus.store import Corpus, Split
from axml_ray.ensemble.combiner import MemberWeights, Validation
from axml_ray.ensemble.weights import MEASURED, FittedWeights, choose
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment, changed, fingerprint, with_choices
from axml_ray.settings.members import kinds
from axml_ray.settings.presets import TRIED, Choice, is_given

FEWEST_DOCUMENTS, MOST_DOCUMENTS, ENOUGH_VALIDATION = 1_000, 20_000, 1_000
"""A selection needs at least the first number of training documents, at most the second, since each value takes fits,
and fewer validation documents than the third, which are enough to choose by."""
FOLDS, HELD_OUT = 5, 2
RANKED = 30
"""Number of labels that held-out documents are ranked for."""


@dataclass(frozen=True)
class Fold(Corpus):
    """A corpus whose `valid` split is one fold of its training documents, and whose `train` split is the others."""

    documents_used: int | None
    number: int

    def split(self, name: str) -> Split:
        """Load a split; neither contains a document of the corpus's own validation and test splits."""
        train = super().split("train").part(self.documents_used)
        return train.take(np.flatnonzero((fold_of(train.tokens) == self.number) == (name == "valid")))


def fold_of(tokens: Ragged) -> np.ndarray:
    """Return the fold of each training document, int64 [documents], the same of those with equal words."""
    numbers: dict[bytes, int] = {}
    rows = map(tokens.__getitem__, range(len(tokens)))
    text = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows], dtype=np.int64)
    # Shuffled, since neighbouring documents may be alike; by a fixed seed, so that a run can be repeated.
    return np.random.default_rng(0).permutation(len(numbers))[text] % FOLDS


Job = tuple[Experiment, int]
"""Settings with the members to fit, and the number of the fold."""
MapJobs = Callable[[Callable[[Job], TopK], Iterable[Job]], Iterator[TopK]]


def rank_held_out(job: Job) -> TopK:
    """Fit the members of some settings on all folds but one, and rank the documents of that one by their mean."""
    settings, number = job
    corpus = Corpus.open(settings.corpus_directory)
    fold = Fold(corpus.directory, corpus.manifest, settings.training.documents, number)
    with tempfile.TemporaryDirectory() as directory:
        ensemble = fit_run(Run(settings.model_copy(update={"runs": Path(directory), "continue_from": None}), fold))
        return ensemble.rank(fold.split("valid").tokens)


def is_small(settings: Experiment, corpus: Corpus) -> bool:
    """Return whether training documents can and should be held out to choose by."""
    documents = min(corpus.documents("train"), settings.training.documents or sys.maxsize)
    return FEWEST_DOCUMENTS <= documents <= MOST_DOCUMENTS and corpus.documents("valid") < ENOUGH_VALIDATION


def select(settings: Experiment, corpus: Corpus, map_jobs: MapJobs = map) -> list[Choice]:
    """Choose settings and weights of the members without networks; what the user gave stays.

    Args:
        settings: the settings, by the preset `auto`.
        corpus: the prepared corpus.
        map_jobs: maps fits over processes.

    Returns:
        The settings that were compared, with the value that was chosen and the scores.
    """
    of_kinds = {kind: own for kind, own in settings.members.chosen.items() if kind in TRIED}
    are_given = any(is_given(f"members.{kind}.weight", settings.given) for kind in of_kinds)
    weights = settings.ensemble.combiner == "weighted" and len(of_kinds) > 1 and not are_given
    trials = {
        kind: [name for name in TRIED[kind] if not is_given(f"members.{kind}.{name}", settings.given)]
        for kind in of_kinds
    }
    if not is_small(settings, corpus) or not (weights or any(trials.values())):
        return []
    train = corpus.split("train").part(settings.training.documents)
    folds = fold_of(train.tokens)
    truth = Ragged.concatenate(train.labels.take(np.flatnonzero(folds == number)) for number in range(HELD_OUT))
    documents = f"{len(truth):,} held-out training documents"
    choices, rankings = [], []
    for kind in of_kinds:
        alone = _alone(settings, kind)
        [best] = _rank([alone], map_jobs)
        for name in trials[kind]:
            key = f"members.{kind}.{name}"
            own = getattr(getattr(alone.members, kind), name)
            values = [own, *(value for value in TRIED[kind][name] if value != own)]
            tried = [alone, *(changed(alone, key, value) for value in values[1:])]
            ranked = [best, *_rank(tried[1:], map_jobs)]
            quality = np.stack([ndcg_at(one.labels, truth.values, truth.offsets, MEASURED) for one in ranked])
            chosen = choose(quality)
            alone, best = tried[chosen], ranked[chosen]
            scores = ", ".join(f"{value} {100 * row.mean():.2f}" for value, row in zip(values, quality, strict=True))
            choices.append(Choice(key, values[chosen], f"nDCG@5 of {documents}: {scores}"))
        rankings.append(best)
    if weights:
        before = [own.weight for own in of_kinds.values()]
        validation = Validation(MemberWeights(list(of_kinds), before), rankings, truth, corpus.labels.counts)
        fitted = FittedWeights.fit(validation, RANKED).kinds
        scores = ", ".join(f"{name} {score:.2f}" for name, score in fitted.scores.items())
        for kind, weight in fitted.weights.items():
            reason = f"nDCG@5 of {documents}: {scores}"
            choices.append(Choice(f"members.{kind}.weight", round(sum(before) * weight, 4), reason))
    return choices


def _alone(settings: Experiment, kind: str) -> Experiment:
    """Return the settings of a run with the members of one kind and their mean."""
    for other in settings.members.chosen:
        if other != kind:
            settings = changed(settings, f"members.{other}.weight", 0.0)
    if kinds()[kind].load().scope == "run":
        settings = changed(settings, "ensemble.trees", 1)
    return changed(changed(settings, "ensemble.combiner", "mean"), "ensemble.top_labels", RANKED)


def _rank(tried: Sequence[Experiment], map_jobs: MapJobs) -> list[TopK]:
    """Return the rankings of the held-out documents by each of some settings."""
    ranked = list(map_jobs(rank_held_out, [(each, number) for each in tried for number in range(HELD_OUT)]))
    folds = [ranked[start : start + HELD_OUT] for start in range(0, len(ranked), HELD_OUT)]
    return [TopK(*map(np.concatenate, zip(*of_folds, strict=True))) for of_folds in folds]


def selection_key(settings: Experiment, corpus: Corpus) -> str:
    """Return the key of everything that a selection depends on."""
    return fingerprint(
        corpus.fingerprint,
        settings.model_dump(mode="json", include={"seed", "tree", "features", "members", "ensemble"}),
        settings.training.documents,
        sorted(key for key in settings.given if is_given(key, ["members"])),
    )


def keep_selection(layout: RunLayout, key: str, choices: Sequence[Choice]) -> None:
    """Write the choices into the directory of a run, so that a run that is started again does not repeat them."""
    layout.directory.mkdir(parents=True, exist_ok=True)
    write_json(layout.selection, {"key": key, "choices": [asdict(choice) for choice in choices]})


def open_selection(settings: Experiment, corpus: Corpus) -> list[Choice] | None:
    """Read the choices of a run for these settings and this corpus; None if there are none."""
    try:
        stored = read_json(RunLayout(settings.run_directory).selection)
        is_same = stored["key"] == selection_key(settings, corpus)
        return [Choice(**choice) for choice in stored["choices"]] if is_same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def planned_selection(settings: Experiment) -> tuple[Experiment, list[Choice]]:
    """Return the settings with the choices of a run, and these; before it starts, a row that says what will come."""
    try:
        corpus = Corpus.open(settings.corpus_directory)
    except SettingsError:
        return settings, []
    choices = open_selection(settings, corpus)
    if choices is None and settings.preset == "auto" and is_small(settings, corpus):
        row = Choice("members", "when training starts", "few validation documents: training ones are held out")
        return settings, [row]
    return with_choices(settings, choices or []), choices or []
