"""Readers: a place on disk becomes a stream of documents.

A place is listed once as *shards*, small picklable values that a Ray Data task, a test or a notebook opens
where it runs. `read()` streams: no file of records is ever held whole.

- **One bad line costs one record.** Lines are read as bytes and decoded one by one. What cannot be used comes
  back as a `Rejection` with file, line and reason, in the same stream and order as the documents around it.
- **Gzip is told by its first two bytes**, not by the file's name.
- **What neither Parquet nor a tokenizer can hold becomes a blank**: NUL, and halves of surrogate pairs, which
  escapes in JSON and Python can smuggle into a string although UTF-8 has no bytes for them.
- **Installed packages are a corpus that everyone has**: docstrings, labelled by where they live and what they
  take. Sources are parsed with `ast`; nothing is imported or run.
- **Private and nested definitions and dunder methods count too.** With them this project's environment gave
  38,107 distinct documents of 122 words, close to the corpus that the project's first figures came from;
  public names alone gave 29,201 of 135 words.
- Merging equal texts and dropping rare labels need the whole corpus, so they are the work of `prepare.py`.
"""

import ast
import codecs
import glob
import gzip
import json
import re
import reprlib
import sysconfig
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from axml_ray.settings import CorpusSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text and the names of its labels."""

    text: str
    labels: tuple[str, ...]
    """Distinct, stripped, none empty; in the order of the source. May be empty."""
    file: str
    line: int
    """Counted from 1."""
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record that could not be read, and why."""

    file: str
    line: int
    """Counted from 1."""
    reason: str


class Shard(Protocol):
    """A part of a source that one task reads."""

    @property
    def path(self) -> Path:
        """Where the shard lies."""

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the shard's documents in the order of the files."""


GZIP_MAGIC = b"\x1f\x8b"
JSON_LINES_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")

UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> str:
    r"""`text` with NULs and lone surrogates as blanks: `"a\0b"` becomes `"a b"`."""
    return UNSTORABLE.sub(" ", text)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A file, plain or gzip, with one JSON object `{"text": str, "labels": [str, ...]}` on each line.

    A string or integer under `id` becomes the document's id; without one it is `<file name>:<line>`. Other
    keys are ignored and blank lines are skipped.
    """

    path: Path
    labelled: bool = True
    """Whether a record must have labels."""

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the lines of the file.

        A truncated or corrupt gzip file ends in a rejection at the line where it broke. Truncation costs that
        line and what follows it; corruption also costs what was inflated in the same step, 128 KiB at most.

        Yields:
            A `Document` or a `Rejection` for each line that is not blank, in order.

        Raises:
            OSError: The file cannot be opened or read.
        """
        line = 0
        with self.path.open("rb") as raw:
            zipped = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            lines: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw
            try:
                for line, content in enumerate(lines, start=1):
                    if line == 1:
                        content = content.removeprefix(codecs.BOM_UTF8)
                    if content.strip():
                        yield self._record(content, line)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                reason = f"the gzip file is truncated or corrupt from here on: {error}"
                yield Rejection(file=storable(str(self.path)), line=line + 1, reason=reason)

    def _record(self, content: bytes, line: int) -> Document | Rejection:
        try:
            text, labels, given_id = parse_record(content, self.labelled)
        except ValueError as error:
            return Rejection(file=storable(str(self.path)), line=line, reason=str(error))
        document_id = given_id or storable(f"{self.path.name}:{line}")
        return Document(text=text, labels=labels, file=storable(str(self.path)), line=line, id=document_id)


