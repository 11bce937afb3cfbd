"""Reads files of labels' readable names, as people have them, and gives each label its name.

| lines of the file | the name |
|---|---|
| cells, separated by tabs, or in CSV by commas, semicolons or bars | in another column than the label |
| names | line i names label i |
| JSON objects, as in the Extreme Classification Repository's `lbl.json` | `title`; line i names label i |

A header line is optional. Labels may be in angle brackets, in the file or in the corpus (`<http://example.org/1>`).
"""

import csv
import json
import logging
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.readers.line_blocks import Damage, read_line_blocks
from axml_ray.corpus.readers.source_files import format_suffix
from axml_ray.corpus.records.records import storable
from axml_ray.corpus.text.composition import composed

log = logging.getLogger(__name__)

MIN_COMMON_SHARE = 0.5
"""Smallest share of the corpus's labels that a file must have, or of the file's labels, if these are fewer, that the
corpus must have. A vocabulary has more labels than a corpus, and a corpus may have labels that nobody named."""
CSV_DELIMITERS = ",;|"
CSV_SAMPLE_ROWS = 20
"""Number of rows in which a delimiter must give the same number of cells."""
_KEY_COLUMN = re.compile(
    r"((label|name|title|term|heading)[_.:-]?)?(uri|url|iri|u?id|key|code|notation|concept|subject)", re.IGNORECASE
)
_NAME = r"((pref|alt)?_?label|name|title|term|text|heading|caption)s?"
_NAME_COLUMN = re.compile(_NAME + r"([_@.:-][a-z]{2,3}([_-]\w+)?)?", re.IGNORECASE)
"""Header of names, perhaps with a language."""
_PERHAPS_NAMES = re.compile(_NAME + r"([_@.:-].*)?", re.IGNORECASE)
"""Header of names, or one that only begins like it, such as `label_type` or `name_long`."""
_PAIR = re.compile(r'"?([^\s"]+?)"?\s*[,;:|\s]\s*\S')
"""Line of a label and its name without a tab."""
_MARKUP = re.compile(r"\s*(@prefix|@base|prefix\s|<\?xml|<rdf|<https?:)", re.IGNORECASE)
_NAMES_HEADER = re.compile(r"(label_?)?names?|labels?|titles?", re.IGNORECASE)
_BLOCK_BYTES = 1 << 22

Rows = list[tuple[int, list[str]]]
"""The cells of each line that is not blank, with its number from 1; in a file of names, one cell for every line."""


def name_labels(labels: Sequence[str], path: Path) -> list[str]:
    """Return the name of each label; the label itself if the file has none for it. The share that is named is logged.

    Raises:
        SettingsError: the file cannot be read, or has too few labels in common with the corpus.
    """
    rows, known = read_rows(path), {_key(label) for label in labels}
    if len(rows[0][1]) == 1:
        names, columns = _numbered_names(path, [cells[0] for _, cells in rows], known), "line i names label i"
    else:
        names, columns = _tabled_names([cells for _, cells in rows], known)
    names_of_labels = [names.get(_key(label), "") for label in labels]
    missing = [label for label, name in zip(labels, names_of_labels, strict=True) if not name]
    named = len(labels) - len(missing)
    example = next(
        (f", such as {label!r}: {name!r}" for label, name in zip(labels, names_of_labels, strict=True) if name), ""
    )
    log.info("prepare: %s names %s of %s labels (%s%s)", path, f"{named:,}", f"{len(labels):,}", columns, example)
    if named < MIN_COMMON_SHARE * min(len(labels), len(names)) or not named:
        keys = [key for key in names if key not in known]
        key = keys[min(1, len(keys) - 1)] if keys else next(iter(names), "")  # the first one may be a header
        raise SettingsError(
            f"corpus.label_names: {path} names {named:,} of {len(labels):,} labels ({columns}). It has {key!r}, the "
            f"corpus {missing[0]!r}; write lines of label, tab, name, with labels as in the corpus"
        )
    return [name or label for label, name in zip(labels, names_of_labels, strict=True)]


