"""What no record shows by itself: no titles, no words, labels that look alike, and test texts that were trained on."""

import json
from typing import Any

import pytest
from corpus.preparing import Prepare, error_of, lines, many

from axml_ray.corpus.store import Corpus


def warnings_of(corpus: Corpus) -> list[str]:
    said: list[str] = corpus.manifest["summary"]["warnings"]
    return said


def test_a_misspelt_field_of_titles_is_an_error(run: Prepare) -> None:
    records = [{"text": f"t{i}", "labels": ["a"]} for i in range(20)]
    records[7]["title"] = "only one"
    train = "".join(f"{json.dumps(record)}\n" for record in records).encode()
    assert error_of(run, train=train, title_field="titel").startswith("corpus.title_field: ")
    assert run(train=train, title_field="title", block_bytes=99).documents("train") > 0


@pytest.mark.parametrize("text", ["", " ", "?!"])
def test_texts_without_words_are_an_error(run: Prepare, text: str) -> None:
    train = [(text * (1 + i), ["a", "b"]) for i in range(30)]
    assert "corpus.text_field" in error_of(run, train=train, test=many(4))
    assert run(train=[*train, ("word", ["a"])] * 20, test=many(4)).documents("train") > 0


@pytest.mark.parametrize(
    ("labels", "alike"),
    [
        (["Law", "Law\u200b", "law", "La w"], ["Law\u200b", "Law"]),
        (["a\u00a0b", "a  b", "ab"], ["a  b", "a\u00a0b"]),
        (["\ufeffcat", "cat", "dog"], ["\ufeffcat", "cat"]),
        (["a\u00a0b", "نیم\u200cفاصله", "a-b", "A B", "ab"], []),
    ],
)
def test_labels_that_look_alike_are_warned_of(run: Prepare, labels: list[str], alike: list[str]) -> None:
    said = warnings_of(run(train=[(f"{i} {label}", [label]) for i in range(9) for label in labels], test=()))
    assert len(said) == bool(alike)
    assert all(repr(label) in said[0] for label in alike)


def with_known(texts: int, known: int) -> list[Any]:
    return [*many(known, "train"), *many(texts - known, "test")]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(("rows", "is_warned_of"), [(1, False), (3, True)])
def test_a_row_for_each_label_of_a_text_is_warned_of(run: Prepare, rows: int, is_warned_of: bool, drop: bool) -> None:
    train = [(f"text {i}", [f"label{label}"]) for i in range(60) for label in range(rows)]
    said = warnings_of(run(train=train, test=[("other", ["label0"])], drop_duplicates=drop))
    assert ["120 of 180 train texts repeat" in each for each in said] == [True] * is_warned_of


@pytest.mark.parametrize(("known", "is_warned_of"), [(0, False), (2, False), (3, True), (20, True)])
def test_test_texts_that_are_in_train_are_warned_of(run: Prepare, known: int, is_warned_of: bool) -> None:
    given: dict[str, Any] = {"train": many(60), "test": lines(with_known(20, known), 1000)}
    corpus = run(**given)
    assert [f"{known} of 20 " in said for said in warnings_of(corpus)] == [True] * is_warned_of
    assert corpus.manifest["summary"]["duplicates"]["also_in_train"]["test"] == known
    assert warnings_of(run(**given, drop_duplicates=True, directory="dropped")) == []
    valid = run(train=many(60), valid=given["test"], test=many(20, "other"), directory="valid")
    assert ["corpus.valid" in said for said in warnings_of(valid)] == [True] * is_warned_of
