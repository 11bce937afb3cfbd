"""Fitting of the parts of a run in this process, without Ray.

Ray tasks call these functions, and so can a notebook or a test.
"""

from dataclasses import replace

from axml_ray.ensemble.calibration import Calibration
from axml_ray.ensemble.combiner import Mean, Validation, combiner_class, out_of_fold
from axml_ray.ensemble.ensemble import Ensemble
from axml_ray.members.featurizer import Featurizer, feature_texts
from axml_ray.runs.run import Run
from axml_ray.tree.growth import grow_tree
from axml_ray.tree.halving import MapFunction
from axml_ray.tree.kinds import build_tree
from axml_ray.tree.label_tree import LabelTree


def fit_run(run: Run, parallel_map: MapFunction = map) -> Ensemble:
    """Fit all parts that are missing, one after the other: label trees, featurizer, members, combiner.

    Args:
        run: a run with a prepared corpus.
        parallel_map: maps parts of the fit of a member.
    """
    for number in range(run.settings.ensemble.trees):
        if not run.has_tree(number):
            run.keep_tree(number, build_tree_of_run(run, number))
    if run.needs_features and not run.has_features():
        fit_features(run)
    for spec in run.members:
        if not spec.is_fitted:
            spec.implementation.fit(spec, replace(run.prepare_fit(spec), parallel_map=parallel_map))
            spec.mark_fitted()
    if not run.has_combiner():
        valid = run.corpus.split("valid")
        rankings = run.open_ensemble(Mean).rank_members(valid.tokens)
        in_order = [rankings[spec.name] for spec in run.members]
        fit_combiner(run, Validation(run.member_weights, in_order, valid.labels, run.corpus.labels.counts))
    return run.open_ensemble()


def build_tree_of_run(run: Run, number: int, *, threads: int = 1, parallel_map: MapFunction | None = None) -> LabelTree:
    """Build label tree `number` (from 0) of a run; in one that continues another run, that one's tree grows.

    `threads` and `parallel_map` are those of `build_tree`.
    """
    settings = run.settings.tree
    if run.previous is not None:
        return grow_tree(run.previous.open_tree(number), run.corpus.clustering_features(), settings.cluster_size)
    return build_tree(run.corpus, settings, run.tree_seed(number), threads=threads, parallel_map=parallel_map)


def fit_features(run: Run) -> None:
    """Fit and save the featurizer that members share."""
    corpus, settings = run.corpus, run.settings.features
    train = corpus.split("train").part(run.settings.training.documents)
    texts = feature_texts(corpus, train, settings, run.settings.corpus.max_tokens)
    run.layout.features.parent.mkdir(parents=True, exist_ok=True)
    featurizer = Featurizer.fit(texts.tokens, corpus.tokenizer.words, settings)
    featurizer.save(run.layout.features, run.features_key)


def fit_combiner(run: Run, validation: Validation) -> None:
    """Fit and save the combiner, and the calibration of its scores, on the members' rankings of validation documents.

    The evaluation needs the calibration to tell how reliable probabilities are; a bundle has one of its own, fitted
    with its number format.
    """
    kind, top_labels = combiner_class(run.settings.ensemble.combiner), run.settings.ensemble.top_labels
    combiner = kind.fit(validation, top_labels)
    # On documents that the combiner was not fitted on: scores of the others are too good.
    held_out = out_of_fold(kind, validation, top_labels)
    run.keep_calibration(Calibration.fit(*held_out, validation.truth))
    run.keep_combiner(combiner)  # last: a run that has it is not fitted again
