"""A run that continues a finished one, with more texts and labels: `axml-ray train --continue RUN`.

The run starts from the settings of the other run, or from another preset that agrees with it in what its weights
depend on. It has a corpus of its own: the other run's training texts and those that are named now. So nothing is
forgotten, and the finished run stays as it is.

First `continued_settings` compares the settings, from the command line alone and without PyTorch. Before anything is
trained, `check_trained` and `check_corpora` then tell whether the finished run is complete and its weights fit.
"""

from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from axml_ray.core.errors import SettingsError
from axml_ray.core.run_layout import RunLayout
from axml_ray.settings import Experiment, changed
from axml_ray.settings.configuration import load, read_settings
from axml_ray.settings.members import kinds
from axml_ray.settings.presets import is_given

if TYPE_CHECKING:
    from axml_ray.runs.run import Run

SUFFIX = "-continued"
KEPT = (
    "tree.kind",
    "tree.height",
    "network.kind",
    "network.hidden",
    "network.fully_connected",
    "network.evidence",
)
"""Settings that the two runs must share: shapes of trees and networks."""


def continued_settings(settings: Experiment, directory: Path) -> Experiment:
    """Return the settings of a run that continues the run in `directory`.

    Args:
        settings: settings of that run, or others, with changes by the user. `corpus.train` may name further texts. If
            `name` is that of the finished run, the new one is called `<name>-continued`; its corpus has the same name.
        directory: absolute path of the finished run.

    Raises:
        SettingsError: the directory is not a run, or a setting does not fit its weights.
    """
    old = read_settings(directory)
    stored = load(RunLayout(directory).settings)
    # `auto` would choose these for the new corpus.
    for key in (*KEPT, "ensemble.trees") if settings.preset == "auto" else ():
        if not is_given(key, settings.given):
            kept = changed(settings, key, attrgetter(key)(old))
            settings = kept.with_given({*settings.given, key})
    _check_settings(settings, old)
    runs = old.runs if settings.runs == stored.runs else settings.runs
    is_old_name = runs == old.runs and settings.name in (old.name, stored.name)
    name = old.name + SUFFIX if is_old_name else settings.name
    more = tuple(place for place in settings.corpus.train if place not in old.corpus.train)
    corpus = settings.corpus.model_copy(
        update={
            "name": settings.corpus.name if settings.corpus.name != old.corpus.name else name,
            "train": (*old.corpus.train, *more),
            "continues": old.corpus_directory,
        }
    )
    return settings.model_copy(update={"name": name, "runs": runs, "corpus": corpus, "continue_from": directory})


def _check_settings(settings: Experiment, old: Experiment) -> None:
    """Raise SettingsError if a setting does not fit the weights or the splits of the finished run."""
    for key in KEPT:
        before, now = attrgetter(key)(old), attrgetter(key)(settings)
        if before != now:
            raise SettingsError(
                f"{key}: is {now}, but {before} in {old.run_directory}, whose weights go on training; "
                "leave it as it was, or train a new run without --continue"
            )
    if settings.ensemble.trees > old.ensemble.trees:
        raise SettingsError(
            f"ensemble.trees: is {settings.ensemble.trees}, but {old.run_directory} has {old.ensemble.trees} trees to "
            "continue from; lower it to that number"
        )
    for name in ("source", "text_field", "title_field"):
        before, now = getattr(old.corpus, name), getattr(settings.corpus, name)
        if before != now:
            raise SettingsError(
                f"corpus.{name}: is {now}, but {before} in {old.run_directory}, whose texts are read again; give the "
                "new texts in the same format"
            )
    share, drawn = settings.corpus.test_share, old.corpus.draws_test
    if settings.corpus.draws_test and (not drawn or share != old.corpus.test_share):
        raise SettingsError(
            f"corpus.test_share: is {share:g}, which would draw test texts from those that {old.run_directory} was "
            "trained on; leave it and corpus.test as they were, or name a file of test texts"
        )


def check_trained(settings: Experiment) -> None:
    """Check that the run that these settings continue, if any, has all members that training starts from.

    Raises:
        SettingsError: the run or its corpus is missing, a member is not trained, or a setting does not fit its weights.
    """
    if settings.continue_from is None:
        return
    from axml_ray.runs.run import Run  # imports PyTorch

    old = Run.open(settings.continue_from)
    _check_settings(settings, old.settings)
    if settings.corpus.continues != old.corpus.directory:
        raise SettingsError(
            f"continue_from: {settings.continue_from} has the corpus {old.corpus.directory}, corpus.continues is "
            f"{settings.corpus.continues}; use axml-ray train --continue, which sets both"
        )
    trained = {(spec.kind, spec.tree) for spec in old.members if spec.is_fitted}
    for kind in settings.members.chosen:
        needed = range(settings.ensemble.trees) if kinds()[kind].load().continues else ()
        if missing := [number + 1 for number in needed if (kind, number) not in trained]:
            raise SettingsError(
                f"continue_from: {settings.continue_from} has no trained {kind.replace('_', ' ')} {missing[0]}; finish "
                "that run with axml-ray train, or continue from another one"
            )


def check_corpora(current: "Run", old: "Run") -> None:
    """Check that the word vectors of a run's corpus have the size of those of the run that it continues.

    Raises:
        SettingsError: they have another dimension.
    """
    before, now = (run.corpus.manifest["word_vector_dimension"] for run in (old, current))
    if before != now:
        key = "corpus.word_dimension" if current.settings.corpus.word_vectors_path is None else "corpus.word_vectors"
        raise SettingsError(
            f"{key}: the word vectors have {now} dimensions, but {before} in {old.layout.directory}, whose weights go "
            "on training; give vectors of the same dimension"
        )


def describe_continuation(current: "Run", old: "Run") -> str:
    """Return what a run takes from the run that it continues, and what is fitted anew, as one line."""
    continued, labels = old.corpus.trained, current.corpus.trained
    anew = {info.kind.replace("_", " ") for info in current.member_infos if not info.implementation.continues}
    fitted_anew = f"; fitted anew: {', '.join(sorted(anew))}" if anew else ""
    return (
        f"continuing from {old.layout.directory}: {continued:,} labels with their weights, "
        f"{labels - continued:,} new{fitted_anew}"
    )
