"""Turns the raw values of a record's fields into text and labels, by the same rules for every format.

| value | as text | as labels |
|---|---|---|
| null, NaN | missing | none |
| string, or its UTF-8 bytes | itself | its list (`['art', 'law']`), its URIs, or its parts between separators |
| number | an error | its decimal text: 3 and 3.0 are `3`, 0.50 is `0.5` |
| list, also nested | its texts, joined by line feeds | its values; null, NaN and blank strings are left out |
| boolean, object | an error | an error |
"""

import ast
import html.entities
import json
import math
import numbers
import re
import reprlib
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

MISSING = object()
"""The value of a field that a record does not have."""
INDICATORS = frozenset({"-1", "0", "1"})
"""The labels that lists of ones and zeros would give; some data sets write -1 for a label that nobody judged."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
URI = r"<?(?:[A-Za-z][A-Za-z0-9+.\-]*://|(?i:urn|info|doi):)"
"""Regular expression (RE2) of the beginning of a URI, which may be in angle brackets."""
_BRACKETED = re.compile(r"\s*(?:<[^<>\s]+>[\s;,|]*)+")
"""URIs in angle brackets, or tags as Stack Exchange writes them: `<c#><sql>`."""
_REFERENCE = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|([A-Za-z][A-Za-z0-9]*));")
"""What is a character reference of HTML, such as `&amp;`, if HTML has its name."""
_BARE_LIST = re.compile(r"\[([^\[\]{}]*)\]|\{([^\[\]{}]*)\}")
"""A list whose strings need no quotes, as Spark (`[fine art, law]`) and PostgreSQL (`{"fine art",law}`) write it."""
_BARE_PARTS = re.compile(r'\s*"((?:[^"\\]|\\.)*)"|([^,]+)', re.DOTALL)
_BARE_NULLS = frozenset({"null", "NULL", "None", "nan", "NaN"})
_WRITTEN_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.(0?|\d*[1-9]))?(e[-+]\d+)?|-?\d\.\d+E-?\d+")
"""A number as programs write it: `3`, `3.0`, `1e-05`, Java's `1.0E10`. `1E50`, `1_0`, `007` and `1.10` are codes."""
_CODE = re.compile(r"[-+]?\.?\d[\w.+-]*")
"""What Python may read as a number."""
_NUMPY_SCALAR = re.compile(r"""\bnp\.\w+\(('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^()'"]*)\)""")
_PLAIN = frozenset({str, int})
"""Types of most labels: a list of these needs no flattening."""
_TOKEN = re.compile(
    r"""[uUbB]?'(?:[^'\\]|\\.)*'|[uUbB]?"(?:[^"\\]|\\.)*"|[^\s,:\[\](){}'"]+|\S""",
    re.DOTALL,
)
"""A string, a number or name, or a punctuation mark of a list as Python writes it."""
_JSON_TYPES = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def storable(text: str) -> str:
    r"""Return `text` with NULs and lone surrogates replaced by blanks: `"a\0b"` becomes `"a b"`."""
    return _UNSTORABLE.sub(" ", text)


def json_type(value: object) -> str:
    """Return JSON's name of the type of `value`, with an article: `a list`."""
    return _JSON_TYPES.get(type(value), f"a {type(value).__name__}")


def top_field(path: str, names: Container[str]) -> str | None:
    """Return the field of a record that holds a path: the longest beginning of it that is one of `names`."""
    while path not in names:
        path, dot, _ = path.rpartition(".")
        if not dot:
            return None
    return path


def value_at(value: Any, path: str) -> Any:
    """Return the value at a path of field names with dots between them, or `MISSING`.

    A path leads through lists: `subjects.uri` of `{"subjects": [{"uri": "a"}, {"uri": "b"}]}` is `["a", "b"]`.
    """
    if isinstance(value, dict) and path in value:
        return value[path]
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        value = read_literal(value)  # as in a CSV cell
    if isinstance(value, list):
        values = [value_at(each, path) for each in flat(value)]
        present = [each for each in values if each is not MISSING]
        return present if present or not values else MISSING
    name = top_field(path, value) if isinstance(value, dict) else None
    if name is None:
        return MISSING
    return value[name] if name == path else value_at(value[name], path[len(name) + 1 :])


