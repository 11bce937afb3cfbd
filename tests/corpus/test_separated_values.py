"""CSV and TSV files, as programs write them and as people damage them."""

import codecs
import csv
import gzip
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from axml_ray.corpus.readers import separated_values
from axml_ray.corpus.readers.columns import MissingColumn
from axml_ray.corpus.readers.separated_values import NULL, SeparatedValues
from axml_ray.corpus.records.records import Document, Fields, Rejection


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


def test_a_file_without_a_column_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,labels\nx,a\n")
    with pytest.raises(ValueError, match="has no column 'text'; its columns are body, labels"):
        list(SeparatedValues(tmp_path / "a.csv").read())
    for content in ("text,labels,labels\nx,a,b\n", "text;text;labels\nx;y;a\n"):
        (tmp_path / "a.csv").write_text(content)
        with pytest.raises(ValueError, match="several columns"):
            list(SeparatedValues(tmp_path / "a.csv").read())
    (tmp_path / "b.csv").write_text("text\nx\n")
    assert len(list(SeparatedValues(tmp_path / "b.csv", Fields(labelled=False)).read())) == 1


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
    monkeypatch.setattr(separated_values, "BLOCK_BYTES", 1_000)
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


@given(content=st.binary(max_size=80))
def test_any_bytes_are_read_without_a_crash(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(b"text,labels\n" + content)
        for record in SeparatedValues(path).read():
            assert record.line >= 2
            if isinstance(record, Document):
                "".join((record.text, *record.labels)).encode()
