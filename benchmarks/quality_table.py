"""The table of scores in README.md, made of the results that `quality.py` and `peers.py` left.

    python benchmarks/quality_table.py [--check]

Rows of ours are `benchmarks/results/quality-*.json`; those of other systems on the same split are
`peers-quality-CORPUS-…seed0.json`, of the first of these runs, and `PUBLISHED`. A data set without a result of ours is
named, with the command that makes it.
`--check` says whether README.md is as the results are, and exits 1 where it isn't.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results_file

from axml_ray.files import whole_file

README = results_file.ROOT / "README.md"
BEGIN, END = "<!-- quality: made by benchmarks/quality_table.py -->", "<!-- end of quality -->"
HEADER = 2
COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "RP@5", "F1@5", "PSP@1", "PSP@3", "PSP@5")

Scores = dict[str, float]
PUBLISHED: dict[str, list[tuple[str, Scores]]] = {
    "eurlex57k": [
        ("omikuji 0.5.2, Parabel, three trees", {"P@1": 91.10, "P@3": 81.76, "P@5": 68.81}),
        ("omikuji 0.5.2, Bonsai, three trees", {"P@1": 90.90, "P@3": 81.76, "P@5": 69.03}),
        ("BERT (LibMultiLabel)", {"P@1": 90.42, "P@5": 67.27, "RP@5": 77.94, "nDCG@5": 80.63}),
        (
            "BERT with label-wise attention (LibMultiLabel)",
            {"P@1": 90.38, "P@5": 68.07, "RP@5": 78.83, "nDCG@5": 81.36},
        ),
    ],
    "tibkat": [
        ("omikuji, Parabel, three trees", {"P@1": 46.72, "P@3": 29.55, "P@5": 21.45, "F1@5": 26.77, "RP@5": 45.37}),
        ("omikuji, Bonsai, three trees", {"P@1": 49.02, "P@3": 31.09, "P@5": 22.61, "F1@5": 28.20, "RP@5": 47.79}),
        ("Annif, Omikuji Bonsai on translated texts", {"F1@5": 32.34}),
        ("Annif, three systems, first of SemEval-2025 task 5", {"F1@5": 35.04}),
    ],
    "docstrings": [],
    "finna_titles": [],
    "eurlex4k": [
        (
            "AttentionXML, three trees (paper)",
            {"P@1": 87.12, "P@3": 73.99, "P@5": 61.92, "PSP@1": 44.97, "PSP@3": 51.91, "PSP@5": 54.86},
        ),
    ],
    "wiki10_31k": [("AttentionXML, three trees (paper)", {"P@1": 87.47, "P@3": 78.48, "P@5": 69.37})],
    "amazoncat13k": [("AttentionXML, three trees (paper)", {"P@1": 95.92, "P@3": 82.41, "P@5": 67.31})],
    "amazon670k": [
        (
            "AttentionXML, three trees (paper)",
            {"P@1": 47.58, "P@3": 42.61, "P@5": 38.92, "PSP@1": 30.29, "PSP@3": 33.85, "PSP@5": 37.13},
        ),
    ],
    "wiki500k": [("AttentionXML, three trees (paper)", {"P@1": 76.95, "P@3": 58.42, "P@5": 46.14})],
    "amazon3m": [("AttentionXML, three trees (paper)", {"P@1": 50.86, "P@3": 48.04, "P@5": 45.83})],
}
"""What others report for the test split, in percent, by config."""


def main(arguments: list[str] | None = None) -> None:
    """Write the table into README.md, or check it."""
    parser = argparse.ArgumentParser(description="Make README's table of scores of the results.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where README.md is older")
    given = parser.parse_args(arguments)
    now = README.read_text(encoding="utf-8")
    then = with_table(now, table(results_file.RESULTS))
    if given.check:
        if now != then:
            print("README.md: its scores aren't those of benchmarks/results; run benchmarks/quality_table.py")
            raise SystemExit(1)
    else:
        with whole_file(README) as temporary:
            temporary.write_text(then, encoding="utf-8")


def with_table(text: str, lines: list[str]) -> str:
    """A text whose table is replaced.

    Raises:
        SystemExit: the marks that it lies between aren't there.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        print(f"README.md: give the table a place, between the lines {BEGIN!r} and {END!r}", file=sys.stderr)
        raise SystemExit(2)
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END]) + rest.partition(END)[2]


def table(results: Path) -> list[str]:
    """The lines of the table in Markdown, and of what wasn't run."""
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    missing = []
    for corpus, others in PUBLISHED.items():
        rows = [*others, *_peers(results, corpus), *_ours(results, corpus)]
        if not any(name.startswith("**") for name, _ in rows):
            missing.append(corpus)
        elif rows:
            found = {name: [scores[name] for _, scores in rows if name in scores] for name in COLUMNS}
            best = {name: max(values) for name, values in found.items() if len(values) > 1}
            lines.append(f"| **{corpus}** |" + " |" * len(COLUMNS))
            lines += [f"| {name} | {' | '.join(_cells(scores, best))} |" for name, scores in rows]
    commands = ", ".join(f"`{corpus}`" for corpus in missing)
    told = "Not run: " + commands + " (`python benchmarks/quality.py --corpus NAME --resources.gpus_per_worker 1`)."
    return ["", *([*lines, ""] if len(lines) > HEADER else []), *([told, ""] if missing else [])]


def _ours(results: Path, corpus: str) -> Iterator[tuple[str, Scores]]:
    for path in sorted(results.glob("quality-*.json"), key=lambda file: file.stem):
        content = json.loads(path.read_text(encoding="utf-8"))
        first: dict[str, Any] = content["rows"][0]
        if path.stem == f"quality-{corpus}" or path.stem.startswith(f"quality-{corpus}-"):
            part = path.stem.removeprefix(f"quality-{corpus}").lstrip("-").replace("-", " ")
            for count, scores in first["by_trees"].items():
                if int(count) in (1, first["trees"]):
                    seeds = [row["by_trees"][count] for row in content["rows"]]
                    means = {name: sum(one[name] for one in seeds) / len(seeds) for name in scores}
                    trees = "one tree" if count == "1" else f"{count} trees"
                    told = f"axml-ray, {trees}" + (f", {part}" if part not in ("", trees) else "")
                    # Trees of a run differ by their seeds alone.
                    told += f" (seeds: {len(seeds) * (len(first['by_trees']) if count == '1' else 1)})"
                    yield f"**{told}**", means


def _peers(results: Path, corpus: str) -> Iterator[tuple[str, Scores]]:
    for path in sorted(results.glob(f"peers-quality-{corpus}-*seed0.json")):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            if row["system"] != "ours" and row["scores"] and not row["training_documents_left_out_by_quick"]:
                yield f"{row['program']}, {row['system']}", row["scores"]


def _cells(scores: Scores, best: Scores) -> Iterator[str]:
    for name in COLUMNS:
        if name not in scores:
            yield ""
        else:
            yield f"**{scores[name]:.1f}**" if scores[name] == best.get(name) else f"{scores[name]:.1f}"


if __name__ == "__main__":
    main()
