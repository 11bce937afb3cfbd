import codecs
import csv
import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from axml_ray.corpus.readers import tables
from axml_ray.corpus.readers.tables import (
    NULL,
    ArrowRows,
    MissingColumn,
    ParquetRows,
    SeparatedValues,
    saved_dataset_readers,
)
from axml_ray.corpus.records.records import Document, Fields, Rejection
from axml_ray.corpus.records.values import labels_of

ROWS = [
    {"id": "a", "text": "A cat.", "labels": ["pets", " cats "]},
    {"id": None, "text": "Näive", "labels": []},
    {"id": "c", "text": None, "labels": ["x"]},
    {"id": "d", "text": "t", "labels": None},
    {"id": "e", "text": "t", "labels": [None]},
]


def table(rows: list[dict[str, Any]] = ROWS) -> pa.Table:
    fields = [("id", pa.string()), ("text", pa.string()), ("labels", pa.list_(pa.string()))]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def check(records: list[Document | Rejection], name: str) -> None:
    documents = [record for record in records if isinstance(record, Document)]
    assert [(d.id, d.text, d.labels, d.line) for d in documents] == [
        ("a", "A cat.", ("pets", "cats"), 1),
        (f"{name}:2", "Näive", (), 2),
        ("d", "t", (), 4),
        ("e", "t", (), 5),
    ]
    assert [(r.line, r.reason) for r in records if isinstance(r, Rejection)] == [(3, "'text' is null, not a string")]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, row_group_size=2)
    check(list(ParquetRows(path).read()), "a.parquet")
    parts = ParquetRows(path).split(1)
    assert [part.rows_before for part in parts] == [0, 2, 4]
    check([record for part in parts for record in part.read()], "a.parquet")
    assert [record.line for record in ParquetRows(path).split(1 << 30)[0].read()] == [1, 2, 3, 4, 5]


def test_numbers_are_labels_in_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "title": ["t"], "tags": [[7, 9]]}), path)
    (document,) = ParquetRows(path, Fields(text="body", title="title", labels="tags")).read()
    assert isinstance(document, Document)
    assert (document.text, document.labels) == ("t /SEP/ x", ("7", "9"))


