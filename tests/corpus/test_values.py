"""Raw values of fields become text and labels by the same rules in every format."""

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus.preparing import Prepare, error_of, many
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.corpus.readers.separated_values import SeparatedValues
from axml_ray.corpus.readers.sources import open_readers
from axml_ray.corpus.records.records import Document, Fields, Rejection
from axml_ray.corpus.records.values import (
    MISSING,
    are_one_hot,
    decimal_text,
    labels_of,
    read_literal,
    text_of,
    value_at,
)
from axml_ray.settings import CorpusSettings

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (["art", " law "], ["art", "law"]),
        ([["Books", "Art"], ["Books", ["Law"]]], ["Books", "Art", "Books", "Law"]),
        (np.array(["art", "law"]), ["art", "law"]),
        ([3, 3.0, -2, 0.5, 1e-7, 1e20, 2**70], ["3", "3", "-2", "0.5", "0.0000001", "1" + "0" * 20, str(2**70)]),
        ([np.int8(3), np.float32(510.7), Decimal("0.50"), -0.0], ["3", "510.7", "0.5", "0"]),
        (3, ["3"]),
        (None, []),
        (NAN, []),
        (pd.NA, []),
        (["a", None, NAN, " ", "\0"], ["a"]),
        ("a; b;;", ["a", "b"]),
        ("", []),
        ("['art', 'law']", ["art", "law"]),
        ('["art", "law; order"]', ["art", "law; order"]),
        ("['art' 'law']", ["art", "law"]),
        ("['art'\n \"it's\"]", ["art", "it's"]),
        ("[u'art', u'law']", ["art", "law"]),
        ("{'law', 'art'}", ["art", "law"]),
        ("('art', 'law')", ["art", "law"]),
        ("['art', nan, None]", ["art"]),
        ("[3, 3.0]", ["3", "3"]),
        ("[0 12 3]", ["0", "12", "3"]),
        (b"a;b", ["a", "b"]),
        ([b"a;b", "c"], ["a;b", "c"]),
        ("[]", []),
        ("[['a'], ['b']]", ["a", "b"]),
        ("[sic] art", ["[sic] art"]),
        ("[fine art, law]", ["fine art", "law"]),
        ("[art; law]", ["art", "law"]),
        ("[art]", ["art"]),
        ('{art,"fine \\"art\\"",law}', ["art", 'fine "art"', "law"]),
        ("{}", []),
        ("['it's', 'law']", ["['it's', 'law']"]),
        ("[np.int64(1), np.int64(2)]", ["1", "2"]),
        ("[np.str_('art (x)'), np.float64(nan)]", ["art (x)"]),
        ("['np.int64(1)']", ["np.int64(1)"]),
        ("http://x/1 urn:x:2", ["http://x/1", "urn:x:2"]),
        ("<http://x/1>; <urn:x:2>", ["http://x/1", "urn:x:2"]),
        ("<c#><.net><sql>", ["c#", ".net", "sql"]),
        ("<sql>", ["sql"]),
        ("<b>;<i>", ["b", "i"]),
        ("x<y and y>z; <a b>", ["x<y and y>z", "<a b>"]),
        ("fine art\r\nlaw; order", ["fine art", "law", "order"]),
        ("info: a note", ["info: a note"]),
        ("[Art Law]; (x)", ["[Art Law]", "(x)"]),
        ("['x'] and ['y']", ["['x'] and ['y']"]),
        ("['x", ["['x"]),
        ("(1999)", ["(1999)"]),
        ("(94)\n(410)", ["(94)", "(410)"]),
        ("(94);(410) (480)", ["(94)", "(410) (480)"]),
        (
            "law &amp; order;R&D; a&#39;s\nM&uuml;ller;q&a;b",
            ["law &amp; order", "R&D", "a&#39;s", "M&uuml;ller", "q&a", "b"],
        ),
        (
            "Children&rsquo;s books;a\0b &mdash; c;&nosuch;x",
            ["Children&rsquo;s books", "a b &mdash; c", "&nosuch", "x"],
        ),
        # Codes are labels as they are written, whatever number Python would read.
        ("{1E50,2E65}", ["1E50", "2E65"]),
        ("[10_1, 10_2]", ["10_1", "10_2"]),
        ("{0x1F,0x2A}", ["0x1F", "0x2A"]),
        ("{1.10,1.1}", ["1.10", "1.1"]),
        ("{1.0,bug}", ["1", "bug"]),
        ("{0.9,bug}", ["0.9", "bug"]),
        ("[0.5, beta]", ["0.5", "beta"]),
        ("{0.9,1.10}", ["0.9", "1.10"]),
        ("{1.0}", ["1"]),
        ("[007, 7]", ["007", "7"]),
        ("[1E50, 3.0, -2, NULL]", ["1E50", "3", "-2"]),
        ("[-9007199254740993, bug]", ["-9007199254740993", "bug"]),
        ("[3.0, 0.5, 1e-05, 1.0E10]", ["3", "0.5", "0.00001", "10000000000"]),
        ("{art,NULL}", ["art"]),
        ('{"NULL",NULL}', ["NULL"]),
        ("[art, null, nan, None]", ["art"]),
        ("set()", []),
        ("frozenset({'art', 'law'})", ["art", "law"]),
        ("set(art)", ["set(art)"]),
        (["law", 510.7], ["law", "510.7"]),
    ],
)
def test_labels(value: Any, labels: list[str]) -> None:
    assert list(labels_of(value, "labels")) == labels