def parse_record(content: bytes, labelled: bool = True) -> tuple[str, tuple[str, ...], str | None]:
    """Reads one line of a JSON-lines file.

    Args:
        content: The line, e.g. `b'{"text": "A cat.", "labels": ["pets", " cats", "pets"], "id": 7}'`.
        labelled: whether there must be labels; without, they are none where the key is missing.

    Returns:
        The text, the labels and the id, if it has one: `("A cat.", ("pets", "cats"), "7")`.

    Raises:
        ValueError: The line is no such record; the message is the plain reason.
    """
    try:
        record = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{content[error.start]:02x} at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object but {_kind(record)}")
    if not labelled:
        record.setdefault("labels", [])
    for key, wanted in (("text", str), ("labels", list)):
        if key not in record:
            raise ValueError(f"{key!r} is missing")
        if not isinstance(record[key], wanted):
            raise ValueError(f"{key!r} is {_kind(record[key])}, not {_KINDS[wanted]}")
    labels = []
    for position, label in enumerate(record["labels"], start=1):
        if not isinstance(label, str):
            raise ValueError(f"label {position} is {_kind(label)}, not a string: {reprlib.repr(label)}")
        label = storable(label).strip()
        if not label:
            raise ValueError(f"label {position} is empty")
        labels.append(label)
    given = record.get("id")
    given_id = storable(str(given)) if isinstance(given, str | int) and not isinstance(given, bool) else None
    return storable(record["text"]), tuple(dict.fromkeys(labels)), given_id


_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def _kind(value: object) -> str:
    return _KINDS[type(value)]


def json_lines_shards(patterns: Sequence[str | Path]) -> list[JsonLines]:
    """Lists the JSON-lines files that the patterns name, sorted by path, each once.

    Args:
        patterns: Each a file; a directory, which stands for the `*.jsonl`, `*.jsonl.gz`, `*.json` and
            `*.json.gz` files right in it; or a glob such as `"data/**/part-*.jsonl"`, which stands for the
            files it matches, whatever they are called. `~` is the home directory; hidden files must be named.

    Returns:
        One shard for each file, with an absolute path: a task may run in another working directory.

    Raises:
        FileNotFoundError: A pattern matches no file; the message names it.
        ValueError: A directory has no JSON-lines file.
    """
    files: set[Path] = set()
    for pattern in patterns:
        place = Path(pattern).expanduser().absolute()
        if place.is_dir():
            found = [path for path in place.iterdir() if _is_json_lines_name(path.name) and path.is_file()]
            if not found:
                wanted = ", ".join(f"*{suffix}" for suffix in JSON_LINES_SUFFIXES)
                raise ValueError(f"no JSON-lines file ({wanted}) in the directory {place}")
        elif place.exists():
            found = [place]
        else:
            # Path.glob would match hidden files as well and refuses absolute patterns.
            matches = glob.glob(str(place), recursive=True)  # noqa: PTH207
            found = [path for path in map(Path, matches) if path.is_file()]
            if not found:
                raise FileNotFoundError(f"no file matches {str(pattern)!r}")
        files.update(found)
    return [JsonLines(path) for path in sorted(files)]


def shards(patterns: Sequence[str | Path], settings: CorpusSettings, labelled: bool = True) -> list[JsonLines]:
    """The files that the patterns name, as `json_lines_shards` lists them.

    Args:
        patterns: files, directories or globs.
        settings: how they are read.
        labelled: whether records must have labels.
    """
    return [replace(shard, labelled=labelled) for shard in json_lines_shards(patterns)]


def _is_json_lines_name(name: str) -> bool:
    return name.endswith(JSON_LINES_SUFFIXES) and not name.startswith(".")


MIN_WORDS = 25
MODULE_DEPTH = 4

