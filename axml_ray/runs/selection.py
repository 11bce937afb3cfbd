"""Choice of members' settings and weights by documents held out from training (preset `auto`).

Validation documents are few. Members that are fitted in seconds can rank training documents instead: they are fitted on
all but one fold of these and rank that fold. Settings are tried one after the other (`presets.TRIED`); another value
than the preset's is taken if it gains more nDCG@5 than a standard error.

- Of a small corpus, `HELD_OUT` of the `FOLDS` folds are ranked, two fifths of the documents. Features are shared, so
  they are compared by the weighted sum of all members (`presets.TRIED_TOGETHER`). If it has fewer than
  `ENOUGH_VALIDATION` validation documents, the weights of these kinds are then fitted like those of a combiner
  (`ensemble/weights.py`), and networks keep theirs.
- Of a larger one, other settings are tried (`presets.TRIED_IF_LARGE`), by one label tree on documents of at most
  `SAMPLE_WORDS` words together, of which one fold of `FOLD_DOCUMENTS` is ranked. The best cost falls with the number of
  documents, so all are used if they are short.

A fold is fitted by `fit_run`, as a run of its own whose corpus has other splits, and of whose labels those are trained
that have documents in the others. Were more of them trained, a label could be found by its name alone.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.core.ragged import Ragged
from axml_ray.core.run_layout import RunLayout
from axml_ray.core.strings import Strings
from axml_ray.core.topk import TopK, weighted_sum
from axml_ray.corpus.counts import Counts, counts_of
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.store import Corpus, Split
from axml_ray.ensemble.combiner import MemberWeights, Validation
from axml_ray.ensemble.weights import MEASURED, FittedWeights, choose
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.members.linear_tree import levels_of_clusters
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment, changed, fingerprint, with_choices
from axml_ray.settings.members import kinds
from axml_ray.settings.presets import MOST_FLAT_LABELS, TRIED, TRIED_IF_LARGE, TRIED_TOGETHER, Choice, is_given
from axml_ray.tree.halving import MapFunction

FEWEST_DOCUMENTS, MOST_DOCUMENTS, ENOUGH_VALIDATION = 1_000, 20_000, 1_000
"""Least number of training documents of a selection, largest number of a small corpus, and number of validation
documents from which weights are not fitted on training documents."""
FOLDS, HELD_OUT = 5, 2
SAMPLE_WORDS, FOLD_DOCUMENTS = 1 << 24, 10_000
"""Number of words of the training documents of a larger corpus that are used, and of documents of a fold of these."""
FEATURE_GAIN = 0.005
"""nDCG@5 that further features have to gain beyond a standard error: all members take more time and memory by them."""
RANKED = 30
"""Number of labels that held-out documents are ranked for."""


@dataclass(frozen=True)
class Fold(Corpus):
    """A corpus whose `valid` split is one fold of its training documents, and whose `train` split is the others.

    Its labels are those of the whole corpus, with numbers of its own: first those with documents in its `train` split.
    Their TF-IDF centroids, by which label trees are built, are those of the whole corpus.
    """

    documents_used: int | None
    folds: int
    number: int

    def documents_of(self, name: str) -> Split:
        """Load a split with the label ids of the whole corpus; without documents of its validation and test splits."""
        return self._train.take(np.flatnonzero(self._is_held_out == (name == "valid")))

    def split(self, name: str) -> Split:
        """Load a split with the label ids of the fold."""
        split = self.documents_of(name)
        rows = np.repeat(np.arange(len(split)), split.labels.lengths)
        ids = np.argsort(self.label_order)[split.labels.values].astype(np.int32)
        return Split(split.tokens, Ragged(ids[np.lexsort((ids, rows))], split.labels.offsets))

    @property
    def trained(self) -> int:
        """Number of labels with documents in `train`."""
        return int(np.count_nonzero(self.label_counts))

    @cached_property
    def labels(self) -> LabelIndex:
        """The labels, by the fold's ids."""
        order, whole = self.label_order, self._whole.labels
        labels, names = (Strings(pa.array(values).take(pa.array(order))) for values in (whole.labels, whole.names))
        return LabelIndex(labels, names, self.label_counts[order])

    def label_features(self) -> sparse.csr_matrix:
        """Load the TF-IDF centroids of the labels, float32 CSR [trained labels, words]."""
        return self._whole.label_features()[self.label_order[: self.trained]]

    def clustering_features(self) -> sparse.csr_matrix:
        """Load what label trees are clustered by, float32 CSR [trained labels, features]."""
        return self._whole.clustering_features()[self.label_order[: self.trained]]

    @cached_property
    def label_order(self) -> np.ndarray:
        """Return the ids in the whole corpus of the fold's labels, int64 [labels]."""
        return np.argsort(self.label_counts == 0, kind="stable")

    @cached_property
    def label_counts(self) -> np.ndarray:
        """Return the number of documents in `train` of each label of the whole corpus, int64 [labels]."""
        return np.bincount(
            self._train.labels.take(np.flatnonzero(~self._is_held_out)).values, minlength=len(self._whole.labels)
        )

    @cached_property
    def _whole(self) -> Corpus:
        return Corpus(self.directory, self.manifest)

    @cached_property
    def _train(self) -> Split:
        return super().split("train").part(self.documents_used)

    @cached_property
    def _is_held_out(self) -> np.ndarray:
        """Return for each training document whether it is in the fold; cached, as a fit reads the splits repeatedly."""
        is_held_out: np.ndarray = fold_of(self._train.tokens, self.folds) == self.number
        return is_held_out


