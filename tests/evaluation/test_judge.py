"""Stored predictions judged: the same numbers as measure by measure, and clear errors.

python -m pytest tests/evaluation/test_judge.py
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation.toy_run import DOCUMENTS, LABELS, MEMBERS, WIDTH, write_corpus, write_predictions, write_run

from axml_ray.evaluation.examples import SHOWN, Reason, examples, marked, right_and_wrong
from axml_ray.evaluation.judge import Labels, against, judge
from axml_ray.evaluation.metrics import Scores, ndcg_at, propensities
from axml_ray.evaluation.predictions import Predictions
from axml_ray.settings import EvaluationSettings, SettingsError

SETTINGS = EvaluationSettings(resamples=50)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("judge")
    write_corpus(home)
    write_run(home)
    write_run(home, "worse", skill=0.2, seed=2)
    return home


@pytest.fixture(scope="module")
def labels(home):
    return Labels(pq.read_table(home / "corpora/toy/labels.parquet")["count"].to_numpy(), 300)


def opened(home, run="run"):
    return Predictions.open(home / "runs" / run / "predictions" / "test")


@pytest.fixture(scope="module")
def found(home, labels):
    return judge(opened(home), labels, SETTINGS)


def columns(home, who):
    table = pq.read_table(home / "runs/run/predictions/test")
    return np.array(table[f"{who}.labels"].to_pylist()), table["labels"].to_pylist(), table


def test_scores_are_those_of_the_columns(home, labels, found):
    for who, got in (("ensemble", found["ensemble"]), *found["members"].items()):
        tops, truths, _ = columns(home, who)
        scores = Scores(1 / propensities(labels.counts, 300))
        flat = np.array([label for true in truths for label in true], np.int32)
        scores.add(tops, flat, np.cumsum([0, *map(len, truths)]))
        assert got == pytest.approx(scores.result())
    assert found["documents"] == scores.documents == sum(map(bool, truths)) < DOCUMENTS
    json.dumps(found, allow_nan=False)


def test_intervals_are_around_the_scores_and_come_again(home, labels, found):
    for scores, around in (
        (found["ensemble"], found["intervals"]["ensemble"]),
        (found["members"][MEMBERS[1]], found["intervals"]["members"][MEMBERS[1]]),
        (found["bands"][1]["ensemble"], found["bands"][1]["intervals"]["ensemble"]),
    ):
        assert around.keys() == scores.keys()
        assert all(low <= high for low, high in around.values())
        assert sum(low <= scores[name] <= high for name, (low, high) in around.items()) >= len(scores) - 2
    assert judge(opened(home), labels, SETTINGS) == found


def test_bands_are_scored_by_their_labels_alone(home, labels, found):
    tops, truths, _ = columns(home, MEMBERS[0])
    assert [band["name"] for band in found["bands"]] == ["head", "torso", "tail", "unseen"]
    assert sum(band["labels"] for band in found["bands"]) == LABELS
    for band in found["bands"]:
        inside = {
            label
            for label, count in enumerate(labels.counts)
            if count >= band["from"] and (band["to"] is None or count <= band["to"])
        }
        recalls = []
        for top, true in zip(tops.tolist(), truths, strict=True):
            own = [label for label in true if label in inside]
            best = [label for label in top if label in inside][:5]
            if own:
                recalls.append(len(set(own) & set(best)) / len(own))
        assert band["documents"] == len(recalls)
        assert band["members"][MEMBERS[0]]["R@5"] == pytest.approx(100 * np.mean(recalls))
    assert found["bands"][3]["ensemble"]["P@1"] == 0


def test_a_band_that_no_document_has_is_no_error(home, labels):
    found = judge(opened(home), labels, EvaluationSettings(resamples=20, head_from=10_000))
    assert found["bands"][0]["documents"] == 0 and "ensemble" not in found["bands"][0]


def test_the_ensembles_scores_are_taken_as_probabilities(home, found):
    _, truths, table = columns(home, "ensemble")
    score = np.array(table["ensemble.scores"].to_pylist())
    assert sum(found["calibration"]["labels"]) == score.size == DOCUMENTS * WIDTH
    assert found["calibration"]["labels"] == np.histogram(score, 20, (0, 1))[0].tolist()
    assert sum(row["true"] for row in found["frequency"]) == sum(map(len, truths))


def test_a_better_run_is_better_in_any_order_of_documents(home, labels, tmp_path):
    one, worse = opened(home), opened(home, "worse")
    found = against(one, worse, labels, SETTINGS)
    expected = judge(one, labels, SETTINGS)["ensemble"]["P@3"] - judge(worse, labels, SETTINGS)["ensemble"]["P@3"]
    assert found["P@3"]["difference"] == pytest.approx(expected)
    assert expected > 10 and found["P@3"]["p"] == pytest.approx(1 / 51) and found["P@3"]["interval"][0] > 0
    table = pq.read_table(worse.directory)
    pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), tmp_path / "0.parquet")
    shuffled = against(one, Predictions.open(tmp_path), labels, SETTINGS)
    for name in ("P@3", "PSP@5"):
        assert shuffled[name]["interval"] == pytest.approx(found[name]["interval"])
        assert [shuffled[name][what] for what in ("difference", "p")] == pytest.approx(
            [found[name][what] for what in ("difference", "p")]
        )


def test_predictions_of_other_documents_are_not_compared(home, labels, tmp_path):
    write_corpus(tmp_path, seed=9)
    write_run(tmp_path)
    with pytest.raises(SettingsError, match="the documents have other labels; compare runs on the same corpus"):
        against(opened(home), opened(tmp_path), labels, SETTINGS)
    write_predictions(tmp_path / "valid-run", tmp_path / "corpora/toy", "valid", skill=0.5, seed=0)
    other = Predictions.open(tmp_path / "valid-run/predictions/valid")
    with pytest.raises(SettingsError, match="predictions of other documents"):
        against(opened(home), other, labels, SETTINGS)


def test_broken_predictions_are_named(home, labels, tmp_path):
    assert Predictions.open(tmp_path) is None
    path = tmp_path / "000000.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(SettingsError, match=r"000000\.parquet: cannot be read"):
        Predictions.open(tmp_path)
    table = pq.read_table(home / "runs/run/predictions/test")
    pq.write_table(table.drop_columns("ensemble.scores"), path)
    with pytest.raises(SettingsError, match=r"ensemble.scores missing"):
        Predictions.open(tmp_path)
    with pytest.raises(SettingsError, match="there are 30 labels; are they of another corpus"):
        judge(opened(home), Labels(labels.counts[:30], 300), SETTINGS)
    bare = table.set_column(1, "labels", pa.array([[]] * len(table), pa.list_(pa.int32())))
    pq.write_table(bare, path)
    with pytest.raises(SettingsError, match="none of the documents has a true label"):
        judge(Predictions.open(tmp_path), labels, SETTINGS)
    with pytest.raises(SettingsError, match="propensities need 3 or more documents"):
        judge(opened(home), Labels(labels.counts, 2), SETTINGS)


def test_best_and_worst_documents(home):
    tops, truths, _ = columns(home, "ensemble")
    flat = np.array([label for true in truths for label in true], np.int32)
    score = ndcg_at(tops, flat, np.cumsum([0, *map(len, truths)]), 5)
    right, wrong = right_and_wrong(opened(home), seed=0)
    assert len(right) == len(wrong) == SHOWN and not set(right) & set(wrong)
    assert all(truths[row] for row in right + wrong)
    rest = [row for row in range(DOCUMENTS) if truths[row] and row not in right + wrong]
    assert score[right].min() >= score[rest].max() and score[wrong].max() <= score[rest].min()
    assert right_and_wrong(opened(home), seed=0) == (right, wrong)


def test_an_example_tells_what_was_guessed_and_missed(home, labels):
    tops, truths, table = columns(home, "ensemble")
    names = [f"name {i}" for i in range(LABELS)]
    row = next(i for i, true in enumerate(truths) if any(label >= LABELS - 2 for label in true))
    asked = []

    def explain(text, labels):
        asked.append((text, labels))
        words = [[("tail", 6, 10, 1.0), ("long", 0, 4, 4.0), ("over", 2, 8, 9.0)], [("tail", 6, 10, 2.0)], []]
        return [Reason(each, [("knn", 0.5)]) for each in words]

    other, found = examples(opened(home), [0, row], ["", "long, tail"], names, labels.counts, explain)
    assert found.id == f"test-{row}" and other.id == "test-0"
    assert [guess.name for guess in found.guesses] == [f"name {label}" for label in tops[row, :5]]
    assert [guess.true for guess in found.guesses] == [label in truths[row] for label in tops[row, :5]]
    assert found.guesses[0].score == pytest.approx(table["ensemble.scores"][row][0].as_py())
    missed = [(f"name {label}", labels.counts[label]) for label in truths[row] if label not in tops[row, :5]]
    assert list(found.missed) == missed and missed
    # Nothing is asked of a document without a text.
    assert asked == [("long, tail", tops[row, :3].tolist())]
    assert [(piece.text, piece.weight) for piece in found.guesses[0].pieces] == [
        ("long", pytest.approx(4 / 9)),
        (", ", 0),
        ("tail", pytest.approx(1 / 9)),
        ("", 0),
    ]
    assert [piece.weight for piece in found.guesses[1].pieces] == [0, 1, 0]
    assert [piece.weight for piece in found.guesses[2].pieces] == [0]
    assert found.guesses[3].pieces == found.guesses[4].pieces == ()
    assert [guess.contributions for guess in found.guesses] == [(("knn", 0.5),)] * 3 + [()] * 2


def test_marked_words_make_the_text_again():
    text = "one two three " * 200
    words = [(word, at, at + len(word), 1.0) for word, at in (("one", 0), ("two", 4), ("out", 9_999), ("cut", 1_199))]
    pieces = marked(text, words)
    assert "".join(piece.text for piece in pieces) == text[:1200]
    assert [piece.text for piece in pieces if piece.weight] == ["one", "two"]
    assert all(not piece.weight for piece in marked(text, [("one", 0, 3, 0.0)]))
