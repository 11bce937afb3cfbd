"""Sizes of the code: lines of each room, settings, modules at the top, longest files and functions, share of comments.

    python benchmarks/figures.py

The frames from a command to an optimizer step are not among the figures: they are those of three processes (the
command, a task of a tree, and a worker of Ray Train), so that no single call stack has them.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
PRODUCT = ("axml_ray", "serve_app", "jobs", "tune_spaces")
DIRECTIVE = re.compile(r"#\s*(noqa|fmt:|type:|pragma)")
LONGEST = 10


def room(path: Path) -> str:
    """Return the room of a file: its package below `axml_ray`, else its top-level directory."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "axml_ray" and len(parts) > 2 else parts[0]


def comments(source: str) -> int:
    """Return the number of comments for readers: directives such as `# noqa` are not counted."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string) for token in tokens)


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that have code: no empty line, no comment alone, no docstring."""
    tree, lines = ast.parse(source), set()
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for number, line in enumerate(source.splitlines(), start=1):
        if line.strip() and not line.strip().startswith("#") and number not in docstrings:
            lines.add(number)
    return lines


def functions(source: str) -> Iterator[tuple[int, str]]:
    """Yield the length in lines and the name of each function and method."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def count_settings(model: type[BaseModel]) -> int:
    """Return the number of settings of a model, those of its groups included."""
    kinds = [field.annotation for field in model.model_fields.values()]
    return sum(count_settings(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else 1 for kind in kinds)


def print_table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows of a name and figures below a title."""
    print(f"\n{title}")
    for name, *figures in rows:
        print(f"  {name:<60}" + "".join(f" {figure:>8}" for figure in figures))


def main() -> None:
    """Print all figures."""
    from axml_ray.settings import Experiment
    from serve_app.__main__ import ServerSettings

    paths = sorted(path for top in PRODUCT for path in (ROOT / top).rglob("*.py"))
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    lines = {path: len(source.splitlines()) for path, source in sources.items()}
    rows = []
    for name in sorted({room(path) for path in paths}):
        files = [path for path in paths if room(path) == name]
        code = sum(len(code_lines(sources[path])) for path in files)
        share = sum(comments(sources[path]) for path in files) / max(1, code)
        rows.append((name, f"{sum(lines[path] for path in files):,}", f"{share:.1%}"))
    print_table("Lines of each room, and comments per line of code", [*rows, ("all", f"{sum(lines.values()):,}")])
    counts = {
        "settings of a run": count_settings(Experiment),
        "settings of the server": count_settings(ServerSettings),
        "modules at the top of axml_ray": len(list((ROOT / "axml_ray").glob("*.py"))),
        "files": len(paths),
    }
    print_table("Counts", [(name, str(number)) for name, number in counts.items()])
    longest = sorted(paths, key=lambda path: -lines[path])[:LONGEST]
    print_table("Longest files", [(str(path.relative_to(ROOT)), str(lines[path])) for path in longest])
    sizes = [(size, f"{path.relative_to(ROOT)}: {name}") for path in paths for size, name in functions(sources[path])]
    print_table("Longest functions", [(name, str(size)) for size, name in sorted(sizes, reverse=True)[:LONGEST]])


if __name__ == "__main__":
    main()