def fold_of(tokens: Ragged, folds: int) -> np.ndarray:
    """Return the fold of each training document, int64 [documents], the same of those with equal words."""
    numbers: dict[bytes, int] = {}
    rows = map(tokens.__getitem__, range(len(tokens)))
    text = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows], dtype=np.int64)
    # Shuffled, since neighbouring documents may be alike; by a fixed seed, so that a run can be repeated.
    return np.random.default_rng(0).permutation(len(numbers))[text] % folds


Job = tuple[Experiment, int]
"""Settings with the members to fit, and the number of the fold."""
MapJobs = Callable[[Callable[[Job], TopK], Iterable[Job]], Iterator[TopK]]


def rank_held_out(job: Job, parallel_map: MapFunction = map) -> TopK:
    """Fit the members of some settings on all folds but one, and rank the documents of that one by their mean.

    `parallel_map` maps parts of the fit of a member over processes that see temporary files of this one.
    """
    settings, number = job
    corpus = Corpus.open(settings.corpus_directory)
    fold = fold_for(settings, corpus, number)
    with tempfile.TemporaryDirectory() as directory:
        run = Run(settings.model_copy(update={"runs": Path(directory), "continue_from": None}), fold)
        ensemble = fit_run(run, parallel_map)
        ranking = ensemble.rank(fold.split("valid").tokens)
    return ranking._replace(labels=np.where(ranking.labels < 0, -1, fold.label_order[ranking.labels]).astype(np.int32))


def is_small(counts: Counts) -> bool:
    """Return whether a run has at most `MOST_DOCUMENTS` training documents."""
    return counts.documents <= MOST_DOCUMENTS


