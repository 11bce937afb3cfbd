"""Fitting of the parts of a run in this process, without Ray.

Ray tasks call these functions, and so can a notebook or a test.
"""

from collections.abc import Callable
from typing import Any

from axml_ray.ensemble.combiner import Combiner, Mean, Validation, combiner_class
from axml_ray.ensemble.ensemble import Ensemble
from axml_ray.members.featurizer import Featurizer, feature_texts
from axml_ray.members.member import Member, MemberSpec
from axml_ray.runs.run import Run
from axml_ray.settings.members import kinds
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.progress import Journal
from axml_ray.tree.growth import grow_tree
from axml_ray.tree.halving import MapFunction
from axml_ray.tree.kinds import build_tree
from axml_ray.tree.label_tree import LabelTree


def fit_run(run: Run) -> Ensemble:
    """Fit all parts that are missing, one after the other: label trees, featurizer, members, combiner.

    Args:
        run: a run with a prepared corpus.
    """
    for number in range(run.settings.ensemble.trees):
        if not run.has_tree(number):
            run.keep_tree(number, build_tree_of_run(run, number))
    if run.needs_features and not run.has_features():
        fit_features(run)
    for spec in run.members:
        if not spec.is_fitted:
            fit_member(run, spec)
            spec.mark_fitted()
    if not run.has_combiner():
        run.keep_combiner(fit_combiner(run))
    return run.open_ensemble()


def build_tree_of_run(run: Run, number: int, *, threads: int = 1, parallel_map: MapFunction | None = None) -> LabelTree:
    """Build label tree `number` (from 0) of a run; in one that continues another run, that one's tree grows.

    Args:
        run: a run with a prepared corpus.
        number: number of the tree, from 0.
        threads: number of threads, as in `build_tree`.
        parallel_map: maps tasks over processes, likewise.
    """
    settings = run.settings.tree
    if run.previous is not None:
        features = run.corpus.label_features()
        return grow_tree(run.previous.open_tree(number), features, settings.cluster_size)
    return build_tree(run.corpus, settings, run.tree_seed(number), threads=threads, parallel_map=parallel_map)


def fit_features(run: Run) -> None:
    """Fit and save the featurizer that members share."""
    corpus, settings = run.corpus, run.settings.features
    train = corpus.split("train").part(run.settings.training.documents)
    texts = feature_texts(corpus, train, settings, run.settings.corpus.max_tokens)
    run.layout.features.parent.mkdir(parents=True, exist_ok=True)
    featurizer = Featurizer.fit(texts.tokens, corpus.tokenizer.words, settings)
    featurizer.save(run.layout.features, run.features_key)


def fit_member(
    run: Run,
    spec: MemberSpec,
    context: DistributedContext | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Fit and save a member, or this worker's part of it; the caller marks it as fitted when all workers are done.

    Args:
        run: a run with its label trees, and with its featurizer if the kind uses features.
        spec: the member.
        context: distributed context; by default this process alone.
        report: called with records of progress; by default they are written to the journal of the label tree.
    """
    spec.directory.mkdir(parents=True, exist_ok=True)
    implementation: type[Member] = kinds()[spec.kind].load()
    context = context or DistributedContext()
    more: dict[str, Any] = {"context": context}
    if implementation.trained_by_workers:
        more["precision"] = run.decided_precision(context)
    if report is not None:
        more["report"] = report
    elif spec.tree is not None:
        more["report"] = Journal(run.layout.tree(spec.tree), tree=spec.tree).write
    implementation.fit(spec, run.fit_inputs(spec, **more))


def fit_combiner(run: Run) -> Combiner:
    """Fit the combiner on the members' rankings of the validation documents."""
    valid, ensemble = run.corpus.split("valid"), run.open_ensemble(Mean)
    rankings = ensemble.rank_members(valid.tokens)
    return combiner_class(run.settings.ensemble.combiner).fit(
        Validation(
            run.member_weights, [rankings[each.name] for each in run.members], valid.labels, run.corpus.labels.counts
        ),
        run.settings.ensemble.top_labels,
    )
