"""Choice of members' settings by held-out training documents. Run: pytest tests/runs/test_selection.py"""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_corpus import DOCUMENTS, experiment, write_corpus

from axml_ray.core.run_layout import RunLayout
from axml_ray.core.topk import TopK
from axml_ray.corpus.counts import counts_of
from axml_ray.corpus.store import Corpus
from axml_ray.ensemble.weights import FittedWeights
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.members import linear_fit
from axml_ray.runs import selection
from axml_ray.runs.selection import (
    FOLDS,
    HELD_OUT,
    Fold,
    Job,
    fits_weights,
    fold_for,
    fold_of,
    is_needed,
    keep_selection,
    open_selection,
    planned_fits,
    planned_selection,
    rank_held_out,
    select,
    selection_key,
    settings_of_fits,
    values_to_try,
    values_to_try_together,
)
from axml_ray.settings import Experiment, changed, with_choices
from axml_ray.settings.members import members_model
from axml_ray.settings.presets import TRIED, TRIED_IF_LARGE, TRIED_TOGETHER, Choice
from axml_ray.tree.halving import MapFunction

MEMBERS = {
    "network_tree": {"weight": 0.5},
    "linear_tree": {"weight": 0.35, "cost": 4, "cluster_size": 4},
    "knn": {"weight": 0.15},
}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setattr(selection, "FEWEST_DOCUMENTS", 100)
    return write_corpus(tmp_path / "corpora" / "tiny")


@pytest.fixture
def settings(tmp_path: Path) -> Experiment:
    """Settings as the preset `auto` gives them."""
    settings = changed(changed(experiment(tmp_path), "members", members_model()(**MEMBERS)), "preset", "auto")
    settings = changed(settings, "corpus.label_names", tmp_path / "names.tsv")  # the tiny corpus has names
    return changed(changed(settings, "ensemble.combiner", "weighted"), "ensemble.trees", 2).with_given(())


def test_a_fold_divides_the_training_documents(corpus: Corpus) -> None:
    whole = corpus.split("train")
    for documents in (None, 120):
        held_out = []
        for number in range(FOLDS):
            fold = Fold(corpus.directory, corpus.manifest, documents, FOLDS, number)
            train, valid = fold.split("train"), fold.split("valid")
            assert len(train) + len(valid) == (documents or DOCUMENTS["train"])
            assert abs(len(valid) * FOLDS - len(train) - len(valid)) < FOLDS
            held_out.append(valid)
        together = sorted(row.tolist() for part in held_out for row in map(part.tokens.__getitem__, range(len(part))))
        expected = whole.part(documents)
        assert together == sorted(expected.tokens[row].tolist() for row in range(len(expected)))


@pytest.mark.parametrize("documents", [None, 15])
def test_labels_of_a_fold_are_those_of_its_training_documents_first(corpus: Corpus, documents: int | None) -> None:
    whole = corpus.labels
    for number in range(FOLDS):
        fold = Fold(corpus.directory, corpus.manifest, documents, FOLDS, number)
        order, train = fold.label_order, fold.documents_of("train").labels
        assert sorted(order) == list(range(len(whole)))
        assert set(order[: fold.trained]) == set(train.values) and (fold.trained < corpus.trained) == (documents == 15)
        for name in ("train", "valid"):
            of_fold, of_whole = fold.split(name).labels, fold.documents_of(name).labels
            for row in range(len(of_whole)):
                assert sorted(order[of_fold[row]]) == sorted(of_whole[row])
                assert (np.diff(of_fold[row]) > 0).all()
        labels = fold.labels
        assert labels.trained == fold.trained
        np.testing.assert_array_equal(labels.counts, np.bincount(train.values, minlength=len(whole))[order])
        for sequence, expected in ((labels.labels, whole.labels), (labels.names, whole.names)):
            assert list(sequence) == [expected[label] for label in order]
        for part in ("label_features", "clustering_features"):
            expected_rows = getattr(corpus, part)()[order[: fold.trained]]
            assert (getattr(fold, part)() != expected_rows).nnz == 0