@pytest.mark.parametrize(
    "value",
    [
        [["x", 0.8]],
        [["x", 1]],
        [[12, 0.8], [7, 0.5]],
        "[(12, 0.8), (7, 0.5)]",
        [[12.0, 0.8]],
        np.array([[12, 0.8]]),
        [[np.int64(3), np.float64(1)]],
        [["x", "0.9"], ["y", "0.2"]],
        [[["x", 0.9], ["y", 0.1]]],
        [[0.93, "x"], [0.1, "y"]],
        ["x", 0.9, "y", 0.1],
        '["x", 0.9]',
        [["u1", "x", 0.9]],
    ],
)
def test_labels_with_weights(value: Any) -> None:
    with pytest.raises(ValueError, match="give the labels alone"):
        labels_of(value, "labels")


@pytest.mark.parametrize(
    "value",
    [
        [[1, 2]],
        [[1.0, 2.0]],
        [["a", "b"]],
        [["a", None]],
        [[None, 2]],
        [[1], [2, 0.5, 3]],
        [["0.5", "0.7"]],
        [["a"], [510.7]],
    ],
)
def test_pairs_of_labels(value: Any) -> None:
    assert len(labels_of(value, "labels")) == sum(each is not None for pair in value for each in pair)


@pytest.mark.parametrize(
    "value", [True, [False], [float("inf")], [{"uri": "a"}], {"a": 1}, "[{'uri': 'a'}]", [b"\xff"]]
)
def test_what_is_no_label(value: Any) -> None:
    with pytest.raises(ValueError, match=r"boolean|number|object|not UTF-8"):
        labels_of(value, "labels")


@given(labels=st.lists(st.text(max_size=6) | st.integers() | st.none(), max_size=4))
def test_lists_that_are_written_into_a_cell_are_read(labels: list[Any]) -> None:
    assert read_literal(json.dumps(labels)) == read_literal(json.dumps(labels, ensure_ascii=False)) == labels
    assert read_literal(repr(labels)) == labels


@given(text=st.text("[](){}'\"\\ ,:ab1.-nu\n\0", max_size=12))
def test_any_cell_has_labels_or_a_reason(text: str) -> None:
    try:
        assert all(label == label.strip() != "" for label in labels_of(text, "labels"))
    except ValueError as error:
        assert "label" in str(error)