def read_rows(path: Path) -> Rows:
    """Read the rows of a file of names.

    Raises:
        SettingsError: the file cannot be read, is empty, or a line does not fit the others.
    """
    lines = _read_lines(path)
    if not any(line.strip() for line in lines):
        raise SettingsError(f"corpus.label_names: {path} holds no labels; expected lines of label, tab, name")
    while not lines[-1].strip():
        lines.pop()
    if re.match(r'\s*\[\s*(["{]|$)', lines[0]):
        raise _invalid(path, 1, "a JSON array; write lines of label, tab, name")
    if any("\t" in line for line in lines):
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        rows = [(number, [_unquoted(cell) for cell in line.split("\t")]) for number, line in numbered]
        for number, cells in rows:
            if len(cells) == 1:
                raise _invalid(path, number, "expected label, tab, name; found no tab")
        return rows
    if delimiter := _csv_delimiter(lines, is_csv=format_suffix(path) == ".csv"):
        return _csv_rows(path, lines, delimiter)
    if lines[0].lstrip().startswith("{"):
        return [(number, [_title(path, number, line)]) for number, line in enumerate(lines, 1)]
    return [(number, [_unquoted(line)]) for number, line in enumerate(lines, 1)]


def numbered_from(labels: Collection[str], rows: int) -> int:
    """Return the label of the first of `rows` rows of which row i belongs to label i: 0, or 1 if that is the first."""
    has_first, has_last = "0" in labels, str(rows) in labels
    if not has_first and not has_last:
        log.warning(
            "prepare: WARNING: the corpus has neither label 0 nor label %d, so its labels may count from 0 or 1; the "
            "first of %d rows of names or features is taken for label 0: if that is wrong, put another row before it",
            rows, rows,
        )  # fmt: skip
    return int(has_last and not has_first)


def _numbered_names(path: Path, lines: list[str], known: Collection[str]) -> dict[str, str]:
    """Return the names, or blanks, of labels that are numbers. A first line that can only be a header is skipped.

    Raises:
        SettingsError: the lines are no names, but labels with their names, or RDF.
    """
    pairs = {match[1] for line in lines if (match := _PAIR.match(line)) and match[1] in known}
    if _MARKUP.match(lines[0]) or 1 < len(pairs) > len(lines) / 2:
        raise _invalid(path, 1, f"expected a name alone, or label, tab, name; found {lines[0][:80]!r}")
    largest = max((int(label) for label in known if label.isdecimal()), default=0)
    if _NAMES_HEADER.fullmatch(lines[0]) and len(lines) > largest + ("0" in known):
        del lines[0]
    return {str(number): name for number, name in enumerate(lines, numbered_from(known, len(lines)))}


def _tabled_names(rows: list[list[str]], known: set[str]) -> tuple[dict[str, str], str]:
    """Return the name of each label of a table, blank if it has none, and which columns were used.

    The labels are in the first column, or in a column of keys, by its header, with no fewer of them: the first column
    of a table by pandas has the numbers of rows. They may be in a column `label` or `labels` if another one has names.
    """
    width = max(map(len, rows))  # cells that are empty at the end of a line may be missing
    rows = [[*cells, *[""] * (width - len(cells))] for cells in rows]
    of_keys = [column for column in range(width) if _KEY_COLUMN.fullmatch(rows[0][column])]
    of_names = [i for i in range(width) if i not in of_keys and _NAME_COLUMN.fullmatch(rows[0][i])]
    perhaps = [column for column in of_names if rows[0][column].lower() in ("label", "labels") and len(of_names) > 1]
    of_label = max([*of_keys, *perhaps, 0], key=lambda column: len({_key(cells[column]) for cells in rows} & known))
    header = rows[0] if _key(rows[0][of_label]) not in known else []

    def rank(column: int) -> int:
        """Return how far a column is from names: preferred ones, alternative ones, anything else, other keys."""
        if column in of_keys:
            return 4
        if header and _NAME_COLUMN.fullmatch(header[column]):
            return int(header[column].lower().startswith("alt"))
        return 2 if header and _PERHAPS_NAMES.fullmatch(header[column]) else 3

    of_name = min((column for column in range(width) if column != of_label), key=rank)
    columns = f"names of column {of_name + 1}, labels of column {of_label + 1}"
    names: dict[str, str] = {}
    for cells in rows:  # of several of a label, such as one for each language, the first that has a name counts
        if not names.get(key := _key(cells[of_label])):
            names[key] = cells[of_name]
    return names, columns


