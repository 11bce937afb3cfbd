"""Reads the docstrings of installed Python packages, a corpus that every environment has.

A docstring's labels are its module, its class and its arguments. Sources are parsed with `ast`; nothing is imported or
run. Private and nested definitions and dunder methods are included: they add about a third more documents.
"""

import ast
import gc
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from axml_ray.corpus.records.records import Document, Rejection, storable

MIN_WORDS = 25
MODULE_DEPTH = 4

# Versions of installers differ between environments; this project must not be trained on its own docstrings.
EXCLUDED_PACKAGES = frozenset({"pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel", "axml_ray"})
# Test tools that were added after the first published figures; with them, figures would not be comparable.
EXCLUDED_TOOLS = frozenset(
    {"graphql", "greenlet", "harfile", "hypothesis_graphql", "jsonschema_rs", "playwright", "pyrate_limiter"}
    | {"schemathesis", "werkzeug"}
)
TEST_FOLDERS = frozenset({"test", "tests", "testing", "_tests"})
TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")

BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields of a syntax node with its statements, exception handlers or cases, in the order of the source."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """Reads a top-level package or module of a site-packages directory.

    A document is the docstring of a function, method or class, of at least `MIN_WORDS` words. Its labels are the
    prefixes of its public module path, at most `MODULE_DEPTH` names deep, such as `scipy`, `scipy.sparse` and
    `scipy.sparse.linalg` of `_norm.py` there; the class that contains the method, or the class itself; and
    the arguments of the function, or of the class's own `__init__`, without `self` and `cls`.

    Files that do not parse, such as templates and Python 2 sources, are skipped, because they are not the user's input.
    """

    path: Path

    def read(self) -> Iterator[Document | Rejection]:
        """Stream the docstrings, files in sorted order, with ids like `scipy/sparse/linalg/_norm.py:21`."""
        for file in sorted(self.path.rglob("*.py")) if self.path.is_dir() else [self.path]:
            relative = file.relative_to(self.path.parent)
            is_test = not TEST_FOLDERS.isdisjoint(relative.parts[:-1]) or TEST_FILE.fullmatch(relative.name)
            if is_test or not file.is_file():
                continue
            # Names with a leading underscore are omitted, because users import from the package above them.
            public = [storable(name) for name in relative.with_suffix("").parts if not name.startswith("_")]
            modules = [".".join(public[:depth]) for depth in range(1, min(MODULE_DEPTH, len(public)) + 1)]
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


def _definitions(source: bytes) -> list[tuple[Definition, str | None]]:
    """Return each function and class of a module, in order, with the name of the class that is its label, if any."""
    was_enabled = gc.isenabled()
    gc.disable()  # the collector of cycles would traverse a large syntax tree again and again
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(source)
        definitions: list[tuple[Definition, str | None]] = []
        pending: list[tuple[ast.AST, str | None]] = [(module, None)]
        while pending:
            node, owner = pending.pop()
            if isinstance(node, ast.ClassDef):
                owner = node.name
            if isinstance(node, Definition):
                definitions.append((node, owner))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                owner = None  # a function in a method is not itself a method
            statements = [child for block in BLOCKS for child in getattr(node, block, ())]
            pending.extend((child, owner) for child in reversed(statements))
        return definitions
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: CPython's parser ran out of stack
        return []
    finally:
        if was_enabled:
            gc.enable()


def _argument_names(node: Definition) -> list[str]:
    if isinstance(node, ast.ClassDef):
        methods = [member for member in node.body if isinstance(member, ast.FunctionDef)]
        return next((_argument_names(method) for method in methods if method.name == "__init__"), [])
    own = node.args
    arguments = [*own.posonlyargs, *own.args, own.vararg, *own.kwonlyargs, own.kwarg]
    return [argument.arg for argument in arguments if argument and argument.arg not in {"self", "cls"}]


def installed_package_readers(site_packages: Path | None = None) -> list[InstalledPackage]:
    """Return a reader for each top-level package or module, sorted by name, of a directory or of this environment.

    Installers, this project and packages with a leading underscore are excluded, and so is every entry that cannot be
    imported by its name, such as `numpy-2.4.6.dist-info`, `numpy.libs` and `yaml-stubs`.

    Raises:
        FileNotFoundError: `site_packages` is not a directory.
        ValueError: it holds no package.
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
    packages = [entry for folder in folders for entry in folder.iterdir() if _is_package(entry)]
    if not packages:
        raise ValueError(f"no installed package in {', '.join(map(str, folders))}")
    return [InstalledPackage(path) for path in sorted(packages, key=lambda path: (path.name, path))]


def _is_package(entry: Path) -> bool:
    name = entry.name if entry.is_dir() else entry.name.removesuffix(".py")
    if not name.isidentifier() or name.startswith("_") or name in EXCLUDED_PACKAGES | EXCLUDED_TOOLS:
        return False
    return entry.is_dir() or entry.suffix == ".py"