def test_labels_without_documents_in_the_other_folds_are_not_ranked(corpus: Corpus, settings: Experiment) -> None:
    """Not even those that a name is a text of, as in a run of these documents alone."""
    settings = changed(changed(settings, "features.names_as_texts", True), "training.documents", 15)
    for other in ("network_tree", "linear_tree"):
        settings = changed(settings, f"members.{other}.weight", 0.0)
    ranked = rank_held_out((changed(settings, "ensemble.combiner", "mean"), 0)).labels
    trained = set(fold_for(settings, corpus, 0).documents_of("train").labels.values)
    assert trained < set(range(corpus.trained)) and set(ranked[ranked >= 0]) <= trained


@pytest.mark.parametrize("kind", TRIED)
def test_held_out_documents_are_ranked(corpus: Corpus, settings: Experiment, kind: str) -> None:
    for other in set(MEMBERS) - {kind}:
        settings = changed(settings, f"members.{other}.weight", 0.0)
    ranking = rank_held_out((changed(settings, "ensemble.combiner", "mean"), 1))
    train = corpus.split("train")
    truth = train.labels.take(np.flatnonzero(fold_of(train.tokens, FOLDS) == 1))
    assert ndcg_at(ranking.labels, truth.values, truth.offsets, 5).mean() > 0.7  # each label has a word of its own