# Installers are in every environment in another version; this project's own texts would be its own exam.
LEFT_OUT_PACKAGES = frozenset({"pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel", "axml_ray"})
TEST_FOLDERS = frozenset({"test", "tests", "testing", "_tests"})
TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """One top-level package or module of a site-packages folder.

    A document is the docstring, 25 words or longer, of a function, method or class. Its labels are, in this
    order,

    - the prefixes of its public module path, four names deep at most, see `module_labels`;
    - the class: the one whose body directly holds the method, or the class itself;
    - the arguments of the function, or of the class's own `__init__`, without `self` and `cls`.

    Files that do not parse are skipped: they are templates and Python 2 leftovers, not the user's input.
    """

    path: Path

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the docstrings, files in sorted order.

        Yields:
            A `Document` for each docstring, with an id such as `scipy/sparse/linalg/_norm.py:21`; never a
            rejection.

        Raises:
            OSError: A file cannot be read.
        """
        for file in sorted(self.path.rglob("*.py")) if self.path.is_dir() else [self.path]:
            relative = file.relative_to(self.path.parent)
            if not file.is_file() or _is_test(relative):
                continue
            modules = module_labels(relative)
            for node, owner in _definitions(file.read_bytes()):
                text = storable(ast.get_docstring(node) or "")
                if len(text.split()) < MIN_WORDS:
                    continue
                labels = [*modules, *([owner] if owner else []), *_argument_names(node)]
                yield Document(
                    text=text,
                    labels=tuple(dict.fromkeys(labels)),
                    file=storable(str(file)),
                    line=node.lineno,
                    id=storable(f"{relative.as_posix()}:{node.lineno}"),
                )


def module_labels(relative: Path) -> list[str]:
    """The prefixes of the public module path of a source file, four names deep at most.

    Names with a leading underscore are left out of the path, for readers import from the package above them.

    Args:
        relative: The file's path in site-packages, e.g. `scipy/sparse/linalg/_norm.py`.

    Returns:
        `["scipy", "scipy.sparse", "scipy.sparse.linalg"]`.
    """
    public = [storable(name) for name in relative.with_suffix("").parts if not name.startswith("_")]
    return [".".join(public[:depth]) for depth in range(1, min(MODULE_DEPTH, len(public)) + 1)]


def _is_test(relative: Path) -> bool:
    return not TEST_FOLDERS.isdisjoint(relative.parts[:-1]) or TEST_FILE.fullmatch(relative.name) is not None


def _definitions(source: bytes) -> Iterator[tuple[Definition, str | None]]:
    """Each function and class of a module in order, with the class it is labelled with."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: CPython's parser out of stack
        return
    todo: list[tuple[ast.AST, str | None]] = [(module, None)]
    while todo:
        node, owner = todo.pop()
        if isinstance(node, ast.ClassDef):
            owner = node.name
        if isinstance(node, Definition):
            yield node, owner
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            owner = None  # a function in a method is not itself a method
        statements = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
        ]
        todo.extend((child, owner) for child in reversed(statements))


def _argument_names(node: Definition) -> list[str]:
    if isinstance(node, ast.ClassDef):
        methods = [member for member in node.body if isinstance(member, ast.FunctionDef)]
        return next((_argument_names(method) for method in methods if method.name == "__init__"), [])
    given = node.args
    arguments = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [argument.arg for argument in arguments if argument and argument.arg not in {"self", "cls"}]


def installed_package_shards(site_packages: Path | None = None) -> list[InstalledPackage]:
    """Lists the packages of a Python environment, sorted by name.

    Installers, this project and packages with a leading underscore are left out; so is every entry that
    cannot be imported by its name, such as `numpy-2.4.6.dist-info`, `numpy.libs` and `yaml-stubs`.

    Args:
        site_packages: The folder to list; by default those of the running interpreter.

    Returns:
        One shard for each top-level package or module.

    Raises:
        FileNotFoundError: `site_packages` is not a directory.
        ValueError: It holds no package.
    """
    if site_packages is None:
        installed = sysconfig.get_paths()
        # On some systems lib64 is a link to lib.
        folders = list(dict.fromkeys(Path(installed[key]).resolve() for key in ("purelib", "platlib")))
    else:
        folders = [site_packages.absolute()]
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"no such directory of installed packages: {folder}")
    found = [entry for folder in folders for entry in folder.iterdir() if _is_package(entry)]
    if not found:
        raise ValueError(f"no installed package in {', '.join(map(str, folders))}")
    return [InstalledPackage(path) for path in sorted(found, key=lambda path: (path.name, path))]


def _is_package(entry: Path) -> bool:
    name = entry.name if entry.is_dir() else entry.name.removesuffix(".py")
    if not name.isidentifier() or name.startswith("_") or name in LEFT_OUT_PACKAGES:
        return False
    return entry.is_dir() or entry.suffix == ".py"
