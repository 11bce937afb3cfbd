"""Trees as Ray tasks with Ray Train workers, on a real cluster in this process."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import synthetic

from axml_ray.configuration import load, open_run
from axml_ray.corpus.prepare import prepare
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.predictions import Predictions
from axml_ray.evaluation.rankings import hits
from axml_ray.experiment import fit_votes, run
from axml_ray.inference.batch import ballots
from axml_ray.inference.combining import Ballot, Votes, combine
from axml_ray.inference.ensemble import Ensemble, open_trees, votes_of
from axml_ray.inference.frequency import Coefficients
from axml_ray.judging import evaluate, report_path
from axml_ray.linear.classifiers import LinearTree
from axml_ray.linear.name_matches import NameMatches, trie_of
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, SettingsError
from axml_ray.training.ensemble import build_trees, train_ensemble


def states(settings: Experiment) -> dict[str, tuple[int, int]]:
    """Every level's weights, by what changes when they are written again."""
    paths = sorted(settings.run_directory.glob("tree-*/level-*/model.safetensors"))
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def records(settings: Experiment, tree: int) -> list[dict]:
    lines = (settings.run_directory / f"tree-{tree}" / "training.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def log_likelihood(votes: Votes, of_trees: Sequence[Ballot], truth: Ragged) -> float:
    labels, scores = votes.ranking(of_trees)
    true, there = hits(labels, truth.values, truth.offsets), labels >= 0
    chance = (scores.astype(np.float64) / len(of_trees)).clip(1e-6, 1 - 1e-6)
    return float(np.log(np.where(true, chance, 1 - chance))[there].mean())


def test_trees_that_cannot_be_built_are_one_line(ray_cluster: None, tmp_path: Path) -> None:
    """As on a node that doesn't see the directory of the corpus."""
    settings = load(None, **synthetic.experiment(tmp_path))
    corpus = prepare(settings.corpus, settings.corpus_directory)
    shutil.move(settings.corpus_directory, tmp_path / "elsewhere")
    with pytest.raises(RuntimeError) as raised:
        build_trees(settings, corpus)
    said = str(raised.value)
    assert said.startswith(f"the label trees could not be built: {settings.corpus_directory}: no prepared corpus")
    assert "\n" not in said


def test_main_job_learns_votes_and_never_trains_a_finished_level_twice(ray_cluster: None, tmp_path: Path) -> None:
    training = {"epochs": [12], "learning_rate": 0.02}
    settings = load(None, **synthetic.experiment(tmp_path, training=training, ensemble={"trees": 1}))
    metrics = run(settings)
    assert json.loads((settings.run_directory / "metrics.json").read_text())["ensemble"]["P@1"] == pytest.approx(
        metrics["ensemble"]["P@1"], abs=1e-3
    )
    assert metrics["documents"] == 60
    assert len(metrics["trees"]) == 1
    # 40 labels, each with a word of its own: chance is under 6 percent.
    assert metrics["ensemble"]["P@1"] > 30
    before = states(settings)
    assert len(before) == 2
    # A level is lost, and another tree is wanted: only these are trained.
    lost = settings.run_directory / "tree-0" / "level-2"
    (lost / "level.json").unlink()
    more = load(None, **synthetic.experiment(tmp_path, training=training))
    again = run(more)
    after = states(settings)
    assert {path for path in before if before[path] != after[path]} == {str(lost / "model.safetensors")}
    assert len(after) == 4
    assert again["trees"][0] == metrics["trees"][0]
    assert "Validation nDCG@5 of level 2" in report_path(more).read_text()
    assert "words it looked at" in report_path(more).read_text()  # its corpus keeps texts, its networks have attention
    # Without stored predictions, the run is judged by new ones.
    shutil.rmtree(more.run_directory / "predictions")
    judged = evaluate(open_run(more.run_directory), Corpus.open(more.corpus_directory))
    assert judged["ensemble"] == pytest.approx(again["ensemble"]) and judged["seconds"]["train"] > 0
    with pytest.raises(SettingsError, match=r"network\.hidden.*choose another --name"):
        run(load(None, **synthetic.experiment(tmp_path, network={"hidden": 8})))
    # Other texts would be trained over what is there.
    after, [train] = states(settings), more.corpus.train
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(SettingsError, match=r"was begun with another corpus .* choose another --name and --corpus"):
        run(more)
    assert states(settings) == after
    assert Corpus.open(more.corpus_directory).documents("test") == judged["documents"]


def test_linear_classifiers_vote_and_are_fitted_once(ray_cluster: None, tmp_path: Path) -> None:
    def files() -> dict[str, int]:
        return {path.parent.name: path.stat().st_ino for path in runs.glob("tree-*/linear.safetensors")}

    def stored() -> np.ndarray:
        predictions = Predictions.open(runs / "predictions" / "valid")
        assert predictions is not None
        return np.concatenate([one.scores for one in predictions.read("ensemble")])

    names = tmp_path / "names.tsv"
    names.write_text("".join(f"label {label}\town{label}\n" for label in range(synthetic.LABELS)))
    texts = {**synthetic.write(tmp_path / "texts"), "label_names": str(names)}

    def small(**groups: dict[str, object]) -> Experiment:
        return load(None, **synthetic.experiment(tmp_path, training={"epochs": [1]}, **groups) | {"corpus": texts})

    settings = small(linear={"weight": 0.5})
    runs = settings.run_directory
    metrics = run(settings)
    # Each label has a word of its own, which is all that a linear classifier needs; an epoch teaches networks little.
    assert metrics["ensemble"]["P@1"] > 80
    before = files()
    assert set(before) == {"tree-0", "tree-1"}
    (runs / "tree-1" / "linear.safetensors").unlink()
    assert run(settings)["ensemble"] == pytest.approx(metrics["ensemble"])
    after = files()
    assert after["tree-0"] == before["tree-0"] and after.keys() == before.keys()
    corpus = Corpus.open(settings.corpus_directory)
    valid, plain = evaluate(settings, corpus, "valid"), stored()
    # What corrects its scores may come later; nothing is trained for it.
    weights, given = states(settings), {"trees": 2, "top_labels": 10, "frequency_correction": True}
    corrected = small(linear={"weight": 0.5}, ensemble=given)
    again = run(corrected)
    assert again["trees"] == metrics["trees"] and again["seconds"]["train"] > metrics["seconds"]["train"]
    assert files() == after and states(settings) == weights and not (runs / "uncorrected").exists()
    # What had been predicted before is by other scores.
    assert evaluate(settings, corpus, "valid")["ensemble"] == valid["ensemble"]
    np.testing.assert_allclose(stored(), plain, rtol=1e-5)
    evaluate(corrected, corpus, "valid")
    assert not np.isclose(stored(), plain, rtol=1e-2).all()
    correction = votes_of(corrected, corpus).correction
    predictions = Predictions.open(runs / "predictions" / "test")
    assert correction is not None and correction.coefficients != Coefficients() and predictions is not None
    for best, *of_trees in zip(*(predictions.read(who) for who in ("ensemble", "tree-0", "tree-1")), strict=True):
        summed = combine([one.top for one in of_trees], [one.scores for one in of_trees], 10)
        for found, expected in zip((best.top, best.scores), correction.ranked(summed, 2), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    # Nor for learning from the validation documents how networks and classifiers are joined.
    joined = small(linear={"weight": 0.5, "learned_join": True})
    assert run(joined)["ensemble"]["P@1"] > 80 and states(joined) == weights and files() == after
    predictions, votes = Predictions.open(runs / "predictions" / "test"), votes_of(joined, corpus)
    assert predictions is not None and votes.learned is not None and votes.correction is None
    for (of_trees, _), best in zip(ballots(predictions, True), predictions.read("ensemble"), strict=True):
        assert any(ballot.networks.any() and ballot.classifiers.any() for ballot in of_trees)
        for found, expected in zip((best.top, best.scores), votes.ranking(of_trees), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    valid = corpus.split("valid")
    said = Ensemble.open(joined, corpus).find(valid.tokens)
    assert log_likelihood(votes, said, valid.labels) > log_likelihood(replace(votes, learned=None), said, valid.labels)
    both = small(linear={"weight": 0.5, "learned_join": True}, ensemble=given)
    with pytest.raises(SettingsError, match="no learned join of these trees"):  # which starts from the correction
        votes_of(both, corpus)
    fit_votes(both, corpus)
    assert votes_of(both, corpus).correction is not None and not (runs / "uncorrected").exists()
    more = small(linear={"weight": 0.4, "learned_join": True}, ensemble={"trees": 2, "top_labels": 10})
    with pytest.raises(SettingsError, match="no learned join of these trees"):
        votes_of(more, corpus)
    # Nor for the labels of the training texts that are most like a text: here those that share its label's word.
    beside = small(linear={"weight": 0.5, "neighbours": 5, "neighbours_weight": 1.0})
    assert run(beside)["ensemble"]["P@1"] > 80 and states(beside) == weights and files() == after
    laid_out = (runs / "neighbours.safetensors").stat().st_ino
    tree, test = open_trees(beside, corpus)[0], corpus.split("test")
    votes = tree.by_members(test.tokens, 10)[1]
    assert np.mean([row[0] in true for row, true in zip(votes[0], test.labels, strict=True)]) > 0.8
    fewer = small(linear={"weight": 0.5, "neighbours": 3})
    assert run(fewer)["ensemble"]["P@1"] > 80 and (runs / "neighbours.safetensors").stat().st_ino == laid_out
    # Nor for labels whose names stand in the text.
    matched = small(linear={"weight": 0.5, "name_matches_weight": 1.0, "name_stemmer": None})
    run(matched)
    assert states(matched) == weights and files() == after
    matches = open_trees(matched, corpus)[0].linear[0].names
    trie = trie_of(corpus.labels, corpus.tokenizer, matched.corpus.max_tokens, None)
    again = NameMatches.fit(trie, corpus.split("train").tokens, corpus.split("train").labels, corpus.trained, 1.0)
    assert np.array_equal(matches.coefficients, again.coefficients) and matches.named.sum()
    # Nor for leaving the classifiers out, or taking in others, which also read the labels' names.
    networks = small()
    assert run(networks)["ensemble"]["P@1"] < metrics["ensemble"]["P@1"] and states(networks) == weights
    named = small(linear={"weight": 0.5, "label_names": True, "neighbours": 5})
    assert run(named)["ensemble"]["P@1"] > 80 and states(named) == weights
    corpus = Corpus.open(named.corpus_directory)
    fitted = LinearTree.load(runs / "tree-0" / "linear.safetensors", corpus.trained)
    both = fitted.beside(runs / "neighbours.safetensors", 5, 0.2)
    assert both.neighbours is not None
    texts = corpus.documents("train") + corpus.trained
    assert (fitted.features.documents, both.neighbours.labels.shape[0]) == (texts, texts)


def test_two_gloo_workers_train_a_tree(ray_cluster: None, tmp_path: Path) -> None:
    resources = {"workers": 2, "cpus_per_worker": 0.5, "threads": 1}
    settings = load(None, **synthetic.experiment(tmp_path, resources=resources, ensemble={"trees": 1}))
    corpus = prepare(settings.corpus, settings.corpus_directory)
    seconds = train_ensemble(settings, corpus)
    assert set(seconds) == {"cluster", "train"}
    assert len(states(settings)) == 2
    steps = [record["step"] for record in records(settings, 0) if record.get("level") == 1 and "step" in record]
    assert steps[-1] == 2 * -(-corpus.documents("train") // settings.training.batch_size)


def test_a_loss_that_runs_away_ends_the_run_at_its_first_attempt(ray_cluster: None, tmp_path: Path) -> None:
    training = {"learning_rate": 1e30, "precision": "float32"}
    settings = load(None, **synthetic.experiment(tmp_path, training=training, ensemble={"trees": 1}))
    corpus = prepare(settings.corpus, settings.corpus_directory)
    with pytest.raises(RuntimeError, match=r"tree 1 failed: level 1: .*training\.learning_rate"):
        train_ensemble(settings, corpus)
    assert states(settings) == {}


def test_workers_that_never_fit_are_an_error_at_once(ray_cluster: None, tmp_path: Path) -> None:
    settings = load(None, **synthetic.experiment(tmp_path, resources={"workers": 40}))
    corpus = prepare(settings.corpus, settings.corpus_directory)
    with pytest.raises(SettingsError, match=r"40 workers × 0.5 CPU.*resources\.workers"):
        train_ensemble(settings, corpus)


def test_a_tree_without_levels_between_root_and_leaves(ray_cluster: None, tmp_path: Path) -> None:
    training = {"epochs": [12], "learning_rate": 0.02}
    settings = load(
        None, **synthetic.experiment(tmp_path, tree={"height": 0}, training=training, ensemble={"trees": 1})
    )
    metrics = run(settings)
    assert Corpus.open(settings.corpus_directory).trained == 40
    assert [path.name for path in sorted((settings.run_directory / "tree-0").glob("level-*"))] == ["level-1"]
    assert metrics["ensemble"]["P@1"] > 30