def read_literal(text: str) -> list[Any] | dict[str, Any] | None:
    """Return the list or object that a string holds as JSON, Python or NumPy write it, else None.

    Example: `['art', 'law']`, `["art", "law"]`, `('art', 'law')`, `{'art', 'law'}`, `['art' 'law']` and
    `[np.str_('art'), np.str_('law')]` are the same list; `[sic] art` and `[draft]` are none.
    """
    text = text.strip()
    if written_set := re.fullmatch(r"(?:frozen)?set\((.*)\)", text, re.DOTALL):
        text = written_set[1].strip() or "[]"
    if text[:1] + text[-1:] not in ("[]", "()", "{}"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an invalid escape, for example
                values = ast.literal_eval(f"[{_with_commas(text)}]")
            if text[0] == "(" and len(values) > 1:  # `(410), (94)` are two labels
                return None
            value = values[0] if len(values) == 1 else values
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            plain = _NUMPY_SCALAR.sub(r"\1", text)
            return read_literal(plain) if plain != text else None
    if isinstance(value, set):
        value = sorted(value, key=str)
    return list(value) if isinstance(value, list | tuple) else value if isinstance(value, dict) else None


def _with_commas(text: str) -> str:
    """Put commas between values, which NumPy leaves out: Python would read `['art' 'law']` as one string."""
    tokens = [{"nan": "None", "null": "None"}.get(token, token) for token in _TOKEN.findall(text)]
    pieces = []
    for token, following in zip(tokens, [*tokens[1:], "]"], strict=True):
        pieces.append(token)
        if token not in ",:[({" and following not in ",:])}":
            pieces.append(",")
    return " ".join(pieces)


def is_missing(value: object) -> bool:
    """Return whether a value is null or NaN, also as NumPy and pandas write them, or `MISSING`."""
    if value is None or value is MISSING or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, numbers.Real | Decimal) and bool(value != value)


def decoded(value: Any, field: str) -> Any:
    """Return a value, as a string if it is bytes: Parquet files of some programs do not say which bytes are text.

    Raises:
        ValueError: the bytes are not UTF-8; the message is the reason.
    """
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{field!r} is not UTF-8: byte 0x{value[error.start]:02x} at byte {error.start + 1}") from None


def text_of(value: Any, field: str) -> str | None:
    """Return the text of a field, or None if it is missing; the texts of a list are joined by line feeds.

    Raises:
        ValueError: the value is neither a string nor a list of strings; the message is the reason.
    """
    value = decoded(value, field)
    if isinstance(value, str):
        return storable(value)
    if is_missing(value):
        return None
    texts = [decoded(each, field) for each in flat(value) if not is_missing(each)]
    for each in texts:
        if isinstance(each, dict):
            raise ValueError(f"{field!r} is an object, not a string; {_name_of_field(field, each)}")
        if not isinstance(each, str):
            raise ValueError(f"{field!r} is {json_type(each)}, not a string")
    return storable("\n".join(texts))