def _read_lines(path: Path) -> list[str]:
    """Return the lines without their ends; storable and composed. A file that cannot be read is a SettingsError."""
    blocks, content = [], b""
    try:
        for block in read_line_blocks(path, _BLOCK_BYTES):
            if isinstance(block, Damage):
                raise OSError(block.reason)
            blocks.append(block)
        content = b"".join(blocks)
        text = content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise _invalid(path, 1 + content.count(b"\n", 0, error.start), f"not UTF-8 ({error.reason})") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"corpus.label_names: {path} cannot be read: {error}") from None
    return composed(storable(text)).split("\n")


def _csv_delimiter(lines: list[str], *, is_csv: bool) -> str | None:
    """Return the delimiter with which all rows have the same number of cells, None if the lines are names.

    A file that is not called CSV is one only if it has a header.
    """
    for delimiter in CSV_DELIMITERS:
        try:
            sample = [row for _, row in zip(range(CSV_SAMPLE_ROWS), _csv(lines, delimiter), strict=False) if row]
        except csv.Error:
            continue
        if len(sample[0]) > 1 and len({*map(len, sample)}) == 1:
            titles = [cell for cell in sample[0] if _KEY_COLUMN.fullmatch(cell) or _PERHAPS_NAMES.fullmatch(cell)]
            return delimiter if is_csv or len(titles) > 1 else None
    return next((delimiter for delimiter in CSV_DELIMITERS if is_csv and delimiter in lines[0]), None)


def _csv_rows(path: Path, lines: list[str], delimiter: str) -> Rows:
    """Return the rows of a CSV file, numbered by the line on which each begins; of one column also blank ones."""
    reader, begin = _csv(lines, delimiter), 1
    rows: Rows = []
    width = 0
    try:
        for row in reader:
            width = width or len(row)
            if row and len(row) != width:
                raise csv.Error(f"has {len(row)} cells, the first line has {width}")
            rows.append((begin, [cell.strip() for cell in row] or [""]))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise _invalid(path, begin, str(error)) from None
    return [(number, cells) for number, cells in rows if len(cells) == width]


def _csv(lines: list[str], delimiter: str) -> Any:
    return csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)


def _title(path: Path, number: int, line: str) -> str:
    try:
        title = json.loads(line)["title"]
    except (ValueError, KeyError, TypeError):
        title = None
    if not isinstance(title, str):
        raise _invalid(path, number, "expected an object with a title, a string")
    return composed(storable(title)).strip()


def _unquoted(cell: str) -> str:
    """Return a cell without blanks around it, and without quotes around all of it, nor a language as in RDF."""
    cell = re.sub(r'^(".*")(@[\w-]+|\^\^\S+)$', r"\1", cell.strip())
    inner = cell[1:-1].replace('""', "")
    return cell[1:-1].replace('""', '"').strip() if len(cell) > 1 and cell[0] == cell[-1] == '"' not in inner else cell


def _key(label: str) -> str:
    """Return a label as it is compared: composed, and without angle brackets around it."""
    label = composed(label).strip()
    return label[1:-1].strip() if label.startswith("<") and label.endswith(">") else label


def _invalid(path: Path, line: int, reason: str) -> SettingsError:
    return SettingsError(f"corpus.label_names: {path}:{line}: {reason}")
