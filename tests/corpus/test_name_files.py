"""Files of names: as tables, CSV or lists, with and without a header, give each label its own name."""

import gzip
import logging
from pathlib import Path

import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.labels.name_files import name_labels, read_rows

URIS = ["http://x/1", "http://x/2", "http://x/3"]


@pytest.mark.parametrize("header", [True, False], ids=["header", "no header"])
@pytest.mark.parametrize(
    ("file", "first", "lines"),
    [
        ("n.tsv", "label\tname", "http://x/1\tcat\nhttp://x/2\tdogs, big\nhttp://x/3\t\n"),
        ("n.tsv", "uri\tlabel_en\tnotation", "<http://x/1>\tcat\tA\n<http://x/2>\tdogs, big\tB\n<http://x/3>\t\tC\n"),
        ("n.txt", "label\tname", 'http://x/1\t"cat"\r\n<http://x/2>\t"dogs, big"\r\nhttp://x/3\t""\r\n'),
        ("n.csv", "uri,label_en,label_fi", 'http://x/1,cat,x\nhttp://x/2,"dogs, big",y\nhttp://x/3,,z\n'),
        ("n.CSV", "concept;name", '\n"<http://x/1>";cat\n<http://x/2>;"dogs, big"\nhttp://x/3;"\n"\n'),
    ],
    ids=["tsv", "annif tsv", "quoted tsv", "annif csv", "semicolons"],
)
def test_tables(tmp_path: Path, file: str, first: str, lines: str, header: bool) -> None:
    path = tmp_path / file
    path.write_text("\ufeff" + (f"{first}\n" if header else "") + lines, encoding="utf-8")
    assert name_labels(URIS, path) == ["cat", "dogs, big", "http://x/3"]
    path.with_name(f"{file}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert name_labels([f"<{uri}>" for uri in URIS], path.with_name(f"{file}.gz"))[:2] == ["cat", "dogs, big"]


def test_a_header_names_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_text("notation,prefLabel,uri\n1.1,cat,http://x/1\n1.2,dog,http://x/2\n", encoding="utf-8")
    assert name_labels(URIS, path) == ["cat", "dog", "http://x/3"]
    assert name_labels(["1.1", "1.2"], path) == ["cat", "dog"]
    path.write_text("uri\tnotation\tlabel_en\nhttp://x/1\t1\tcat\nhttp://x/2\t2\tdog\n", encoding="utf-8")
    assert name_labels(URIS, path) == ["cat", "dog", "http://x/3"]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("uri,altLabel,prefLabel", "{uri},feline,{name}"),
        ("uri,label,altLabel", "{uri},{name},feline"),
        ("uri,label,label_fr", "{uri},{name},chat"),
        ("notation,uri,Bezeichnung", "{number},{uri},{name}"),
        ("uri,notation,Bezeichnung", "{uri},{number},{name}"),
    ],
)
def test_names_are_in_the_likeliest_column(tmp_path: Path, header: str, row: str) -> None:
    rows = [row.format(uri=URIS[i], number=i, name=name) for i, name in enumerate(("cat", "dog"))]
    (tmp_path / "n.csv").write_text("\n".join([header, *rows]))
    assert name_labels(URIS, tmp_path / "n.csv") == ["cat", "dog", URIS[2]]


@pytest.mark.parametrize(
    "header",
    [
        ",label_id,name",
        "Unnamed: 0,id,label",
        "rank,id,name",
        ",label,name",
        ",labels,names",
        '"","label","name"',
        "index,Label,title",
    ],
)
def test_numbers_of_rows_are_no_labels(tmp_path: Path, header: str) -> None:
    """As pandas writes them before the columns of a table."""
    (tmp_path / "n.csv").write_text(f"{header}\n0,3,Art\n1,1,Law\n2,0,Music\n3,2,Physics\n")
    assert name_labels(["0", "1", "2", "3"], tmp_path / "n.csv") == ["Music", "Law", "Physics", "Art"]


def test_the_first_name_of_a_label_counts(tmp_path: Path) -> None:
    rows = ["1\tcat", "2\t", "2\tdog", "1\tKatze", "2\tHund"]
    (tmp_path / "n.tsv").write_text("\n".join(rows))
    assert name_labels(["1", "2"], tmp_path / "n.tsv") == ["cat", "dog"]