@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_the_decimal_text_of_a_number_is_the_number(number: float) -> None:
    text = decimal_text(number)
    assert float(text) == number
    assert "e" not in text and not text.endswith(".0")


def test_texts() -> None:
    assert text_of("a\0b", "text") == "a b"
    assert text_of(["One.", None, ["Two."]], "text") == "One.\nTwo."
    assert (text_of([], "text"), text_of(None, "text"), text_of(NAN, "text")) == ("", None, None)
    for wrong in (3, True, {"en": "a"}, [3]):
        with pytest.raises(ValueError, match="'text' is"):
            text_of(wrong, "text")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", "a"), (7, "7"), (7.0, "7"), (7.5, "7.5"), (NAN, None), ("", None), (["a"], "a"), (b"a", "a")],
)
def test_ids(value: Any, expected: str | None) -> None:
    assert Fields().read({"text": "t", "labels": [], "id": value})[2] == expected


@pytest.mark.parametrize("value", [True, {"$oid": "a"}, ["a", "b"], [], b"\xff"])
def test_what_is_no_id(value: Any) -> None:
    with pytest.raises(ValueError, match=r"'id'"):
        Fields().read({"text": "t", "labels": [], "id": value})


def test_a_map_of_arrow_is_no_list_of_labels(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    pq.write_table(pa.table({"text": ["a"], "labels": pa.array([[("art", 1)]], kind)}), tmp_path / "a.parquet")
    [reader] = open_readers([tmp_path / "a.parquet"], CorpusSettings(train=("a",)))
    [record] = reader.read()
    assert isinstance(record, Rejection)
    assert "labels.art" in record.reason


def test_values_inside_of_objects() -> None:
    record = {"doc": {"text": "T"}, "subjects": [{"uri": "a"}, {"name": "B"}, {"uri": ["c"]}], "dc.title": {"en": "x"}}
    assert value_at(record, "doc.text") == "T"
    assert value_at(record, "subjects.uri") == ["a", ["c"]]
    assert value_at(record, "dc.title.en") == "x"
    assert value_at({"doc": None}, "doc.text") is None
    assert value_at({"subjects": []}, "subjects.uri") == []
    assert value_at({"subjects": '[{"uri": "a"}]'}, "subjects.uri") == ["a"]
    assert value_at({"subjects": " "}, "subjects.uri") is None
    assert Fields(text="doc.text", labels="subjects.uri", id="dc.title.en").read(record) == ("T", ("a", "c"), "x")
    for path in ("doc.title", "doc.text.en", "subjects.url", "none", "none.none"):
        assert value_at(record, path) is MISSING


def test_a_record_as_amazon_has_it() -> None:
    fields = Fields(title="title", text="description", labels="categories")
    record = {"title": NAN, "description": ["One.", "Two."], "categories": [["Books", "Art"], ["Books"]]}
    assert fields.read(record)[:2] == (" /SEP/ One.\nTwo.", ("Books", "Art", "Books"))
    assert fields.read({"description": [], "categories": []})[:2] == (" /SEP/ ", ())
    assert fields.read({"title": "T", "description": None, "categories": None})[:2] == ("T /SEP/ ", ())
    with pytest.raises(ValueError, match="'description' is null"):
        fields.read({"title": None, "description": NAN, "categories": []})


ROWS: list[dict[str, Any]] = [
    {"doc": {"text": "one"}, "subjects": [{"uri": "a", "label": "A"}, {"uri": 3, "label": "C"}]},
    {"doc": {"text": "two"}, "subjects": []},
]


def documents(path: Path, **settings: Any) -> list[tuple[str, tuple[str, ...]]]:
    """The texts and labels of a file, none of which is rejected."""
    found = [
        record for reader in open_readers([path], CorpusSettings(train=(path,), **settings)) for record in reader.read()
    ]
    assert not [record for record in found if isinstance(record, Rejection)]
    return [(record.text, record.labels) for record in found if isinstance(record, Document)]


def write(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    """Write rows in a format."""
    path = folder / f"a.{form.partition(' ')[0]}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == "arrow":
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    elif form == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(rows, indent=2 if form == "json indented" else None))
    return path


FORMATS = ["parquet", "arrow", "csv", "jsonl", "json", "json indented"]


@pytest.mark.parametrize("form", FORMATS)
def test_values_are_the_same_in_every_format(tmp_path: Path, form: str) -> None:
    uri = [{**row, "subjects": [{**each, "uri": str(each["uri"])} for each in row["subjects"]]} for row in ROWS]
    rows = uri if form in ("parquet", "arrow") else ROWS  # a column of Arrow has one type
    path = write(tmp_path, form, rows)
    found = documents(path, text_field="doc.text", labels_field="subjects.uri")
    assert found == [("one", ("a", "3")), ("two", ())]
    path = write(tmp_path, form, [{"text": "x", "labels": [[3.0, 4], [510.5]]}, {"text": "y", "labels": None}])
    assert documents(path) == [("x", ("3", "4", "510.5")), ("y", ())]
    path = write(
        tmp_path, form, [{"text": "x", "toxic": 1, "in, sult": 1.0}, {"text": "y", "toxic": 0, "in, sult": NAN}]
    )
    assert documents(path, labels_field=["toxic", "in, sult"]) == [("x", ("toxic", "in, sult")), ("y", ())]
    path = write(tmp_path, form, [{"text": "x", "labels": "a|b"}, {"text": "y", "labels": "['a|b', 'c']"}])
    assert documents(path, label_separator="|") == [("x", ("a", "b")), ("y", ("a|b", "c"))]


# Columns of ones and zeros


@pytest.mark.parametrize(
    ("cell", "labels"), [("1", ["a"]), ("1.0", ["a"]), ("True", ["a"]), ("0", []), ("", []), ("false", [])]
)
def test_a_column_for_each_label(tmp_path: Path, cell: str, labels: list[str]) -> None:
    (tmp_path / "a.csv").write_text(f"text,a,b\nx,{cell},0\n")
    [document] = SeparatedValues(tmp_path / "a.csv", Fields(labels=("a", "b"))).read()
    assert isinstance(document, Document) and list(document.labels) == labels


@pytest.mark.parametrize("cell", ["-1", "2", "0.7", "x"])
def test_a_column_of_something_else(tmp_path: Path, cell: str) -> None:
    (tmp_path / "a.csv").write_text(f"text,a,b\nx,0,{cell}\n")
    [bad] = SeparatedValues(tmp_path / "a.csv", Fields(labels=("a", "b"))).read()
    assert isinstance(bad, Rejection) and bad.line == 2 and "'b'" in bad.reason


def test_columns_of_labels_in_a_corpus(run: Prepare, tmp_path: Path) -> None:
    rows = [{"text": text, "toxic": i % 2, "insult": i % 3 == 0} for i, (text, _) in enumerate(many(60))]
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    corpus = run(train=(tmp_path / "a.csv",), test=(), labels_field="toxic, insult")
    assert sorted(corpus.labels.labels) == ["insult", "toxic"]
    assert "set labels_field (to several, such as toxic,insult" in error_of(run, train=(tmp_path / "a.csv",), test=())


@pytest.mark.parametrize("wrong", ["", "a,,b", [], ["a", ""], 3])
def test_wrong_names_of_columns(wrong: Any) -> None:
    with pytest.raises(ValueError, match="labels_field"):
        CorpusSettings(train=("a.csv",), labels_field=wrong)


# One-hot vectors


def one_hot(count: int, size: int, numbers: Any = (0, 1)) -> list[dict[str, Any]]:
    """Records whose labels are vectors of zeros and ones, each with a one or two."""
    hits = [{i % size, i * i % size} for i in range(count)]
    texts = [text for text, _ in many(count)]
    return [{"text": t, "labels": [numbers[k in hit] for k in range(size)]} for t, hit in zip(texts, hits, strict=True)]


@pytest.mark.parametrize(
    ("form", "size", "numbers"),
    [
        ("parquet", 4, (0, 1)),
        ("arrow", 30, (0.0, 1.0)),
        ("csv", 4, (0, 1)),
        ("jsonl", 2, (0, 1)),
        ("jsonl", 3, ("0", "1")),
        ("json", 5, (-1, 1)),
    ],
)
def test_one_hot_vectors_are_no_labels(run: Prepare, tmp_path: Path, form: str, size: int, numbers: Any) -> None:
    path = write(tmp_path, form, one_hot(40, size, numbers))
    said = error_of(run, train=(path,), test=(), block_bytes=400)  # of several blocks
    assert said.startswith("corpus.labels_field") and f" {size} " in said and "labels_field: art,law" in said


@pytest.mark.parametrize(
    "lists",
    [
        [[0, 1], [1], [], [0, 1]],
        [[0, 1, 1], [0], [1], [1, 0]],  # a label that is repeated by mistake
        [[0, 0, 1, 1, 2]],
    ],
)
def test_labels_that_are_called_0_and_1(run: Prepare, tmp_path: Path, lists: list[list[int]]) -> None:
    rows = [{"text": text, "labels": lists[i % len(lists)]} for i, (text, _) in enumerate(many(60))]
    corpus = run(train=(write(tmp_path, "jsonl", rows),), test=(), block_bytes=400)
    assert sorted(corpus.labels.labels) == sorted({str(label) for row in lists for label in row})


def test_one_other_list_does_not_hide_one_hot_vectors(run: Prepare, tmp_path: Path) -> None:
    rows = [*one_hot(60, 4), {"text": "cut short", "labels": [0, 1]}, {"text": "none", "labels": None}]
    assert "corpus.labels_field" in error_of(run, train=(write(tmp_path, "jsonl", rows),), test=())


def test_lengths_of_one_hot_vectors() -> None:
    assert are_one_hot(np.array([4, 4, 4])) and are_one_hot(np.array([2, 2, 0])) and are_one_hot(np.array([3, 3, 1]))
    assert not any(map(are_one_hot, map(np.array, ([], [0], [1, 1], [2, 1], [3, 1, 2]))))


def test_one_hot_vectors_get_the_names_of_their_classes() -> None:
    names = ("pets", "cats", "dogs")
    assert labels_of([0.0, 1.0, 1.0], "labels", names=names) == ("cats", "dogs")
    assert labels_of([True, False, False], "labels", names=names) == ("pets",)
    assert labels_of([0, 1], "labels", names=names) == ("pets", "cats")
    assert labels_of([1, 2, 0], "labels", names=names) == ("cats", "dogs", "pets")
    with pytest.raises(ValueError, match="0 to 2"):
        labels_of([0.5], "labels", names=names)


# URIs


URIS = ["http://x.org/a/{}", "<https://x.org/a#{}>", "urn:nbn:de:1/{},b", "HTTP://x/a;b|{}"]


def test_uris_are_not_warned_of(run: Prepare, tmp_path: Path) -> None:
    rows = [{"text": text, "labels": [URIS[i % 4].format(i % 5)]} for i, (text, _) in enumerate(many(60))]
    corpus = run(train=(write(tmp_path, "jsonl", rows),), test=())
    assert corpus.manifest["summary"]["warnings"] == []


def test_uris_with_another_separator_are_warned_of(run: Prepare, tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "labels"])
        writer.writerows([text, f"http://x/{i % 5},http://x/{i % 3}"] for i, (text, _) in enumerate(many(60)))
    [said] = run(train=(tmp_path / "a.csv",), test=()).manifest["summary"]["warnings"]
    assert 'label_separator to ","' in said