def test_the_parts_of_a_fit_are_tasks_on_its_node(ray_cluster: None, corpus: Corpus, settings: Experiment) -> None:
    """They read the fit's files, which lie on a disk of the node."""
    from axml_ray.cluster.capacity import largest_node
    from axml_ray.cluster.tasks import map_in_tasks, maps_on_node

    def in_parts(job: Job, parallel_map: MapFunction) -> tuple[TopK, list[int]]:
        processes: list[int] = []

        def recorded(work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
            yield from (processes.append(process) for process in parallel_map(partial(process_of, work), parts))

        with pytest.MonkeyPatch.context() as patch:  # in the task's process, which others may use after it
            patch.setattr(linear_fit, "RANGE_ROWS", (1_500, 1_500))  # three nodes
            return rank_held_out(job, recorded), [*processes, os.getpid()]

    def process_of(work: Callable[[Any], Any], part: Any) -> int:
        work(part)
        return os.getpid()

    for other in ("network_tree", "knn"):
        settings = changed(settings, f"members.{other}.weight", 0.0)
    job, memory = (changed(settings, "ensemble.combiner", "mean"), 1), largest_node("memory")  # too much for both
    [(ranking, [*processes, own])] = map_in_tasks(in_parts, [job], memory / 2, parallel_map=maps_on_node(memory))
    assert len(processes) > 4 and own not in processes
    expected = rank_held_out(job)
    np.testing.assert_array_equal(ranking.labels, expected.labels)
    np.testing.assert_array_equal(ranking.scores, expected.scores)


def test_choices_are_among_the_values_and_keep_the_networks_weight(corpus: Corpus, settings: Experiment) -> None:
    choices = select(settings, corpus)
    by_key = {choice.key: choice.value for choice in choices}
    of_kinds = {key for kind in TRIED for key in [*TRIED[kind], f"members.{kind}.weight"]}
    assert by_key.keys() == {*TRIED_TOGETHER, *of_kinds} and choices[0].key in TRIED_TOGETHER
    for options in (TRIED_TOGETHER, *TRIED.values()):
        for key, values in options.items():
            assert by_key[key] in {attrgetter(key)(settings), *values}
    assert by_key["members.linear_tree.weight"] + by_key["members.knn.weight"] == pytest.approx(0.5)
    chosen = with_choices(settings, choices)
    assert chosen.members.network_tree.weight == 0.5 and chosen.members.linear_tree.weight > 0.25


def test_a_better_value_is_taken_and_a_given_one_kept(
    corpus: Corpus, settings: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs close to 0 learn nothing."""
    monkeypatch.setitem(selection.TRIED, "linear_tree", {"members.linear_tree.cost": (1.0,)})
    settings = changed(settings, "members.linear_tree.cost", 1e-6)
    [cost] = [choice for choice in select(settings, corpus) if choice.key == "members.linear_tree.cost"]
    assert cost.value == 1.0
    jobs: list[Job] = []

    def recorded(work, given):
        jobs.extend(given)
        return map(work, given)

    given = settings.with_given({"members.linear_tree.cost", "members.knn.neighbours", "features"})
    choices = {choice.key for choice in select(given, corpus, recorded)}
    assert choices == {"members.linear_tree.weight", "members.knn.weight"}
    assert len(jobs) == 2 * HELD_OUT
    fixed = changed(given, "ensemble.combiner", "calibrated")
    assert select(fixed, corpus) == []
    # As in a run's stored settings, which have all values.
    assert select(settings.with_given({"members.linear_tree", "members.knn", "features"}), corpus) == []


def test_what_is_chosen_depends_on_the_size(
    corpus: Corpus, settings: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = counts_of(corpus, settings)

    def tried() -> list[str]:
        by_kind = values_to_try(settings, counts).values()
        return [*values_to_try_together(settings, counts), *(key for values in by_kind for key in values)]

    everything = [*TRIED_TOGETHER, *(key for values in TRIED.values() for key in values)]
    assert tried() == everything and fits_weights(settings, counts)
    with monkeypatch.context() as patch:
        patch.setattr(selection, "ENOUGH_VALIDATION", 24)
        assert tried() == everything and not fits_weights(settings, counts)
        assert {choice.key for choice in select(settings, corpus)} == set(everything)
    with monkeypatch.context() as patch:
        patch.setattr(selection, "MOST_DOCUMENTS", 299)
        assert tried() == list(TRIED_IF_LARGE["linear_tree"]) and not fits_weights(settings, counts)
        assert is_needed(settings, counts)
        assert not is_needed(settings.model_copy().with_given({"members.linear_tree", "features"}), counts)
        patch.setattr(selection, "MOST_FLAT_LABELS", corpus.trained - 1)
        assert tried() == [key for key in TRIED_IF_LARGE["linear_tree"] if not key.endswith("flat")]
        networks = changed(settings, "members", members_model()(network_tree={"weight": 1.0}))
        assert not is_needed(networks, counts) and planned_fits(networks, counts) == []
        assert not values_to_try_together(networks, counts_of(corpus, networks))
    assert not values_to_try_together(changed(settings, "corpus.label_names", None), counts)
    for already_flat in (("tree.height", 0), ("members.linear_tree.cluster_size", 512)):
        of_kinds = values_to_try(changed(settings, *already_flat), counts)
        assert list(of_kinds["linear_tree"]) == [key for key in TRIED["linear_tree"] if not key.endswith("flat")]
    for fewer in (changed(settings, "training.documents", 99), settings):
        assert is_needed(fewer, counts_of(corpus, fewer)) == (fewer is settings)


@pytest.mark.parametrize("most", [1_000, 199])
@pytest.mark.parametrize("given", [(), ("members.linear_tree",), ("features",), ("features", "members.knn.neighbours")])
def test_the_planned_fits_are_those_of_a_selection(
    corpus: Corpus, settings: Experiment, monkeypatch: pytest.MonkeyPatch, most: int, given: tuple[str, ...]
) -> None:
    """A value that turns out to be better than the first changes settings of later fits, but not their number."""
    monkeypatch.setattr(selection, "MOST_DOCUMENTS", most)
    monkeypatch.setattr(selection, "FEATURE_GAIN", -1.0)  # so that letters of leading words are tried
    settings, rounds = settings.with_given(given), []

    def recorded(work, jobs):
        rounds.append(jobs)
        return map(work, jobs)

    planned = planned_fits(settings, counts_of(corpus, settings))
    select(settings, corpus, recorded)
    assert [len(fits) for fits in planned] == [len(jobs) for jobs in rounds]
    if rounds:
        assert [fit for fit, _ in planned[0]] == [fit for fit, _ in rounds[0]]
        fold = fold_for(rounds[0][0][0], corpus, 0)
        assert len(fold.split("valid")) == pytest.approx(planned[0][0][1].valid_documents, abs=1)
        assert len(fold.split("train")) == pytest.approx(planned[0][0][1].documents, abs=1)


@pytest.mark.parametrize("documents", [None, 120])
def test_weights_are_fitted_with_the_counts_of_the_fits(
    corpus: Corpus, settings: Experiment, monkeypatch: pytest.MonkeyPatch, documents: int | None
) -> None:
    """Those of labels in the documents that a fit had, on average over the folds."""
    fit, given = FittedWeights.fit.__func__, []

    def recorded(kind, validation, *rest, **named):
        given.append(validation.counts)
        return fit(kind, validation, *rest, **named)

    monkeypatch.setattr(FittedWeights, "fit", classmethod(recorded))
    settings = changed(settings, "training.documents", documents)
    select(settings, corpus)
    fits = settings_of_fits(settings, counts_of(corpus, settings))
    folds = [fold_for(fits, corpus, number).documents_of("train").labels.values for number in range(HELD_OUT)]
    mean = np.mean([np.bincount(labels, minlength=len(corpus.labels)) for labels in folds], axis=0)
    assert len(given) == 1 and np.abs(given[0] - mean).max() <= 0.5
    assert given[0].sum() < corpus.labels.counts.sum()


def test_a_large_corpus_is_sampled(corpus: Corpus, settings: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fold of a sample is ranked, by one tree; costs close to 0 learn nothing."""
    monkeypatch.setattr(selection, "MOST_DOCUMENTS", 199)
    monkeypatch.setattr(selection, "FOLD_DOCUMENTS", 25)
    monkeypatch.setitem(selection.TRIED_IF_LARGE, "linear_tree", {"members.linear_tree.cost": (1.0,)})
    settings = changed(settings, "members.linear_tree.cost", 1e-6)
    counts = counts_of(corpus, settings)
    words = int(corpus.split("train").tokens.lengths.sum())
    for share, documents in {2.0: DOCUMENTS["train"], 0.8: round(0.8 * DOCUMENTS["train"]), 0.1: 200}.items():
        monkeypatch.setattr(selection, "SAMPLE_WORDS", round(share * words))
        fits = settings_of_fits(settings, counts)
        assert fits.training.documents == pytest.approx(documents, abs=1) and fits.ensemble.trees == 1
        jobs: list[Job] = []

        def recorded(work, given, jobs=jobs):
            jobs.extend(given)
            return map(work, given)

        [cost] = select(settings, corpus, recorded)
        assert cost.value == 1.0
        assert [(job.training.documents, number) for job, number in jobs] == 2 * [(fits.training.documents, 0)]
        train = corpus.split("train").part(fits.training.documents)
        held_out = int((fold_of(train.tokens, fits.training.documents // 25) == 0).sum())
        assert cost.reason.startswith(f"nDCG@5 of {held_out} held-out") and 20 <= held_out <= 30
    fewer = changed(settings, "training.documents", 210)
    assert settings_of_fits(fewer, counts_of(corpus, fewer)).training.documents <= 210


def test_features_have_to_gain_more_and_are_those_of_later_trials(
    corpus: Corpus, settings: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = changed(settings, "corpus.label_names", None)
    lead = {"features.lead_words": (0, 3), "features.lead_letters": (None, 4)}
    monkeypatch.setitem(selection.TRIED, "linear_tree", {"features.prefix_letters": (3,), **lead})
    jobs: list[Job] = []

    def recorded(work, given):
        jobs.extend(given)
        return map(work, given)

    # None gains half a point here, so those of leading words are not tried without these.
    choices = {choice.key: choice.value for choice in select(settings, corpus, recorded)}
    assert choices["features.prefix_letters"] is None and choices["features.lead_words"] == 0
    assert "features.lead_letters" not in choices
    assert all(job.features.prefix_letters is None for job, _ in jobs if job.members.linear_tree.weight == 0)
    monkeypatch.setattr(selection, "FEATURE_GAIN", -1.0)
    jobs.clear()
    choices = {choice.key: choice.value for choice in select(settings, corpus, recorded)}
    assert (choices["features.prefix_letters"], choices["features.lead_words"]) == (3, 3)
    assert choices["features.lead_letters"] == 4
    of_knn = [job for job, _ in jobs if job.members.linear_tree.weight == 0]
    assert of_knn and all(job.features.prefix_letters == job.features.lead_words == 3 for job in of_knn)
    given = settings.model_copy().with_given({"features.prefix_letters"})
    assert selection_key(given, corpus) != selection_key(settings, corpus)
    assert "features.prefix_letters" not in {choice.key for choice in select(given, corpus)}


def test_stored_choices_are_of_the_same_settings_and_corpus(corpus: Corpus, settings: Experiment) -> None:
    choices = [Choice("members.linear_tree.flat", True, "why"), Choice("members.knn.neighbours", 50, "why")]
    assert open_selection(settings, corpus) is None
    counts = counts_of(corpus, settings)
    planned, [row] = planned_selection(settings, counts)
    assert planned == settings and row.key == "members"
    keep_selection(RunLayout(settings.run_directory), selection_key(settings, corpus), choices)
    planned, rows = planned_selection(settings, counts)
    assert open_selection(settings, corpus) == rows == choices
    assert planned.members.linear_tree.flat and planned.members.knn.neighbours == 50
    assert open_selection(changed(settings, "members.linear_tree.cost", 2.0), corpus) is None
    assert open_selection(changed(settings, "seed", 4), corpus) is None
    assert open_selection(settings.model_copy().with_given({"members.knn.neighbours"}), corpus) is None
    # What it does not read changes nothing: a run that is started again with another one does not select again.
    assert open_selection(settings.model_copy().with_given({"resources.max_failures"}), corpus) == choices


def test_classifiers_without_clusters_are_one_member(corpus: Corpus, settings: Experiment) -> None:
    """One-vs-all, or no more labels than one cluster holds: the members of all trees would be equal."""
    from axml_ray.runs.run import Run

    of_networks = changed(settings, "members.linear_tree.cluster_size", None)
    trees = ["network_tree-0", "network_tree-1", "linear_tree-0", "linear_tree-1", "knn"]
    assert Run(settings, corpus).member_names == Run(of_networks, corpus).member_names == trees
    flat = changed(settings, "members.linear_tree.flat", True)
    one_cluster = changed(settings, "members.linear_tree.cluster_size", 512)
    for one in (flat, one_cluster, changed(of_networks, "tree.height", 0)):
        run = Run(one, corpus)
        assert run.member_names == [name for name in trees if name != "linear_tree-1"]
        assert run.spec("linear_tree-0").weight == pytest.approx(0.35)
    assert Run(flat, corpus).spec("linear_tree-0").key != Run(settings, corpus).spec("linear_tree-0").key
    # A setting that changes nothing is not part of a key: fitted members of earlier versions stay valid.
    assert "flat" not in Run(settings, corpus).spec("linear_tree-0").config.model_dump_json()


def test_a_fit_of_the_combiner_that_ends_early_is_repeated(
    corpus: Corpus, settings: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calibration is part of it, though the combiner alone is needed to rank."""
    from axml_ray.runs import fitting
    from axml_ray.runs.run import Run

    run = Run(changed(settings, "members.network_tree.weight", 0.0), corpus)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fitting, "out_of_fold", interrupted)
        fitting.fit_run(run)
    assert not run.has_combiner()
    fitting.fit_run(run)
    assert run.has_combiner() and run.open_calibration() is not None