def test_a_table_without_a_column_is_no_input(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"], "labels": [["a"]]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="has no column 'text'; its columns are body, labels"):
        list(ParquetRows(tmp_path / "a.parquet").read())
    (tmp_path / "a.csv").write_text("body,labels\nx,a\n")
    with pytest.raises(ValueError, match="has no column 'text'; its columns are body, labels"):
        list(SeparatedValues(tmp_path / "a.csv").read())
    for content in ("text,labels,labels\nx,a,b\n", "text;text;labels\nx;y;a\n"):
        (tmp_path / "a.csv").write_text(content)
        with pytest.raises(ValueError, match="several columns"):
            list(SeparatedValues(tmp_path / "a.csv").read())
    (tmp_path / "b.csv").write_text("text\nx\n")
    assert len(list(SeparatedValues(tmp_path / "b.csv", Fields(labelled=False)).read())) == 1


@pytest.mark.parametrize("reader", [ParquetRows, ArrowRows])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1", b"no table at all", b"\xff\xff\xff\xff" * 9])
def test_what_is_no_table_is_a_rejection(tmp_path: Path, reader: Any, content: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    records = list(reader(path).read())
    assert all(isinstance(record, Rejection) for record in records)
    assert len(records) == 1 or (content == b"" and reader is ArrowRows)


def test_a_truncated_stream_keeps_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table().schema) as writer:
        for _ in range(3):
            writer.write_table(table(ROWS[:2]))
    path.write_bytes(path.read_bytes()[:-60])
    *documents, last = ArrowRows(path).read()
    assert len(documents) == 4
    assert isinstance(last, Rejection)
    assert last.line == 5
    assert "damaged" in last.reason


def save_dataset(folder: Path, data: pa.Table, features: dict[str, Any]) -> None:
    """What `datasets.Dataset.save_to_disk` writes."""
    folder.mkdir()
    for number, part in enumerate((data.slice(0, 1), data.slice(1))):
        path = str(folder / f"data-0000{number}-of-00002.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, part.schema) as writer:
            writer.write_table(part)
    files = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "x", "_split": "train"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def test_a_saved_dataset_and_its_class_labels(tmp_path: Path) -> None:
    data = pa.table({"text": ["a", "b", "c"], "labels": [[0, 1], [1], [2]]})
    names = {"feature": {"names": ["pets", "cats"], "_type": "ClassLabel"}, "_type": "Sequence"}
    save_dataset(tmp_path / "train", data, {"labels": names, "text": {"dtype": "string", "_type": "Value"}})
    records = [record for reader in saved_dataset_readers(tmp_path / "train", Fields()) for record in reader.read()]
    assert [r.labels for r in records if isinstance(r, Document)] == [("pets", "cats"), ("cats",)]
    assert [r.reason for r in records if isinstance(r, Rejection)] == ["label 1 is 2; the names are of 0 to 1"]
    state = tmp_path / "train" / "state.json"
    state.write_text(json.dumps({"_data_files": [], "_indices_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(ValueError, match="flatten_indices"):
        saved_dataset_readers(tmp_path / "train", Fields())


CLASS_LABELS = {"names": ["pets", "cats"], "_type": "ClassLabel"}


def with_metadata(data: pa.Table, features: Any) -> pa.Table:
    """Return a table with the metadata that `datasets` writes into each of its files."""
    content = features if isinstance(features, str) else json.dumps({"info": {"features": features}})
    return data.replace_schema_metadata({"huggingface": content})


@pytest.mark.parametrize("feature", [{"feature": CLASS_LABELS, "_type": "List"}, [CLASS_LABELS]])
def test_a_file_has_the_names_of_its_class_labels(tmp_path: Path, feature: Any) -> None:
    data = with_metadata(pa.table({"text": ["a", "b"], "labels": [[0, 1], [1]]}), {"labels": feature})
    pq.write_table(data, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, data.schema) as writer:
        writer.write_table(data)
    for reader in (ParquetRows(tmp_path / "a.parquet"), ArrowRows(tmp_path / "a.arrow")):
        assert [r.labels for r in reader.read() if isinstance(r, Document)] == [("pets", "cats"), ("cats",)]


def test_a_column_of_one_class_label_per_text(tmp_path: Path) -> None:
    data = pa.table({"text": ["a", "b", "c"], "label": [1, 0, -1]})
    save_dataset(tmp_path / "train", data, {"label": CLASS_LABELS})
    readers = saved_dataset_readers(tmp_path / "train", Fields(labels="label"))
    records = [record for reader in readers for record in reader.read()]
    assert [r.labels for r in records if isinstance(r, Document)] == [("cats",), ("pets",)]
    assert len(records) == 3


@pytest.mark.parametrize("metadata", ["not JSON", "[]", '{"info": null}', '{"info": {"features": {"labels": null}}}'])
def test_metadata_of_something_else_gives_no_names(tmp_path: Path, metadata: str) -> None:
    pq.write_table(with_metadata(pa.table({"text": ["a"], "labels": [[1]]}), metadata), tmp_path / "a.parquet")
    (document,) = ParquetRows(tmp_path / "a.parquet").read()
    assert isinstance(document, Document)
    assert document.labels == ("1",)


# CSV


def test_csv_and_tsv(tmp_path: Path) -> None:
    content = 'id,text,labels\r\n1,"A ""cat"",\nsat",pets; cats;\r\n,x,\r\n3,short\r\n\r\n4,ü,a;a\r\n'
    for name, data in (("a.csv", content.encode()), ("b.csv.gz", gzip.compress(content.encode("utf-8-sig")))):
        (tmp_path / name).write_bytes(data)
        records = list(SeparatedValues(tmp_path / name).read())
        documents = [record for record in records if isinstance(record, Document)]
        assert [(d.id, d.text, d.labels, d.line) for d in documents] == [
            ("1", 'A "cat",\nsat', ("pets", "cats"), 2),
            (f"{name}:4", "x", (), 4),
            ("4", "ü", ("a", "a"), 7),
        ]
        assert [(r.line, r.reason) for r in records if isinstance(r, Rejection)] == [
            (5, "has 2 cells, the first line has 3")
        ]
    (tmp_path / "c.tsv").write_text("text\tlabels\na, b\tx|y\n")
    (document,) = SeparatedValues(tmp_path / "c.tsv", Fields(separator="|")).read()
    assert isinstance(document, Document)
    assert (document.text, document.labels) == ("a, b", ("x", "y"))


def rows_of(path: Path, content: str | bytes, **given: Any) -> list[Any]:
    """Line, text and labels of each document, and line and reason of each rejection."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    records = SeparatedValues(path, **given).read()
    return [(r.line, r.text, *r.labels) if isinstance(r, Document) else (r.line, r.reason) for r in records]


def test_files_that_were_put_together_are_read_as_such(tmp_path: Path) -> None:
    part = "\ufefftext,labels\r\n{},x\r\n"
    found = rows_of(tmp_path / "a.csv", part.format("a") + part.format("b") + "text,y\r\n")
    assert found == [(2, "a", "x"), (4, "b", "x"), (5, "text", "y")]


def test_a_blank_after_each_delimiter_is_no_part_of_a_cell(tmp_path: Path) -> None:
    rows = '"a, b", "x; y"\n c,z \n"d", "x"\n'
    found = rows_of(tmp_path / "a.csv", f"text, labels\n{rows}")
    assert found == [(2, "a, b", "x", "y"), (3, "c", "z"), (4, "d", "x")]
    assert rows_of(tmp_path / "a.csv", f'"text", "labels"\n{rows}') == found
    semicolons = '"text"; "labels"\nsay "a"; "x; y"\n'
    assert rows_of(tmp_path / "a.csv", semicolons) == [(2, 'say "a"', "x", "y")]
    # Only the header tells: a quote after a blank is a character elsewhere.
    assert rows_of(tmp_path / "a.csv", 'text,labels\n "a" b,x\n') == [(2, ' "a" b', "x")]


def test_a_stray_quote_takes_no_rows_with_it_unseen(tmp_path: Path) -> None:
    found = rows_of(tmp_path / "a.csv", 'text,labels\nA dog.,"pets\nA third.,news\nA fourth.,sport\n')
    assert [row[0] for row in found] == [2, 3, 4] and all(len(row) == 2 for row in found)
    assert "the quote doubled" in found[0][1]
    (tmp_path / "c.csv").write_text('text,labels,"note" x\na,b,c\n')
    with pytest.raises(ValueError, match=r"line 1: not a row: .*the quote doubled"):
        list(SeparatedValues(tmp_path / "c.csv").read())
    [(line, reason), good] = rows_of(tmp_path / "d.csv", b"text,labels\na\rb,c\nd,e\n")
    assert (line, good) == (2, (3, "d", "e")) and "carriage return" in reason and "newline=" not in reason


@pytest.mark.parametrize("cut", ["A second", 'A second,"pets', 'A "second', '"A second'])
def test_a_last_row_that_is_cut_short_ends_the_file(tmp_path: Path, cut: str) -> None:
    for end, is_cut in (("", True), ("\n", False)):
        (tmp_path / "a.csv").write_text(f"text,labels\nA first,pets\n{cut}{end}")
        first, last = SeparatedValues(tmp_path / "a.csv").read()
        assert isinstance(first, Document)
        assert isinstance(last, Rejection) and (last.line, last.ends_file) == (3, is_cut)


@pytest.mark.parametrize("last", ["A second,pets,cats", "A second,p\rets"])
def test_a_last_row_that_no_cut_explains_is_one_record(tmp_path: Path, last: str) -> None:
    (tmp_path / "a.csv").write_bytes(f"text,labels\nA first,pets\n{last}".encode())
    *_, last_row = SeparatedValues(tmp_path / "a.csv").read()
    assert isinstance(last_row, Rejection) and not last_row.ends_file


def test_a_byte_order_mark_alone_is_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(codecs.BOM_UTF8)
    assert [*SeparatedValues(tmp_path / "a.csv").read()] == []


SPARK = r"""id,text,labels
1,plain,a
2,"He said \"hi\", then left",pets
3,"C:\temp, ends with \"",x;y
4,"a ""doubled"" one",b
5,"two
lines, \"quoted\" \\ too",c
6,C:\new,d
"""


def test_quotes_that_a_backslash_escapes(tmp_path: Path) -> None:
    expected = [
        (2, "plain", "a"),
        (3, 'He said "hi", then left', "pets"),
        (4, r'C:\temp, ends with "', "x", "y"),
        (5, 'a "doubled" one', "b"),
        (6, 'two\nlines, "quoted" \\ too', "c"),
        (8, r"C:\new", "d"),
    ]
    assert rows_of(tmp_path / "a.csv", SPARK) == expected
    assert rows_of(tmp_path / "a.csv", gzip.compress(SPARK.replace("\n", "\r\n").encode()))[4][:1] == (6,)
    assert rows_of(tmp_path / "a.tsv", SPARK.replace(",", "\t"))[1] == (3, 'He said "hi"\t then left', "pets")
    # Far from the first rows, and with a broken row between them.
    many = (
        SPARK.partition("5,")[0]
        + "".join(f"{i},some words of it,y\n" for i in range(90_000))
        + '7,"a" b,c\n8,"\\"a\\", b",c\n'
    )
    found = rows_of(tmp_path / "a.csv", many)
    assert found[:3] == expected[:3] and found[-1] == (90_007, '"a", b', "c")
    assert [row[0] for row in found if "not a row" in row[1]] == [90_006]


def test_a_backslash_that_escapes_nothing_is_a_character(tmp_path: Path) -> None:
    for content in ('text,labels\n"C:\\",x\n"a ""b""",y\n', 'text,labels\n"C:\\",x\n"a \\""b""",y\n'):
        found = rows_of(tmp_path / "a.csv", content)
        assert found[0] == (2, "C:\\", "x") and found[1][0] == 3 and found[1][1].endswith('"b"')
    # As without any quotes: pandas with QUOTE_NONE, Hive.
    assert rows_of(tmp_path / "a.csv", "text,labels\na\\, b,x\n") == [(2, "a, b", "x")]
    good, bad = rows_of(tmp_path / "a.csv", 'text,labels\na\\, \\alpha,x\n"a",b,c\n')
    assert good == (2, "a, \\alpha", "x") and bad == (3, "has 3 cells, the first line has 2")


URIS = "<http://example.org/1> <http://example.org/2>"


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_tsv_without_header_and_quotes(tmp_path: Path, compress: Any) -> None:
    """Annif's corpora."""
    content = compress(f'"Tis the first, a\t{URIS}\nHe said "yes".\t<http://example.org/2>\n"Good" it\tx;y\n'.encode())
    both = ("http://example.org/1", "http://example.org/2")
    expected = [(1, '"Tis the first, a', *both), (2, 'He said "yes".', both[1]), (3, '"Good" it', "x", "y")]
    for name in ("a.tsv", "a.tab.gz", "a.txt"):
        assert rows_of(tmp_path / name, content) == expected
    texts = rows_of(tmp_path / "a.tsv", content, fields=Fields(labelled=False, separator=";"))
    assert [row[1] for row in texts] == [row[1] for row in expected]
    long = "word, " * 200_000
    assert rows_of(tmp_path / "a.tsv", f'"{long}\t{URIS}\n') == [(1, f'"{long}', *both)]
    # Without brackets, and any labels, of which one recurs.
    assert rows_of(tmp_path / "a.tsv", "A cat.\thttp://x/1 http://x/2\n") == [(1, "A cat.", "http://x/1", "http://x/2")]
    assert rows_of(tmp_path / "a.tsv", "A cat.\tlaw; pets\nA dog.\tpets\n")[0] == (1, "A cat.", "law", "pets")


@pytest.mark.parametrize("header", ["body\tsubjects", "text\tsubjects", "What do you like?\tlabel", "text\tx\tlabel"])
def test_another_header_is_no_row(tmp_path: Path, header: str) -> None:
    with pytest.raises(MissingColumn, match="has no column"):
        rows_of(tmp_path / "a.tsv", f"{header}\nA cat.\tpets\nA dog.\tpets\n")
    with pytest.raises(MissingColumn, match="header line"):
        rows_of(tmp_path / "a.tsv", "A cat.\tpets\nA dog.\tdogs\n")
    with pytest.raises(MissingColumn) as caught:
        rows_of(tmp_path / "a.tsv", "A cat. " * 90_000 + "\tpets\n")
    assert len(str(caught.value)) < 600


def test_uris_are_labels_without_their_brackets(tmp_path: Path) -> None:
    for cell in (URIS, URIS.replace(" ", ";"), URIS.replace("> <", ">, <")):
        assert rows_of(tmp_path / "a.csv", f'text,labels\nA cat.,"{cell}"\n')[0][2:] == tuple(URIS[1:-1].split("> <"))
    [row] = rows_of(tmp_path / "a.csv", "text,labels\nA cat.,<b>;<i>\n")
    assert row[2:] == ("b", "i")


def test_the_first_quote_of_tsv_may_leave_the_dialect_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is quoted as a whole is valid in both dialects; a block later, only one makes rows."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 1_000)
    plain = "".join(f"row {i}\tlaw\n" for i in range(500))
    literal = '"Beta starts\tz3\nGamma ends"\tz4\n"Alpha" and more\tz1\n'
    quoted = '"two\nlines"\tz3\n"a\ttab"\tz4\n'
    for last, texts in (
        (literal, ['"Beta starts', 'Gamma ends"', '"Alpha" and more']),
        (quoted, ["two\nlines", "a\ttab"]),
    ):
        found = rows_of(tmp_path / "a.tsv", f'text\tlabels\n"Whole"\tx\n{plain}{last}{plain}')
        assert len(found) == 1_001 + len(texts)
        assert found[0][1] == "Whole" and [row[1] for row in found[501 : 501 + len(texts)]] == texts


def test_quotes_in_tsv_are_what_makes_more_rows(tmp_path: Path) -> None:
    head = 'text\tlabels\n"Tis a story.\tbooks\nA third.\tnews\n'
    found = rows_of(tmp_path / "a.tsv", f'{head}He said "yes".\tsport\n"Well quoted"\t"x;y"\n')
    assert found == [
        (2, '"Tis a story.', "books"),
        (3, "A third.", "news"),
        (4, 'He said "yes".', "sport"),
        (5, "Well quoted", "x", "y"),
    ]
    quoted = 'text\tlabels\n"two ""lines""\nhere"\ta\n"a\ttab"\tb\n"stray" quote\tc\n"three\n\nlines"\td\n'
    assert rows_of(tmp_path / "a.tsv", quoted)[:2] == [(2, 'two "lines"\nhere', "a"), (4, "a\ttab", "b")]
    assert [(row[0], len(row)) for row in rows_of(tmp_path / "a.tsv", quoted)[2:]] == [(5, 2), (6, 3)]
    # The first quote is far below.
    many = "text\tlabels\n" + "some words of a text\ty\n" * 60_000 + head.partition("\n")[2]
    assert rows_of(tmp_path / "a.tsv", many)[-2:] == [
        (60_002, '"Tis a story.', "books"),
        (60_003, "A third.", "news"),
    ]


def test_nulls_and_blanks_around_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text, labels , id\na,\\N,\\N\n\\N,x,7\nc, x; \\N,8\n")
    first, second, third = SeparatedValues(tmp_path / "a.csv").read()
    assert isinstance(first, Document) and (first.labels, first.id) == ((), "a.csv:2")
    assert isinstance(second, Rejection)
    assert isinstance(third, Document) and (third.labels, third.id) == (("x", r"\N"), "8")


@pytest.mark.parametrize("first", ["sep=;\r\n", '"sep=;"\r\n', "SEP=;\n"])
def test_excels_first_line_names_the_delimiter(tmp_path: Path, first: str) -> None:
    content = f"{first}text;labels;n,\r\na, b;x;\r\n"
    for encoding in ("utf-8-sig", "utf-16"):
        assert rows_of(tmp_path / "a.csv", content.encode(encoding)) == [(3, "a, b", "x")]


@pytest.mark.parametrize("delimiter", ["\t", ";", "|", ","])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
def test_the_delimiter_is_the_one_that_gives_the_columns(tmp_path: Path, delimiter: str, name: str) -> None:
    content = f'"id"{delimiter}labels{delimiter}text\n7{delimiter}x/y{delimiter}a b\n'
    assert rows_of(tmp_path / name, content, fields=Fields(separator="/")) == [(2, "a b", "x", "y")]


def test_broken_bytes_in_csv_cost_one_record(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,labels\nna\xefve,a\nb\0,c\nd,e\n")
    bad, nul, last = SeparatedValues(path).read()
    assert isinstance(bad, Rejection)
    assert (bad.line, bad.reason[:10]) == (2, "not UTF-8:")
    assert isinstance(nul, Document)
    assert nul.text == "b "
    assert isinstance(last, Document)


@given(rows=st.lists(st.tuples(st.text(max_size=8), st.lists(st.text("ab ;é", max_size=3), max_size=3)), max_size=6))
def test_what_python_writes_is_read(rows: list[tuple[str, list[str]]]) -> None:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["text", "labels"])
    writer.writerows([text, ";".join(labels)] for text, labels in rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_bytes(out.getvalue().encode("utf-8", "replace"))
        assert len(list(SeparatedValues(path).read())) == len(rows)


@given(
    # Without tabs in the texts, a line with the right number of which may be a row.
    rows=st.lists(st.tuples(st.text(st.characters(exclude_characters="\t\r"), max_size=9), st.text('ab"', max_size=3))),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
)
@example(rows=[(NULL, "a")], encoding="utf-8")
def test_what_python_writes_with_tabs_is_read(rows: list[tuple[str, str]], encoding: str) -> None:
    out = io.StringIO()
    writer = csv.writer(out, dialect="excel-tab")
    writer.writerows([("text", "labels"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tsv"
        path.write_bytes(out.getvalue().encode(encoding, "replace"))
        found = list(SeparatedValues(path).read())
    texts = [None if text == NULL else text.encode("utf-8", "replace").decode().replace("\0", " ") for text, _ in rows]
    assert [record.text if isinstance(record, Document) else None for record in found] == texts


@given(content=st.binary(max_size=80))
def test_any_bytes_are_read_without_a_crash(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(content)
        for reader in (ParquetRows, ArrowRows):
            assert all(isinstance(record, Rejection) for record in reader(path).read())
        path.write_bytes(b"text,labels\n" + content)
        for record in SeparatedValues(path).read():
            assert record.line >= 2
            if isinstance(record, Document):
                "".join((record.text, *record.labels)).encode()


def _bytes_of(parquet: bool) -> bytes:
    out = pa.BufferOutputStream()
    rows = table([{"id": str(i), "text": f"text {i}", "labels": ["a", f"b{i}"]} for i in range(40)])
    if parquet:
        pq.write_table(rows, out, row_group_size=15)
    else:
        with pa.ipc.new_stream(out, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=15)
    return out.getvalue().to_pybytes()


WHOLE = {ParquetRows: _bytes_of(True), ArrowRows: _bytes_of(False)}


@given(damage=st.dictionaries(st.integers(0, 10_000), st.integers(0, 255), min_size=1, max_size=3))
@example(damage={1471: 252})  # an offset outside of its buffer
def test_damaged_tables_are_read_without_a_crash(damage: dict[int, int]) -> None:
    for reader, whole in WHOLE.items():
        content = bytearray(whole)
        for place, byte in damage.items():
            content[place % len(content)] = byte
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a"
            path.write_bytes(content)
            try:
                records = list(reader(path).read())
            except ValueError as error:
                assert "has no column" in str(error)
                continue
            assert len({record.line for record in records}) == len(records)


def test_the_header_of_an_appended_file_may_have_another_order(tmp_path: Path) -> None:
    rows = "text,labels\nA cat.,pets\nlabels,text\nsport,A ball.\nText,Labels\nA dog.,pets\n"
    found = rows_of(tmp_path / "a.csv", rows)
    assert found == [(2, "A cat.", "pets"), (4, "A ball.", "sport"), (6, "A dog.", "pets")]


def test_a_repeated_header_with_empty_columns_may_have_another_order(tmp_path: Path) -> None:
    """Excel writes columns without a name at the end of each row."""
    rows = rows_of(tmp_path / "a.csv", "text,labels,,\na,x,,\nlabels,text,,\ny,b,,\n")
    assert rows == [(2, "a", "x"), (4, "b", "y")]


def test_blank_lines_before_the_header(tmp_path: Path) -> None:
    assert rows_of(tmp_path / "a.csv", "\n\nid;text;labels\n1;a;x\n") == [(4, "a", "x")]


def test_class_labels_inside_of_objects(tmp_path: Path) -> None:
    features = {"ann": {"feature": {"label": {"names": ["art", "law"], "_type": "ClassLabel"}}, "_type": "Sequence"}}
    data = with_metadata(pa.table({"text": ["a"], "ann": [[{"label": 0}, {"label": 1}]]}), features)
    pq.write_table(data, tmp_path / "a.parquet")
    [record] = ParquetRows(tmp_path / "a.parquet", Fields(labels="ann.label")).read()
    assert isinstance(record, Document) and record.labels == ("art", "law")


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_floats_are_labels_of_their_shortest_decimals(values: list[float]) -> None:
    singles = np.array(values, np.float32)
    data = pa.table({
        "text": ["a"] * 2,
        "labels": pa.array([singles, None], pa.list_(pa.float32())),
        "in": pa.array([{"x": singles[0]}, {"x": None}], pa.struct([("x", pa.float32())])),
    })  # fmt: skip
    expected = labels_of(list(singles), "labels")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.parquet"
        pq.write_table(data, path)
        for name, labels in (("labels", expected), ("in.x", expected[:1])):
            records = list(ParquetRows(path, Fields(labels=name)).read())
            assert [record.labels for record in records if isinstance(record, Document)] == [labels, ()]