def labels_of(value: Any, field: str, separator: str = ";", names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the labels of a field, stripped and not empty, in the order of the source; a label may be repeated.

    A string is split at `separator`, the strings of a list are not. If `names` are given, numbers are classes of them.

    Raises:
        ValueError: a label is neither a string nor a number, or no class has its number; the message is the reason.
    """
    value = decoded(value, field)
    if isinstance(value, str):
        value = _split(value, separator)
    elif isinstance(value, bool):
        raise ValueError(f"{field!r} is a boolean, not a list of labels")
    if type(value) is list and _PLAIN.issuperset(map(type, value)):
        values = value
    else:
        _check_no_weights(value)
        values = list(flat(value))
    # As many numbers as classes, which cannot all differ: ones and zeros instead of the classes' numbers.
    if 2 < len(names) == len(values) and all(isinstance(each, numbers.Real) and each in (0, 1) for each in values):
        values = [name for name, each in zip(names, values, strict=True) if each]
    labels = (_label(each, number, field, names) for number, each in enumerate(values, start=1))
    return tuple(label for label in labels if label)


def _check_no_weights(value: Any) -> None:
    """Raise ValueError for labels with their weights, which would be read as labels, too: in pairs or side by side."""
    pending = [value]
    while pending:
        values = pending.pop()
        if not isinstance(values, list | tuple | np.ndarray):
            continue
        if any(isinstance(each, str) for each in values) and any(map(_is_fraction, values)):
            raise ValueError(f"labels stand next to numbers, {reprlib.repr(values)}; give the labels alone")
        for number, each in enumerate(values, start=1):
            if isinstance(each, list | tuple | np.ndarray) and len(each) == 2 and _is_weight(*each):
                raise ValueError(f"label {number} is a pair with a number, {reprlib.repr(each)}; give the labels alone")
        pending.extend(values)


def _is_fraction(value: Any) -> bool:
    """Return whether a value is a number between 0 and 1, and thus a score rather than a code."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 < float(value) < 1


def _is_weight(label: Any, value: Any) -> bool:
    """Return whether a value next to a label is its weight: any number after a string, a float after an integer.

    A string may hold the weight: `0.9`.
    """
    if isinstance(label, str) and isinstance(value, str) and re.fullmatch(r"0?\.\d+", value):
        return not re.fullmatch(r"0?\.\d+", label)
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    if isinstance(label, str) or isinstance(value, numbers.Integral) or not isinstance(label, numbers.Real):
        return isinstance(label, str)
    return isinstance(label, numbers.Integral) or (float(label).is_integer() and not float(value).is_integer())


def id_of(value: Any, field: str) -> str | None:
    """Return the id of a record: a string, a number or a date, or the only value of a list; None if there is none.

    Raises:
        ValueError: the value is a boolean, an object, or a list of no or several values; the message is the reason.
    """
    if isinstance(value, list | tuple | np.ndarray) and len(value) == 1:
        value = value[0]
    value = decoded(value, field)
    if is_missing(value):
        return None
    if isinstance(value, bool | np.bool_ | list | tuple | dict | np.ndarray):
        hint = f"; {_name_of_field(field, value)}" if isinstance(value, dict) else ""
        raise ValueError(f"{field!r}, the id, is {json_type(value)}, not a string or a number{hint}")
    is_number = isinstance(value, numbers.Real | Decimal) and math.isfinite(value)
    return storable(decimal_text(value) if is_number else str(value)) or None


def _split(text: str, separator: str) -> list[Any] | dict[str, Any]:
    """Return the labels that a string holds: those of a list, URIs, or what is between separators and lines."""
    bare = _BARE_LIST.fullmatch(text.strip())
    if bare and (codes := _codes((bare[1] or bare[2] or "").split(","))):
        return codes
    literal = read_literal(text)
    if literal is not None:
        return literal or []
    if bare:
        inside = bare[1] or bare[2] or ""
        if separator in inside:
            return inside.split(separator)
        if not inside.lstrip().startswith("'"):
            parts = _BARE_PARTS.findall(inside)
            return [
                re.sub(r"\\(.)", r"\1", quoted) or _number(plain.strip())
                for quoted, plain in parts
                if plain.strip() not in _BARE_NULLS
            ]
    if uris := _uris(text, separator):
        return uris
    if separator == ";" and "&" in text:
        text = _REFERENCE.sub(_kept, storable(text))
        return [part.replace("\0", ";") for line in text.split("\n") for part in line.split(";")]
    return [part for line in text.split("\n") for part in line.split(separator)]


def _codes(parts: Sequence[str]) -> list[Any]:
    """Return the labels of a list without quotes if Python would read one that is a code as a number, else none."""
    parts = [part for each in parts if (part := each.strip()) not in _BARE_NULLS]
    if all(map(_WRITTEN_NUMBER.fullmatch, parts)) or not all(map(_CODE.fullmatch, parts)):
        return []
    return [_number(part) for part in parts]


def _number(part: str) -> str:
    """Return a label of a list without quotes, a number with a point as in a list of numbers: `1` for `1.0`."""
    return decimal_text(float(part)) if _WRITTEN_NUMBER.fullmatch(part) and not part.lstrip("-").isdecimal() else part


def _kept(reference: re.Match[str]) -> str:
    """Return a character reference with a NUL for its semicolon, which separates nothing; other text as it is."""
    is_known = reference[1] is None or f"{reference[1]};" in html.entities.html5
    return reference[0].replace(";", "\0") if is_known else reference[0]


def _uris(text: str, separator: str) -> list[str]:
    """Return what is in angle brackets, or URIs between whitespace, if a string consists of it; else an empty list."""
    if _BRACKETED.fullmatch(text):
        return re.findall(r"<([^<>\s]+)>", text)
    if ":" not in text:
        return []
    parts = [part.rstrip(";,|") for part in text.split()]
    return parts if all(re.match(URI, part) and separator not in part for part in parts) else []


def _label(value: Any, number: int, field: str, names: Sequence[str]) -> str:
    """Return a label, or an empty string for none; `number` is its position in the record, from 1, for messages."""
    if isinstance(value, str):
        return storable(value).strip()
    if type(value) is int and not names:
        return str(value)
    if isinstance(value, bytes):
        return _label(decoded(value, field), number, field, names)
    if is_missing(value):
        return ""
    if isinstance(value, dict):
        raise ValueError(f"label {number} is an object, not a string; {_name_of_field(field, value)}")
    if isinstance(value, bool | np.bool_):
        raise ValueError(f"label {number} is a boolean; name the labels that are true, or give each a field")
    if not isinstance(value, numbers.Real | Decimal) or not math.isfinite(value):
        raise ValueError(f"label {number} is {json_type(value)}, not a string: {reprlib.repr(value)}")
    if not names:
        return decimal_text(value)
    index = float(value)
    if not index.is_integer() or not 0 <= index < len(names):
        raise ValueError(f"label {number} is {value}; the names are of 0 to {len(names) - 1}")
    return storable(names[int(index)]).strip()


def _name_of_field(field: str, value: Mapping[str, Any]) -> str:
    return f"name one of its fields, such as {field}.{next(iter(value), 'name')}"


def decimal_text(number: Any) -> str:
    """Return a finite number without exponent and without zeros at its end: 3.0 is `3`, 1e-3 is `0.001`."""
    if isinstance(number, numbers.Integral):
        return str(int(number))
    text = format(Decimal(str(number)), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def is_positive(value: Any, field: str) -> bool:
    """Return whether a field of ones and zeros says that a record has the field's label; missing and blank are no."""
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        return False
    known = {"0": False, "1": True, "false": False, "true": True}
    text = str(value).strip().lower()
    text = text.removesuffix(".0")
    if text not in known:
        raise ValueError(f"{field!r} is {reprlib.repr(value)}, neither 0 nor 1")
    return known[text]


def are_one_hot(lengths: np.ndarray) -> bool:
    """Return whether lists of `INDICATORS` are vectors of ones and zeros, and not lists of the labels 0 and 1.

    Two labels make no list longer than two, unless one is repeated. A corpus whose texts all have both of two labels
    has nothing to learn, so there, too, pairs must be vectors. `lengths` (int [documents]) are those of the lists.
    """
    lengths = lengths[lengths > 0]
    return len(lengths) > 0 and bool((lengths > 2).mean() >= 0.5 or (lengths == 2).all())


def flat(value: Any) -> Iterator[Any]:
    """Yield the values of nested lists, or a value that is no list."""
    pending = [value]
    while pending:  # not recursive: lists may be nested deeply
        value = pending.pop()
        if isinstance(value, list | tuple | np.ndarray):
            pending.extend(reversed(value))
        else:
            yield value
