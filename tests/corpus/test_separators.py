"""Labels split at the wrong separator, cells split at the wrong delimiter, and splits drawn from few texts."""

import argparse
import csv
import logging
from pathlib import Path
from typing import Any

import pytest
from corpus.preparing import Prepare, error_of, ids, many

from axml_ray.cli import predict
from axml_ray.corpus.readers.sources import open_readers
from axml_ray.corpus.records.records import Document
from axml_ray.corpus.store import Corpus
from axml_ray.settings import SPLITS, CorpusSettings, ReadingSettings


def write(path: Path, labels: list[str], delimiter: str = ",") -> tuple[Path, ...]:
    with path.open("w", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow(["text", "labels"])
        rows.writerows([f"text {i}, of w{i % 7}", cell] for i, cell in enumerate(labels))
    return (path,)


def warnings_of(corpus: Corpus, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The manifest's warnings, which are those that were logged and those of the page."""
    said: list[str] = corpus.manifest["summary"]["warnings"]
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(logged) == len(said) and all(one in line for one, line in zip(said, logged, strict=True))
    page = (corpus.directory / "report" / "corpus.html").read_text()
    assert ("Warning:" in page) == bool(said)
    caplog.clear()
    return said


@pytest.mark.parametrize(
    ("cell", "key"), [("{}|w{}|file", '"|"'), ("{}, w{}, file", '","'), ("{}\tw{}\tfile", '"tab"')]
)
def test_labels_that_hold_another_separator_are_warned_of(
    run: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture, cell: str, key: str
) -> None:
    files = write(tmp_path / "train.csv", [cell.format("ab"[i % 2], i % 7) for i in range(40)])
    [said] = warnings_of(run(train=files, test=()), caplog)
    assert f"corpus.label_separator to {key}" in said and "40 of 40 texts" in said
    corpus = run(train=files, test=(), label_separator=key.strip('"'), directory="right")
    assert warnings_of(corpus, caplog) == []
    assert sorted(corpus.labels.labels) == ["a", "b", "file", *(f"w{i}" for i in range(7))]


@pytest.mark.parametrize("labels", [["x"], ["a/b", "c/d"], ["all"]])
def test_other_labels_are_not_warned_of(run: Prepare, caplog: pytest.LogCaptureFixture, labels: list[str]) -> None:
    assert warnings_of(run(train=[(f"text {i}", labels) for i in range(30)], test=()), caplog) == []


def test_lists_that_hold_one_unsplit_label_are_warned_of(run: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    # Every 20th text may well have one label only.
    train = [(f"text {i}", [f"a|b{i % 3}"] if i % 20 else ["a"]) for i in range(60)]
    [said] = warnings_of(run(train=train, test=()), caplog)
    assert "label_separator" not in said and "list" in said and "57 of these" in said


@pytest.mark.parametrize(("delimiter", "name"), [(";", ";"), ("|", "|"), ("\t", "tab"), ("\t", "\t")])
def test_cells_are_split_at_the_delimiter(run: Prepare, tmp_path: Path, delimiter: str, name: str) -> None:
    files = write(tmp_path / "train.csv", [f"a,b{i % 3}" for i in range(40)], delimiter)
    corpus = run(train=files, test=(), csv_delimiter=name, label_separator=",")
    assert sorted(corpus.labels.labels) == ["a", "b0", "b1", "b2"]


@pytest.mark.parametrize("written", ["tab", r"\t", "\t"])
def test_tab_is_a_tab_wherever_a_separator_is_given(tmp_path: Path, written: str) -> None:
    settings = CorpusSettings(train=("a.csv",), csv_delimiter=written, label_separator=written)
    assert (settings.csv_delimiter, settings.label_separator) == ("\t", "\t")
    given = ["--bundle", "b", "--input", "i", "--output", "o", "--csv-delimiter", written]
    parser = argparse.ArgumentParser()
    predict.add_flags(parser)
    assert ReadingSettings(csv_delimiter=parser.parse_args(given).csv_delimiter).csv_delimiter == "\t"
    (path,) = write(tmp_path / "train.tsv", ["a\tb"], "\t")
    [document] = open_readers([path], CorpusSettings(train=(path,), label_separator=written))[0].read()
    assert isinstance(document, Document) and document.labels == ("a", "b")


def test_columns_that_a_file_lacks_are_named(run: Prepare, tmp_path: Path) -> None:
    said = error_of(run, train=write(tmp_path / "train.csv", ["a"] * 9, ";"), test=(), text_field="body")
    assert str(tmp_path / "train.csv") in said and "'body'" in said and "text, labels" in said


@pytest.mark.parametrize("wrong", ["", ";;", '"', "\n"])
def test_a_delimiter_is_one_character(wrong: str) -> None:
    with pytest.raises(ValueError, match="csv_delimiter"):
        CorpusSettings(train=("a.csv",), csv_delimiter=wrong)


def test_tab_separated_files_need_no_setting(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "train.tsv", ["a;b"] * 3, "\t")
    [reader] = open_readers([path], CorpusSettings(train=(path,)))
    assert [document.labels for document in reader.read()] == [("a", "b")] * 3  # type: ignore[union-attr]


# Splits of few texts


@pytest.mark.parametrize(("texts", "asked", "drawn"), [(240, 1000, 24), (240, 20, 20), (9, 3, 1), (2, 200, 1)])
def test_a_tenth_of_train_at_most_is_drawn_for_validation(run: Prepare, texts: int, asked: int, drawn: int) -> None:
    corpus = run(train=many(texts), test=many(4, "test"), valid_documents=asked)
    assert [corpus.documents(split) for split in SPLITS] == [texts - drawn, drawn, 4]


@pytest.mark.parametrize("given", [{}, {"test_share": 0.3}])
def test_without_a_test_file_a_share_of_the_texts_is_drawn(run: Prepare, given: dict[str, Any]) -> None:
    corpus = run(train=many(400), test=(), **given)
    share = given.get("test_share", 0.1)
    assert abs(corpus.documents("test") / 400 - share) < 0.06
    assert sum(corpus.documents(split) for split in SPLITS) == 400
    # By the texts: in another order, the same are drawn.
    again = run(train=many(400)[::-1], test=(), directory="again", **given)
    assert {text for text in _texts(again)} == {text for text in _texts(corpus)}
    larger = run(train=many(400), test=(), test_share=0.5, directory="larger")
    assert set(ids(corpus, "test")) < set(ids(larger, "test"))


def _texts(corpus: Corpus) -> list[str]:
    found: list[str] = corpus.table("test", ["text"])["text"].to_pylist()
    return found


def test_without_a_share_there_is_no_test_split(run: Prepare) -> None:
    corpus = run(train=many(40), test=(), test_share=0)
    assert {split: corpus.documents(split) for split in SPLITS} == {"train": 37, "valid": 3, "test": 0}


def test_given_validation_is_no_part_of_the_drawn_test_split(run: Prepare) -> None:
    corpus = run(train=many(200), valid=many(50, "valid"), test=())
    assert corpus.documents("valid") == 50
    assert all(text.startswith("train") for text in _texts(corpus))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"test_share": 1e-9}, "corpus.test_share"),
        ({"test_share": 0.9999}, "corpus.train"),
        ({"test_share": 1}, "test_share"),
    ],
)
def test_a_share_that_leaves_nothing_is_named(run: Prepare, given: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        run(train=many(40), test=(), **given)