@pytest.mark.parametrize("lines", ["1\t \n2\t\n3\tdog\n", "\n\n\ndog\n", "1\t \n"])
def test_a_blank_is_no_name(tmp_path: Path, lines: str) -> None:
    (tmp_path / "n.tsv").write_text(lines)
    with pytest.raises(SettingsError, match=r"names [01] of 3 labels"):
        name_labels(["1", "2", "3"], tmp_path / "n.tsv")


@pytest.mark.parametrize(
    ("lines", "labels", "names"),
    [
        ("cats\n\n big, dogs \n", ["0", "1", "2"], ["cats", "1", "big, dogs"]),
        ("cats\ndogs\n", ["1", "2"], ["cats", "dogs"]),  # counted from 1
        ("cats\ndogs\n\n \n", ["1", "2"], ["cats", "dogs"]),
        ("cats\ndogs\nmice\n", ["1", "2"], ["dogs", "mice"]),
        ("Name\ncats\ndogs\n", ["0", "1"], ["cats", "dogs"]),
        ("name\ncats\ndogs\n", ["1", "2"], ["cats", "dogs"]),
        ("name\ncats\ndogs\n", ["0", "1", "2"], ["name", "cats", "dogs"]),  # not a header: label 2 has a name too
        ("text mining\ncats\ndogs\n", ["0", "1"], ["text mining", "cats"]),
        ('{"uid": "a", "title": "caf\\ud83d"}\n{"title": "u\\u0308"}\n', ["1", "0"], ["ü", "caf"]),
    ],
)
def test_names_by_number(tmp_path: Path, lines: str, labels: list[str], names: list[str]) -> None:
    path = tmp_path / "Yf.txt"
    path.write_text(lines, encoding="utf-8")
    assert name_labels(labels, path) == names