def values_to_try(settings: Experiment, counts: Counts) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return the values to compare by kind of member and setting, without what the user gave or takes too long."""
    if counts.documents < FEWEST_DOCUMENTS:
        return {}
    of_kinds = TRIED if is_small(counts) else TRIED_IF_LARGE
    left_out, chosen = [*settings.given], settings.members.chosen
    if "linear_tree" in chosen:
        is_flat = not levels_of_clusters(settings, chosen["linear_tree"], counts.labels)
        left_out += ["members.linear_tree.flat"] if is_flat or counts.labels > MOST_FLAT_LABELS else []
    return {
        kind: {key: values for key, values in of_kinds[kind].items() if not is_given(key, left_out)}
        for kind in chosen
        if kind in of_kinds
    }


def values_to_try_together(settings: Experiment, counts: Counts) -> dict[str, tuple[Any, ...]]:
    """Return the values to compare by the members of all kinds in `presets.TRIED`, by setting."""
    has_kinds = any(kind in TRIED for kind in settings.members.chosen)
    if not (has_kinds and FEWEST_DOCUMENTS <= counts.documents <= MOST_DOCUMENTS and settings.corpus.label_names):
        return {}
    return {key: values for key, values in TRIED_TOGETHER.items() if not is_given(key, settings.given)}


def fits_weights(settings: Experiment, counts: Counts) -> bool:
    """Return whether the weights of the kinds in `presets.TRIED` are fitted on training documents."""
    of_kinds = [kind for kind in settings.members.chosen if kind in TRIED]
    return (
        FEWEST_DOCUMENTS <= counts.documents <= MOST_DOCUMENTS
        and counts.valid_documents < ENOUGH_VALIDATION
        and settings.ensemble.combiner == "weighted"
        and len(of_kinds) > 1
        and not any(is_given(f"members.{kind}.weight", settings.given) for kind in of_kinds)
    )


def is_needed(settings: Experiment, counts: Counts) -> bool:
    """Return whether there is anything to choose."""
    tried = [*values_to_try(settings, counts).values(), values_to_try_together(settings, counts)]
    return any(tried) or fits_weights(settings, counts)


def settings_of_fits(settings: Experiment, counts: Counts) -> Experiment:
    """Return the settings of the fits: of a larger corpus, those of one label tree on a sample."""
    if is_small(counts):
        return settings
    documents = min(counts.documents, max(MOST_DOCUMENTS + 1, int(SAMPLE_WORDS / counts.tokens)))
    settings = changed(changed(settings, "training.documents", documents), "ensemble.trees", 1)
    if settings.members.chosen["linear_tree"].cluster_size is not None:  # it does not read the networks' tree
        settings = changed(settings, "tree.kind", "random")
    return settings


def fold_for(settings: Experiment, corpus: Corpus, number: int) -> Fold:
    """Return a fold of the training documents of fits."""
    folds = number_of_folds(min(corpus.documents("train"), settings.training.documents or sys.maxsize))
    return Fold(corpus.directory, corpus.manifest, settings.training.documents, folds, number)


def number_of_folds(documents: int) -> int:
    """Return the number of folds of some training documents."""
    return FOLDS if documents <= MOST_DOCUMENTS else max(FOLDS, documents // FOLD_DOCUMENTS)


def planned_fits(settings: Experiment, counts: Counts) -> list[list[tuple[Experiment, Counts]]]:
    """Return the settings of the fits of `select`, as if the first values were the best ones, and sizes of their folds.

    The fits of one list can run at the same time. The fold's sizes have the documents that are ranked as `valid`.
    """
    if not is_needed(settings, counts):
        return []
    of_fits, weights = settings_of_fits(settings, counts), fits_weights(settings, counts)
    documents = min(counts.documents, of_fits.training.documents or sys.maxsize)
    ranked = documents // number_of_folds(documents)
    fold = replace(counts, documents=documents - ranked, valid_documents=ranked)
    held_out = HELD_OUT if is_small(counts) else 1
    trials, together = values_to_try(settings, counts), values_to_try_together(settings, counts)
    tried = [(kind, _tried(of_fits, key, values)[1]) for key, values in together.items() for kind in trials]
    for kind, values_of in trials.items():
        tried += [(kind, _tried(of_fits, key, values)[1]) for key, values in values_of.items()]
        tried += [(kind, [of_fits])] * weights
    rounds, begun = [], set[str]()
    for kind, each in tried:
        fits = [(_alone(fit, kind), fold) for fit in each[kind in begun :] for _ in range(held_out)]
        rounds += [fits] if fits else []
        begun.add(kind)
    return rounds


def select(settings: Experiment, corpus: Corpus, map_jobs: MapJobs = map) -> list[Choice]:
    """Choose settings and weights of the members without networks; what the user gave stays.

    Args:
        settings: the settings, by the preset `auto`.
        corpus: the prepared corpus.
        map_jobs: maps fits over processes.

    Returns:
        The settings that were compared, with the value that was chosen and the scores.
    """
    counts = counts_of(corpus, settings)
    if not is_needed(settings, counts):
        return []
    trials, weights = values_to_try(settings, counts), fits_weights(settings, counts)
    held_out = range(HELD_OUT if is_small(counts) else 1)
    of_fits = settings_of_fits(settings, counts)
    folds = [fold_for(of_fits, corpus, number) for number in held_out]
    truth = Ragged.concatenate(fold.documents_of("valid").labels for fold in folds)
    documents = f"{len(truth):,} held-out training documents"
    before = [settings.members.chosen[kind].weight for kind in trials]
    choices: list[Choice] = []
    rankings: dict[str, list[TopK]] = {kind: [] for kind in trials}  # by the values chosen so far, once there are any

    def rank(kind: str, tried: Sequence[Experiment]) -> list[TopK]:
        """Add the rankings by settings of which only the first, if any, was ranked."""
        known = rankings[kind]
        if missing := [_alone(each, kind) for each in tried[len(known) :]]:
            known += _rank(missing, held_out, map_jobs)
        return known

    def keep_best(key: str, values: Sequence[Any], compared: Sequence[TopK]) -> int:
        """Add the choice of the value whose ranking is best, and return its place."""
        quality = np.stack([ndcg_at(ranking.labels, truth.values, truth.offsets, MEASURED) for ranking in compared])
        needed = FEATURE_GAIN if key.startswith("features.") else 0.0
        chosen = choose(np.vstack([quality[:1], quality[1:] - needed]))
        scores = ", ".join(f"{value} {100 * row.mean():.2f}" for value, row in zip(values, quality, strict=True))
        choices.append(Choice(key, values[chosen], f"nDCG@5 of {documents}: {scores}"))
        return chosen

    for key, alternatives in values_to_try_together(settings, counts).items():
        values, tried = _tried(of_fits, key, alternatives)
        by_value = zip(*(rank(kind, tried) for kind in trials), strict=True)
        chosen = keep_best(key, values, [weighted_sum(of_kinds, before, RANKED) for of_kinds in by_value])
        of_fits = tried[chosen]
        rankings = {kind: [known[chosen]] for kind, known in rankings.items()}
    for kind, values_of in trials.items():
        for key, alternatives in values_of.items():
            if key == "features.lead_letters" and not of_fits.features.lead_words:
                continue  # those of no words
            values, tried = _tried(of_fits, key, alternatives)
            chosen = keep_best(key, values, rank(kind, tried))
            of_fits, rankings[kind] = tried[chosen], [rankings[kind][chosen]]
        if weights:
            rank(kind, [of_fits])
    if weights:
        fitted_counts = np.mean([fold.label_counts for fold in folds], axis=0).astype(np.int64)
        validation = Validation(
            MemberWeights(list(trials), before), [ranking for [ranking] in rankings.values()], truth, fitted_counts
        )
        fitted = FittedWeights.fit(validation, RANKED).kinds
        scores = ", ".join(f"{name} {score:.2f}" for name, score in fitted.scores.items())
        for kind, weight in fitted.weights.items():
            reason = f"nDCG@5 of {documents}: {scores}"
            choices.append(Choice(f"members.{kind}.weight", round(sum(before) * weight, 4), reason))
    return choices


def _tried(settings: Experiment, key: str, alternatives: Iterable[Any]) -> tuple[list[Any], list[Experiment]]:
    """Return the values of a setting that are compared, from that of some settings on, and the settings with each."""
    values = [attrgetter(key)(settings)]
    values += [value for value in alternatives if value not in values]
    return values, [changed(settings, key, value) for value in values]


def _alone(settings: Experiment, kind: str) -> Experiment:
    """Return the settings of a run with the members of one kind and their mean."""
    for other in settings.members.chosen:
        if other != kind:
            settings = changed(settings, f"members.{other}.weight", 0.0)
    if kinds()[kind].load().scope == "run":
        settings = changed(settings, "ensemble.trees", 1)
    return changed(changed(settings, "ensemble.combiner", "mean"), "ensemble.top_labels", RANKED)


def _rank(tried: Sequence[Experiment], held_out: range, map_jobs: MapJobs) -> list[TopK]:
    """Return the rankings of the documents of the held-out folds by each of some settings."""
    ranked = list(map_jobs(rank_held_out, [(each, number) for each in tried for number in held_out]))
    folds = [ranked[start : start + len(held_out)] for start in range(0, len(ranked), len(held_out))]
    return [TopK(*map(np.concatenate, zip(*of_folds, strict=True))) for of_folds in folds]


def selection_key(settings: Experiment, corpus: Corpus) -> str:
    """Return the key of everything that a selection depends on."""
    return fingerprint(
        corpus.fingerprint,
        settings.model_dump(mode="json", include={"seed", "tree", "features", "members", "ensemble"}),
        settings.training.documents,
        sorted(key for key in settings.given if is_given(key, ["features", "members"])),
    )


def keep_selection(layout: RunLayout, key: str, choices: Sequence[Choice]) -> None:
    """Write the choices into the directory of a run, so that a run that is started again does not repeat them."""
    layout.directory.mkdir(parents=True, exist_ok=True)
    write_json(layout.selection, {"key": key, "choices": [asdict(choice) for choice in choices]})


def open_selection(settings: Experiment, corpus: Corpus) -> list[Choice] | None:
    """Read the choices of a run for these settings and this corpus; None if there are none."""
    path = RunLayout(settings.run_directory).selection
    storage.fetch(path)
    try:
        stored = read_json(path)
        is_same = stored["key"] == selection_key(settings, corpus)
        return [Choice(**choice) for choice in stored["choices"]] if is_same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def planned_selection(settings: Experiment, counts: Counts) -> tuple[Experiment, list[Choice]]:
    """Return the settings with the choices of a run, and these; before it starts, a row that says what will come."""
    choices = None
    with suppress(SettingsError):  # the corpus is not prepared yet
        choices = open_selection(settings, Corpus.open(settings.corpus_directory))
    if choices is None and settings.preset == "auto" and is_needed(settings, counts):
        row = Choice("members", "when training starts", "by training documents that are held out")
        return settings, [row]
    return with_choices(settings, choices or []), choices or []
