"""Checks of a run that continues another one, before anything is trained: is that one trained, do its weights fit?

`continuation.py` has compared the settings by then, from the command line alone.
"""

from axml_ray.core.errors import SettingsError
from axml_ray.runs.run import Run, previous_run
from axml_ray.settings import Experiment
from axml_ray.settings.members import kinds


def check_trained(settings: Experiment) -> None:
    """Check that the run that these settings continue, if any, has all members that training starts from.

    Raises:
        SettingsError: the run or its corpus is missing, or a member is not trained.
    """
    old = previous_run(settings)
    if old is None:
        return
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


def check_corpora(current: Run, old: Run) -> None:
    """Check that the word vectors of a run's corpus have the size of those of the run that it continues.

    Raises:
        SettingsError: they have another dimension.
    """
    before, now = (each.corpus.manifest["word_vector_dimension"] for each in (old, current))
    if before != now:
        key = "corpus.word_dimension" if current.settings.corpus.word_vectors_path is None else "corpus.word_vectors"
        raise SettingsError(
            f"{key}: the word vectors have {now} dimensions, but {before} in {old.layout.directory}, whose weights go "
            "on training; give vectors of the same dimension"
        )


def describe_continuation(current: Run, old: Run) -> str:
    """Return what a run takes from the run that it continues, and what is fitted anew, as one line."""
    kept, labels = old.corpus.trained, current.corpus.trained
    anew = {info.kind.replace("_", " ") for info in current.member_infos if not kinds()[info.kind].load().continues}
    others = f"; fitted anew: {', '.join(sorted(anew))}" if anew else ""
    return f"continuing from {old.layout.directory}: {kept:,} labels with their weights, {labels - kept:,} new{others}"