def test_a_first_label_that_cannot_be_told_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Labels count from 0 or from 1, and neither 0 nor the number of lines is a label of the corpus."""
    (tmp_path / "names.txt").write_text("cats\ndogs\nmice\n", encoding="utf-8")
    for labels, warned in ((["0", "2"], False), (["1", "3"], False), (["1", "2"], True)):
        caplog.clear()
        name_labels(labels, tmp_path / "names.txt")
        assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == ["WARNING"] * warned


def test_blank_lines_of_a_csv_file_with_one_column_count(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text('"Art, music"\n\nChemistry\n', encoding="utf-8")
    assert name_labels(["1", "2", "3"], tmp_path / "n.csv") == ["Art, music", "2", "Chemistry"]


@pytest.mark.parametrize("header", ["label,notation,name_fi", "concept,name,x", "title,key,name"])
def test_labels_may_be_in_the_first_column_whatever_the_header(tmp_path: Path, header: str) -> None:
    (tmp_path / "n.csv").write_text(f"{header}\nart,1.1,taide\nlaw,1.2,oikeus\n", encoding="utf-8")
    named = name_labels(["law", "art"], tmp_path / "n.csv")
    assert named != ["law", "art"] and len(set(named)) == 2


def test_a_csv_file_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text('0,"cats, small"\n1,dogs\n', encoding="utf-8")
    assert name_labels(["0", "1"], tmp_path / "n.csv") == ["cats, small", "dogs"]
    (tmp_path / "n.csv").write_text('"cats"\ndogs\n', encoding="utf-8")
    assert name_labels(["0", "1"], tmp_path / "n.csv") == ["cats", "dogs"]


def test_the_share_is_logged_and_below_half_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "n.tsv"
    path.write_text("label\tname\nx/1\tcat\nhttp://x/2\tdog\n", encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="axml_ray"):
        assert name_labels(URIS[:2], path) == ["http://x/1", "dog"]
    assert "1 of 2" in caplog.text
    assert "'http://x/2': 'dog'" in caplog.text
    for labels, lines in (
        (URIS, "x/1\tcat\nx/2\tdog\n"),
        (["cat", "dog"], "Cat\nDog\n"),
        (["cat", "dog"], "uri,label\nhttp://x/1,cat\nhttp://x/2,dog\n"),  # labels are names already
    ):
        path.write_text(lines, encoding="utf-8")
        with pytest.raises(SettingsError, match=rf"^corpus.label_names: .* 0 of {len(labels)} .*'{labels[0]}'"):
            name_labels(labels, path)


def test_few_labels_may_have_names(tmp_path: Path) -> None:
    """And a vocabulary may have many more labels than the corpus."""
    path = tmp_path / "n.tsv"
    path.write_text("x/1\tcat\n", encoding="utf-8")
    labels = [f"x/{number}" for number in range(9)]
    assert name_labels(labels, path) == ["x/0", "cat", *labels[2:]]
    path.write_text("".join(f"x/{number}\tname {number}\n" for number in range(99)), encoding="utf-8")
    assert name_labels(labels, path) == [f"name {number}" for number in range(9)]


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("n.tsv", b"", "n.tsv holds no labels; expected lines of label, tab, name"),
        ("n.tsv", b"\n \n", "n.tsv holds no labels"),
        ("n.tsv", b"a\tb\nc d\n", "n.tsv:2: expected label, tab, name; found no tab"),
        ("n.tsv", b"a\tb\nc\t\xe9\n", "n.tsv:2: not UTF-8"),
        ("n.tsv", None, "n.tsv cannot be read: [Errno 2] No such file"),
        ("n.tsv", gzip.compress(b"a\tb\n" * 99, mtime=0)[:-9], "n.tsv cannot be read"),
        ("n.xlsx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "n.xlsx cannot be read"),
        ("n.json", b'["cats", "dogs"]\n', "n.json:1: a JSON array"),
        ("n.json", b'[\n {"uri": "a", "label": "b"}]\n', "n.json:1: a JSON array"),
        ("n.csv", b"a,b\nc,d\ne,f,g\n", "n.csv:3: has 3 cells"),
        ("n.csv", b'a,b\nc,"d\ne,f\n', "n.csv:2: unexpected end of data"),
        ("lbl.json", b'{"title": "First"}\n{"uid": "b"}\n', "lbl.json:2: expected an object with a title"),
        ("lbl.json", b'{"title": "First"}\n{"title": null}\n', "lbl.json:2: expected an object with a title, a string"),
    ],
)
def test_wrong_files(tmp_path: Path, file: str, content: bytes | None, expected: str) -> None:
    path = tmp_path / file
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_rows(path)
    assert str(caught.value).startswith("corpus.label_names: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("uri,label_id,name", "{},1{},cat"),
        ("label_uri,label_code,label", "{},{},cat"),
        ("uri,label_count,label", "{},{},cat"),
        ("uri,label_type,prefLabel", "{},C{},cat"),
        ("uri,name_long,label_de-AT", "{},C{},cat"),
        ("uri,number,label_long", "{},C{},cat"),
    ],
)
def test_what_only_begins_like_names_is_none(tmp_path: Path, header: str, row: str) -> None:
    path = tmp_path / "n.csv"
    path.write_text("\n".join([header, *(row.format(uri, number) for number, uri in enumerate(URIS))]) + "\n")
    assert name_labels(URIS, path) == ["cat"] * 3


def test_missing_cells_at_the_end_of_a_line_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "n.tsv"
    path.write_text("uri\tnotation\tlabel_en\nhttp://x/1\tA1\tcat\nhttp://x/2\tA2\tdog\nhttp://x/3\tA3\n")
    assert name_labels(URIS, path) == ["cat", "dog", "http://x/3"]


def test_strings_as_sparql_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "n.tsv"
    path.write_text('?uri\t?label\n<http://x/1>\t"cat"@en\n<http://x/2>\t"dog"@de-AT\n<http://x/3>\t"a"^^xsd:string\n')
    assert name_labels(URIS, path) == ["cat", "dog", "a"]


@pytest.mark.parametrize(
    "content",
    ["2,Music\n0,Art\n1,Law\n", "2 Music\n0 Art\n1 Law\n", '"2": Music\n"0": Art\n"1": Law\n',
     "@prefix skos: <http://x> .\n<http://x/0> a skos:Concept .\n\n", "<?xml version='1.0'?>\n<rdf>\n</rdf>\n"],
)  # fmt: skip
def test_labels_with_names_are_no_names_by_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "n.txt"
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"n\.txt:1: "):
        name_labels(["0", "1", "2"], path)
    path.write_text("Music\n2 Art\nLaw\n")
    assert name_labels(["0", "1", "2"], path) == ["Music", "2 Art", "Law"]
