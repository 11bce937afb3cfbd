"""The base model of all settings, types of paths, names and bounded numbers, and fingerprints."""

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import snowballstemmer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

HOME_VARIABLE = "AXML_RAY_HOME"


class SettingsError(ValueError):
    """A wrong setting, or wrong input that a setting names; the message names it and says how to fix it."""


class JobError(RuntimeError):
    """A job cannot go on, for a reason that the message explains, so that nobody needs the traceback."""


def absolute(path: str | Path) -> Path:
    """Return an absolute path, starting at `$AXML_RAY_HOME`, else at the current directory; globs are kept."""
    base = Path(os.environ.get(HOME_VARIABLE) or Path.cwd())
    return Path(os.path.normpath(base / Path(path).expanduser()))


def absolute_place(place: str | Path) -> str | Path:
    """Return an absolute path or glob; a URL is returned unchanged."""
    return place if "://" in str(place) else absolute(place)


def _known_stemmer(language: str) -> str:
    if language not in snowballstemmer.algorithms():
        raise ValueError(f"not a Snowball stemmer; choose one of {', '.join(snowballstemmer.algorithms())}")
    return language


def _tab(delimiter: str) -> str:
    return "\t" if delimiter == "tab" else delimiter


NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
"""Pattern of a name that serves as a directory's name."""
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
AbsolutePlace = Annotated[Path | str, AfterValidator(absolute_place)]
AbsolutePath = Annotated[Path, AfterValidator(absolute)]
Precision = Literal["auto", "bfloat16", "float16", "tf32", "float32"]
Weights = Literal["float32", "bfloat16", "int8"]
"""Number format of a bundle's matrices."""
SPLITS = ("train", "valid", "test")
LabelFeatures = Literal["tfidf", "word_vectors", "label_text"]
CsvDelimiter = Annotated[str, Field(pattern=r"^(tab|[^\r\n\"])$"), AfterValidator(_tab)]
Stemmer = Annotated[str, AfterValidator(_known_stemmer)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Settings(BaseModel):
    """Base of every group of settings: frozen; unknown keys, infinity and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def check_power_of_two(key: str, size: int) -> None:
    """Raise ValueError, which names the setting, unless `size` is a power of two."""
    if size & (size - 1):
        below = 1 << (size.bit_length() - 1)
        raise ValueError(f"{key} is {size}; take {below} or {2 * below} (2^c)")


def fingerprint(*parts: Any) -> str:
    """Return a hash of `parts` (settings models or JSON values): twelve hexadecimal digits."""
    plain = [part.model_dump(mode="json") if isinstance(part, BaseModel) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def at_level(values: tuple[int, ...], level: int) -> int:
    """Return the value for `level` (counted from 1); the last value also serves all deeper levels."""
    return values[min(level, len(values)) - 1]
