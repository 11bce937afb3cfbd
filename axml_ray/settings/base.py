"""The base model of all settings, types of paths, names and bounded numbers, and fingerprints."""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import snowballstemmer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from axml_ray.core.paths import absolute, absolute_place, portable, url_of


def _known_stemmer(language: str) -> str:
    if language not in snowballstemmer.algorithms():
        raise ValueError(f"not a Snowball stemmer; choose one of {', '.join(snowballstemmer.algorithms())}")
    return language


def read_tab(separator: str) -> str:
    r"""Return a separator, a tab if it is written as `tab` or `\t`."""
    return "\t" if separator in ("tab", r"\t") else separator


def _one_character(delimiter: str) -> str:
    if delimiter not in ("tab", r"\t") and (len(delimiter) != 1 or delimiter in '\r\n"'):
        raise ValueError("expected one character, or tab")
    return delimiter


def _field_names(given: Any) -> Any:
    """Return several names as a tuple, one as a string; commas separate names in a string, not in those of a list."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("expected the name of a field, or a list of names")
    return names[0] if len(names) == 1 and "," not in names[0] else tuple(names)


def _not_blank(place: Any) -> Any:
    if not isinstance(place, str | Path):
        raise ValueError("expected a path; put it in quotes")
    if isinstance(place, str) and not place.strip():
        raise ValueError("expected a path (an empty one would be the current directory)")
    return place


def _absolute_text(place: Any) -> Any:
    # Before pydantic makes it a path, which has one slash where a URL has two.
    return absolute(place) if isinstance(_not_blank(place), str) else place


def _directory_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise ValueError("expected letters, digits, '-', '_' and '.', first a letter or digit")
    return name


NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
"""Pattern of a name that serves as a directory's name."""
Name = Annotated[str, AfterValidator(_directory_name)]
_STORED = "stored"
_as_stored = PlainSerializer(
    lambda place, info: portable(place) if info.context == _STORED else (url_of(place) or str(place)),
    return_type=str,
    when_used="json",
)
AbsolutePlace = Annotated[Path | str, BeforeValidator(_not_blank), AfterValidator(absolute_place), _as_stored]
Places = Annotated[
    tuple[AbsolutePlace, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)
]
AbsolutePath = Annotated[Path, BeforeValidator(_absolute_text), AfterValidator(absolute), _as_stored]
Precision = Literal["auto", "bfloat16", "float16", "tf32", "float32"]
Weights = Literal["float32", "bfloat16", "int8"]
"""Number format of a bundle's matrices."""
SPLITS = ("train", "valid", "test")
FieldNames = Annotated[str | tuple[str, ...], BeforeValidator(_field_names)]
CsvDelimiter = Annotated[str, AfterValidator(_one_character), AfterValidator(read_tab)]
LabelSeparator = Annotated[str, Field(min_length=1), AfterValidator(read_tab)]
Stemmer = Annotated[str, AfterValidator(_known_stemmer)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list_type": "a list, such as [3]",
    "tuple_type": "a list, such as [3]",
    "string_type": "a text; put it in quotes",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
}
"""What a setting takes, by the beginning of the type of pydantic's error."""


def explain(problem: Any) -> str:
    """Return what is wrong with a value, without its key, for one of the errors of a pydantic `ValidationError`."""
    expected = next((words for kind, words in _EXPECTED.items() if problem["type"].startswith(kind)), None)
    if expected is not None:
        values = problem.get("ctx", {}).items()
        return "expected " + expected.format(**{name: f"{v:g}" if isinstance(v, float) else v for name, v in values})
    message: str = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return message.replace("tuple", "list").replace("Tuple", "List")


class Settings(BaseModel):
    """Base of every group of settings: frozen; unknown keys, infinity and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def stored(settings: BaseModel, **options: Any) -> dict[str, Any]:
    """Return settings as JSON values, with the paths that lie in the project's directory relative to it.

    `options` are those of pydantic's `model_dump`.
    """
    return settings.model_dump(mode="json", context=_STORED, **options)


def check_power_of_two(key: str, size: int) -> None:
    """Raise ValueError, which names the setting, unless `size` is a power of two."""
    if size & (size - 1):
        below = 1 << (size.bit_length() - 1)
        raise ValueError(f"{key} is {size}; take {below} or {2 * below} (2^c)")


def fingerprint(*values: Any) -> str:
    """Return a hash of `values` (settings models or JSON values): twelve hexadecimal digits."""
    plain = [value.model_dump(mode="json") if isinstance(value, BaseModel) else value for value in values]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def at_level(values: tuple[int, ...], level: int) -> int:
    """Return the value for `level` (counted from 1); the last value also serves all deeper levels."""
    return values[min(level, len(values)) - 1]
