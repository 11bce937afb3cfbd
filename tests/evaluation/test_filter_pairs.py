"""Pairs of a test document and a label that are left out: of rankings, true labels and all that is computed of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation.toy_run import DOCUMENTS, LABELS, write_corpus, write_run

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.evaluation.metrics.filter_pairs import read_pairs
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.runs.run import Run
from axml_ray.settings import changed
from axml_ray.workflow.compare import compare_runs
from axml_ray.workflow.evaluate import evaluate

NAMES = tuple(str(number) for number in range(LABELS))


@pytest.mark.parametrize("content", ["0 2\n2 1\n2 0\n2 1\n1 99\n", "\ufeff0 2\r\n2 1\r\n2 0\r\n2 1\r\n1 99"])
def test_pairs_are_read_by_number(tmp_path: Path, content: str) -> None:
    path = tmp_path / "filter_labels_test.txt"
    path.write_bytes(content.encode())
    pairs = read_pairs(path, 4, ("2", "0", "1"))
    assert [pairs[row].tolist() for row in range(4)] == [[0], [], [1, 2], []]
    assert (pairs.values.dtype, pairs.offsets.dtype) == (np.int32, np.int64)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("0 x\n", "'x'"),
        ("0 1 2\n", "a blank"),
        ("4 1\n", "from 0 to 3"),
        ("-1 1\n", "from 0 to 3"),
        ("0 99\n", "such as 'a'"),
        (None, "not found"),
    ],
)
def test_wrong_files(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "pairs.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=rf"^evaluation.filter_pairs: .*pairs.txt.*{reason}"):
        read_pairs(path, 4, ("a", "1"))


def test_rankings_and_true_labels_are_read_without_the_pairs(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    stored = Predictions.open(write_run(tmp_path) / "predictions" / "test")
    assert stored is not None
    random = np.random.default_rng(0)
    out = {(row, label) for row in range(DOCUMENTS) for label in random.choice(LABELS, 5, replace=False).tolist()}
    (tmp_path / "pairs.txt").write_text("".join(f"{row} {label}\n" for row, label in out))
    pairs = read_pairs(tmp_path / "pairs.txt", DOCUMENTS, NAMES)
    row = 0
    without = replace(stored, left_out=pairs).read(ENSEMBLE)
    for (before, truth), (after, truth_after) in zip(stored.read(ENSEMBLE), without, strict=True):
        assert after.labels.shape == before.labels.shape and after.scores.dtype == np.float32
        for i in range(len(before.labels)):
            kept = [k for k, label in enumerate(before.labels[i].tolist()) if label >= 0 and (row, label) not in out]
            found = after.labels[i] >= 0
            assert after.labels[i][found].tolist() == before.labels[i][kept].tolist()
            assert after.scores[i][found].tolist() == before.scores[i][kept].tolist()
            assert not after.scores[i][~found].any()
            assert truth_after[i].tolist() == [label for label in truth[i].tolist() if (row, label) not in out]
            row += 1
    assert row == DOCUMENTS
    assert replace(stored, left_out=pairs).documents()[1].lengths.sum() < stored.documents()[1].lengths.sum()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose first true labels are all left out."""
    index = write_corpus(tmp_path)
    directory = write_run(tmp_path)
    manifest = read_json(tmp_path / "corpora" / "toy" / "corpus.json")
    summary = {"rejected": {}, "left_out": {"duplicates": 0, "without_label": {"test": 0}}}
    write_json(
        tmp_path / "corpora" / "toy" / "corpus.json",
        manifest | {"settings": {"test": ["t"]}, "summary": summary},
    )
    current = Run.open(directory)
    truth = current.corpus.split("test").labels
    numbers = {label: str(number) for number, label in enumerate(index.labels)}
    numbered = replace(current.corpus.labels, labels=tuple(numbers.values()))
    numbered.save(current.corpus.directory / "labels.parquet")
    manifest = read_json(tmp_path / "corpora" / "toy" / "corpus.json")
    manifest["files"]["labels.parquet"] = (current.corpus.directory / "labels.parquet").stat().st_size
    write_json(tmp_path / "corpora" / "toy" / "corpus.json", manifest)
    lines = [f"{row} {truth[row][0]}\n" for row in range(len(truth)) if len(truth[row])]
    (tmp_path / "pairs.txt").write_text("".join(lines))
    current = Run.open(directory)
    return Run(changed(current.settings, "evaluation.filter_pairs", tmp_path / "pairs.txt"), current.corpus)


def test_an_evaluation_leaves_them_out(run: Run) -> None:
    plain = Run(changed(run.settings, "evaluation.filter_pairs", None), run.corpus)
    all_labels, fewer = evaluate(plain), evaluate(run)
    several = run.corpus.split("test").labels.lengths
    assert all_labels["documents"] == int((several > 0).sum()) and "filter_pairs" not in all_labels
    assert fewer["documents"] == int((several > 1).sum()) and fewer["filter_pairs"] == all_labels["documents"]
    assert fewer["ensemble"]["P@5"] < all_labels["ensemble"]["P@5"]
    assert compare_runs(run, plain, "test")["documents"] == fewer["documents"]


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"test": []}},
        {"summary": {"rejected": {}, "left_out": {"duplicates": 0, "without_label": {"test": 1}}}},
    ],
)
def test_numbers_of_documents_need_all_of_them(run: Run, change: dict) -> None:
    partial = Run(run.settings, replace(run.corpus, manifest=run.corpus.manifest | change))
    with pytest.raises(SettingsError, match=r"^evaluation.filter_pairs: .*corpus.test"):
        evaluate(partial)
