"""The settings of a run that continues a finished one, with more texts and labels: `axml-ray train --continue RUN`.

The run starts from the settings of the other run, or from a config that agrees with it in what its weights depend on.
It has a corpus of its own: the other run's training texts and those that are named now. So nothing is forgotten, and
the finished run stays as it is.
"""

from functools import reduce
from pathlib import Path
from typing import Any

from axml_ray.core.errors import SettingsError
from axml_ray.core.run_layout import RunLayout
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load, read_settings

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


def continued(settings: Experiment, directory: Path) -> Experiment:
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
    _check(settings, old)
    runs = old.runs if settings.runs == stored.runs else settings.runs
    is_old_name = runs == old.runs and settings.name in (old.name, stored.name)
    name = old.name + SUFFIX if is_old_name else settings.name
    has_own_name = settings.corpus.name != old.corpus.name
    more = tuple(place for place in settings.corpus.train if place not in old.corpus.train)
    corpus = settings.corpus.model_copy(
        update={
            "name": settings.corpus.name if has_own_name else name,
            "train": (*old.corpus.train, *more),
            "continues": old.corpus_directory,
        }
    )
    return settings.model_copy(update={"name": name, "runs": runs, "corpus": corpus, "continue_from": directory})


def _check(settings: Experiment, old: Experiment) -> None:
    """Raise SettingsError if a setting does not fit the weights or the splits of the finished run."""
    for key in KEPT:
        before, now = value_of(old, key), value_of(settings, key)
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
    if settings.corpus.source != old.corpus.source:
        raise SettingsError(
            f"corpus.source: is {settings.corpus.source}, but {old.corpus.source} in {old.run_directory}, whose texts "
            "are read again; give the new texts in the same format"
        )
    share, drawn = settings.corpus.test_share, old.corpus.draws_test
    if settings.corpus.draws_test and (not drawn or share != old.corpus.test_share):
        raise SettingsError(
            f"corpus.test_share: is {share:g}, which would draw test texts from those that {old.run_directory} was "
            "trained on; leave it and corpus.test as they were, or name a file of test texts"
        )


def value_of(settings: Any, key: str) -> Any:
    """Return the value of a setting, given its path such as `tree.height`."""
    return reduce(getattr, key.split("."), settings)
