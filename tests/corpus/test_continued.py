"""Run: pytest tests/corpus/test_continued.py"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from corpus.preparing import Prepare, Record, lines

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.continued import keep_ids, keep_word_vectors, previous_words
from axml_ray.corpus.store import Corpus


def texts(first: int, last: int, labels: int = 8, prefix: str = "old") -> list[Record]:
    """Documents of which number i has label i modulo `labels`, and the common label of the prefix."""
    return [(f"{prefix} text {i} of {i % labels}", [f"{prefix}-{i % labels}", prefix]) for i in range(first, last)]


def texts_of(corpus: Corpus, split: str) -> set[str]:
    return set(corpus.table(split, ["text"])["text"].to_pylist())


@pytest.fixture
def old(run: Prepare) -> Corpus:
    return run(train=texts(0, 120), test=texts(120, 130), directory="before", valid_documents=12)


def test_old_labels_keep_their_ids_and_old_texts_their_split(run: Prepare, old: Corpus, tmp_path: Path) -> None:
    more = texts(500, 620, 3, "new")  # more frequent than the old ones
    now = run(train=texts(0, 120) + more, test=texts(120, 130), valid_documents=100, continues=str(tmp_path / "before"))
    assert now.labels.labels[: old.trained] == old.labels.labels[: old.trained]
    new = now.labels.labels[old.trained :]
    assert sorted(new) == ["new", "new-0", "new-1", "new-2"] and new[0] == "new"
    counts = now.labels.counts
    assert now.trained == len(counts) and (np.diff(counts[old.trained :]) <= 0).all() and (np.diff(counts) > 0).any()
    assert now.labels.by_frequency(range(now.trained))[0] == counts.argmax()
    valid = texts_of(now, "valid")
    assert len(valid) > 12 and not valid & texts_of(old, "train")
    assert valid & texts_of(old, "valid") and any(text.startswith("new") for text in valid)
    assert texts_of(now, "test") == texts_of(old, "test")
    # Documents still have their labels.
    for row in now.table("train", ["text", "labels"]).to_pylist():
        kind, _, _, _, number = row["text"].split()
        assert {now.labels.labels[label] for label in row["labels"]} == {kind, f"{kind}-{number}"}


def test_a_continued_corpus_that_changed_is_noticed(run: Prepare, old: Corpus, tmp_path: Path) -> None:
    given: dict[str, Any] = {"train": texts(0, 130), "test": texts(130, 140), "continues": str(tmp_path / "before")}
    first = run(**given)
    assert run(**given).manifest == first.manifest  # up to date
    run(train=texts(0, 125), test=texts(130, 140), directory="before", valid_documents=12)
    assert run(**given).manifest["inputs"] != first.manifest["inputs"]


@pytest.mark.parametrize("kind", ["random", "train"])
def test_old_words_keep_their_vectors(run: Prepare, tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"test": texts(120, 130), "word_vectors": kind}
    old = run(train=texts(0, 120), directory="before", **options)
    more = texts(500, 620, 3, "new")
    now = run(train=texts(0, 120) + more, continues=str(tmp_path / "before"), **options)
    ids = previous_words(old.tokenizer.words, now.tokenizer.words)
    known = ids >= 0
    assert np.array_equal(now.word_vectors()[known], old.word_vectors()[ids[known]])
    assert (~known).any() and np.abs(now.word_vectors()[~known]).sum(axis=1).min() > 0


@pytest.mark.parametrize("kind", ["random", "file"])
def test_new_words_get_the_vector_of_no_other_word(run: Prepare, tmp_path: Path, kind: str) -> None:
    """Also when a continued corpus is continued: old words have random vectors of several draws."""
    (tmp_path / "vectors.txt").write_text("text 1 0 0 0 0 0 0 0\nof 0 1 0 0 0 0 0 0\n")
    vectors = "random" if kind == "random" else str(tmp_path / "vectors.txt")
    options: dict[str, Any] = {"test": texts(120, 130), "word_vectors": vectors, "word_dimension": 8}
    run(train=texts(0, 120), directory="0", **options)
    more: list[Record] = []
    for number in (1, 2):
        more += texts(200 * number, 200 * number + 150, 3, f"new{number}")
        now = run(
            train=texts(0, 120) + more, directory=str(number), continues=str(tmp_path / str(number - 1)), **options
        )
    rows = now.word_vectors()[2:]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = rows @ rows.T - np.eye(len(rows))
    assert len(rows) > 300 and cosines.max() < 0.9999


def test_vectors_that_were_learned_anew_are_rotated_into_the_old_space(run: Prepare, tmp_path: Path) -> None:
    old = run(train=texts(0, 60), test=texts(60, 66), directory="before")
    words, vectors = old.tokenizer.words, old.word_vectors().astype(np.float64)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    learned = np.concatenate([vectors, [[1.0, 2, 3, 4]]])
    kept = keep_word_vectors(
        (learned @ rotation).astype(np.float32), [*words, "unknown before"], old.directory, align=True
    )
    np.testing.assert_allclose(kept, learned, atol=1e-5)


def test_of_equal_texts_the_old_one_is_kept(run: Prepare, tmp_path: Path) -> None:
    """Files are read by name, and the file of the new texts comes first by name."""
    old, new = tmp_path / "b.jsonl", tmp_path / "a.jsonl"
    old.write_bytes(lines(texts(0, 60)))
    new.write_bytes(lines([(text, ["other"]) for text, _ in texts(0, 60)] + texts(500, 540, 3, "new"), 1_000))
    test = texts(60, 66)
    before = run(train=(old,), test=test, directory="before", drop_duplicates=True)
    now = run(train=(new, old), test=test, drop_duplicates=True, continues=str(tmp_path / "before"))
    assert now.labels.labels[: before.trained] == before.labels.labels[: before.trained]
    assert "other" not in now.labels.labels and "new" in now.labels.labels


def test_lost_labels_are_an_error_that_names_the_key(run: Prepare, old: Corpus, tmp_path: Path) -> None:
    train = [(text, ["new"]) for text, _ in texts(0, 120)]
    with pytest.raises(SettingsError, match=r"^corpus\.train: 9 labels of .*before .*\('old', "):
        run(train=train, test=texts(60, 66, 3, "new"), continues=str(tmp_path / "before"))
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(("changed", "refused"), [(0, False), (5, False), (20, True), (120, True)])
def test_old_texts_that_changed(run: Prepare, old: Corpus, tmp_path: Path, changed: int, refused: bool) -> None:
    """Only in blanks, for example: they have other draws, so they could become validation or test texts."""
    train = [(f" {text}" if i < changed else text, labels) for i, (text, labels) in enumerate(texts(0, 120))]
    given: dict[str, Any] = {"train": train, "test": texts(120, 130), "continues": str(tmp_path / "before")}
    if refused:
        with pytest.raises(SettingsError, match=r"^corpus\.train: \d+ of 108 training texts .* are not among"):
            run(**given)
        return
    warnings = run(**given).manifest["summary"]["warnings"]
    assert ["of 108 training texts" in warning for warning in warnings] == [True] * bool(changed)


@pytest.mark.parametrize("drop_duplicates", [False, True])
def test_old_texts_that_are_test_texts_now(run: Prepare, old: Corpus, tmp_path: Path, drop_duplicates: bool) -> None:
    given = {"train": texts(0, 120), "test": texts(0, 110), "continues": str(tmp_path / "before")}
    warnings = run(**given, drop_duplicates=drop_duplicates).manifest["summary"]["warnings"]
    assert sum("validation or test texts now" in warning for warning in warnings) == 1


def test_drawing_validation_texts_instead_of_given_ones_is_refused(run: Prepare, tmp_path: Path) -> None:
    run(train=texts(0, 60), test=texts(60, 70), valid=texts(70, 80), directory="before")
    with pytest.raises(SettingsError, match=r"^corpus\.valid: "):
        run(train=texts(0, 60), test=texts(60, 70), continues=str(tmp_path / "before"))


def test_a_missing_continued_corpus_is_an_error(run: Prepare, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no prepared corpus"):
        run(train=texts(0, 60), test=texts(60, 70), continues=str(tmp_path / "nothing"))


def test_labels_without_documents_stay_last() -> None:
    table = pa.table({"label": ["a", "b", "c", "d", "e"], "train": [9, 5, 5, 1, 0]})
    kept = keep_ids(table, pa.array(["d", "b"]))
    assert kept["label"].to_pylist() == ["d", "b", "a", "c", "e"]
    assert kept["train"].to_pylist() == [1, 5, 9, 5, 0]
