"""Installed Python packages as a corpus that everyone has: docstrings, labelled by where they live and what they take.

- Sources are parsed with `ast`; nothing is imported or run.
- **Private and nested definitions and dunder methods count too.** With them this project's environment gave 38,107
  distinct documents of 122 words, close to the corpus that the project's first figures came from; public names alone
  gave 29,201 of 135 words.
"""

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from axml_ray.corpus.records import Document, Rejection, storable

MIN_WORDS = 25
MODULE_DEPTH = 4

# Installers are in every environment in another version; this project's own texts would be its own exam.
LEFT_OUT_PACKAGES = frozenset({"pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel", "axml_ray"})
# Tools of the tests that came after the first figures, which would no longer compare.
LEFT_OUT_TOOLS = frozenset(
    {"graphql", "greenlet", "harfile", "hypothesis_graphql", "jsonschema_rs", "playwright", "pyrate_limiter"}
    | {"schemathesis", "werkzeug"}
)
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
    if not name.isidentifier() or name.startswith("_") or name in LEFT_OUT_PACKAGES | LEFT_OUT_TOOLS:
        return False
    return entry.is_dir() or entry.suffix == ".py"
