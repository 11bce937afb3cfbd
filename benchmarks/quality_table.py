"""Write the tables of scores in README.md and docs/results.md from the files in `benchmarks/results`.

    python benchmarks/quality_table.py [--check]

Our rows come from `quality-CORPUS[-PART].json`, those of other programs on the same split from
`peers-[quality-]CORPUS*.json`, and published scores from `PUBLISHED`. The part `auto` is what a user gets who tunes
nothing; its table leaves out published scores. The installed packages change, so the rows of a corpus in a table all
have the same number of test documents. A part listed in `TEST_KNOWN` was set by someone who knew test scores; its rows
have a table of their own and are never in README.md.
`--check` writes nothing and exits 1 if a page differs from the results.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import results_file

from axml_ray.core.files import whole_file

PAGES = (results_file.ROOT / "README.md", results_file.ROOT / "docs" / "results.md")
COLUMNS = (
    "P@1",
    "P@3",
    "P@5",
    "nDCG@5",
    "RP@5",
    "F1@5",
    "nDCG@10/all",
    "R@5-50",
    "micro-F1",
    "PSP@1",
    "PSP@3",
    "PSP@5",
)
README_COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "F1@5", "nDCG@10/all")

Scores = dict[str, float]
Lines = list[str]
LIBMULTILABEL, ANNIF = "published by LibMultiLabel", "published by Annif for SemEval-2025 task 5"
PUBLISHED: dict[str, list[tuple[str, Scores, str]]] = {
    "eurlex57k": [
        ("LibMultiLabel, 15 linear trees", {"P@1": 91.25, "P@5": 68.34}, LIBMULTILABEL),
        ("LibMultiLabel, BERT", {"P@1": 90.42, "P@5": 67.27, "RP@5": 77.94, "nDCG@5": 80.63}, LIBMULTILABEL),
        (
            "LibMultiLabel, BERT with label-wise attention",
            {"P@1": 90.38, "P@5": 68.07, "RP@5": 78.83, "nDCG@5": 81.36},
            LIBMULTILABEL,
        ),
        (
            "BERT-base (Chalkidis 2019)",
            {"P@5": 68.7, "RP@5": 79.6, "nDCG@5": 82.3, "micro-F1": 73.2},
            "published: Chalkidis et al., ACL 2019",
        ),
        ("transformers (Shaheen 2020)", {"micro-F1": 75.4}, "published: Shaheen et al., arXiv 2010.12871"),
        ("BERT-LWAN (Chalkidis 2020)", {"RP@5": 80.3, "nDCG@5": 82.9}, "published: Chalkidis et al., EMNLP 2020"),
    ],
    "tibkat": [
        ("Annif, Bonsai on translated texts", {"F1@5": 32.34, "nDCG@10/all": 55.32}, ANNIF),
        ("Annif, XR-Transformer on translated texts", {"F1@5": 30.92, "nDCG@10/all": 53.26}, ANNIF),
    ],
    "docstrings": [],
    "quickstart": [],
    "eurlex4k_partial": [],
    "finna_titles": [],
    "eurlex4k": [],
    "wiki10_31k": [],
    "amazoncat13k": [],
    "amazon670k": [],
    "wiki500k": [],
    "amazon3m": [],
}
"""Scores of other systems on the test split, in percent, by config, with their origin."""

TEST_KNOWN = {
    "eurlex57k-refit": "trained on train and validation; words and epochs were never tried on validation",
    "eurlex57k-refit-longer": "its length was set after the test scores of the refit were known",
    "eurlex57k-refit-longest": "its length was set because the refit before fell short of a goal on the test split",
}
"""Results whose settings were chosen by someone who knew test scores, and the reason, by part of the file's name."""

PATIENCE = ("--training.patience 100", "--training.patience_steps 40000")  # an evaluation was every 400 steps
COMMANDS = {
    "eurlex4k_partial-attention-averaging-off": ("--training.averaging false", "--training.average_after 30"),
    "eurlex57k-refit-longer": PATIENCE,
    "eurlex57k-refit-longest": (
        *PATIENCE,
        "--linear.name_matches_weight 0.1",
        "--members.label_names.weight 0.1",
    ),
}
"""Old flags of a recorded command and their present names, in turns."""

README_ROWS = {
    "eurlex4k_partial": ("omikuji 0.5.2, bonsai", "napkinxc 0.7.2, one_vs_all", "axml-ray, 3 trees, auto"),
    "eurlex57k": ("omikuji 0.5.2, bonsai", "napkinxc 0.7.2, one_vs_all", "axml-ray, one tree, auto"),
    "tibkat": ("omikuji 0.5.2, bonsai", "napkinxc 0.7.2, one_vs_all", "Annif, Bonsai", "axml-ray, one tree, auto"),
    "docstrings": ("omikuji 0.5.2, bonsai", "napkinxc 0.7.2, one_vs_all", "axml-ray, 3 trees, auto"),
    "finna_titles": ("omikuji 0.5.2, bonsai", "axml-ray, one tree, auto"),
}
"""Beginnings of the names of the rows that README.md shows, by corpus."""


@dataclass(frozen=True)
class Row:
    """A row of a table of scores, and how it was obtained."""

    name: str
    scores: Scores
    ours: bool = False
    untuned: bool = False
    """Whether it was run on these texts with nothing tuned for them: our preset `auto`, and other programs."""
    test_documents: int | None = None
    """None for published scores, which are compared with any."""
    source: dict[str, str] = field(default_factory=dict)


def main(arguments: list[str] | None = None) -> None:
    """Write the tables into the pages, or check them."""
    parser = argparse.ArgumentParser(description="Write the tables of scores from the results.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page differs")
    options = parser.parse_args(arguments)
    made = tables(results_file.RESULTS)
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = with_tables(before, made)
        if options.check and before != after:
            print(f"{page.name}: differs from benchmarks/results; run benchmarks/quality_table.py", file=sys.stderr)
            raise SystemExit(1)
        if before != after:
            with whole_file(page) as temporary:
                temporary.write_text(after, encoding="utf-8")


def with_tables(text: str, made: dict[str, Lines]) -> str:
    """Return a page with the lines between `<!-- table NAME -->` and `<!-- end NAME -->` replaced.

    Raises:
        SystemExit: the page has no table, or one of an unknown name.
    """
    names = re.findall(r"^<!-- table (\S+) -->$", text, re.MULTILINE)
    if not names or not set(names) <= set(made):
        print(
            f"tables: write <!-- table NAME --> and <!-- end NAME -->, NAME one of {', '.join(made)}", file=sys.stderr
        )
        raise SystemExit(2)
    for name in names:
        begin, end = f"<!-- table {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        text = "\n".join([before + begin, "", *made[name], "", end]) + rest.partition(end)[2]
    return text


def tables(results: Path) -> dict[str, Lines]:
    """Return the lines of every table, by name."""
    fair: dict[str, list[Row]] = {}
    known: dict[str, list[Row]] = {}
    for corpus in PUBLISHED:
        ours = list(_ours(results, corpus))
        fair[corpus] = [*_others(results, corpus), *(row for part, row in ours if part not in TEST_KNOWN)]
        known[corpus] = [row for part, row in ours if part in TEST_KNOWN]
    scored = {corpus: comparable(rows, untuned=False) for corpus, rows in fair.items() if any(row.ours for row in rows)}
    untuned = {corpus: comparable([row for row in rows if row.untuned], untuned=True) for corpus, rows in fair.items()}
    untuned = {corpus: rows for corpus, rows in untuned.items() if any(row.ours for row in rows)}
    # README.md shows `auto` with networks, or else the tuned config, and published scores.
    whole = {corpus for corpus, rows in untuned.items() if any(row.name.endswith(", auto") for row in rows)}
    headline = {corpus: [*(untuned[corpus] if corpus in whole else ()), *rows] for corpus, rows in scored.items()}
    short = {
        corpus: [row for name in names for row in _named(headline.get(corpus, []), name)[:1]]
        for corpus, names in README_ROWS.items()
    }
    shown = {
        corpus: [*rows, *(row for row in untuned.get(corpus, ()) if row not in rows)] for corpus, rows in scored.items()
    }
    missing = ", ".join(f"`{corpus}`" for corpus in PUBLISHED if corpus not in scored)
    return {
        "readme": _scores(short, README_COLUMNS),
        "auto": _scores(untuned, COLUMNS),
        "headline": _scores(scored, COLUMNS),
        "headline-sources": _sources(shown),
        "test-known": _scores(known, COLUMNS),
        "test-known-sources": _sources(known),
        "not-run": [f"{missing}: `python benchmarks/quality.py --corpus NAME --resources.gpus_per_worker 1`"],
    }


def _named(rows: list[Row], beginning: str) -> list[Row]:
    return [row for row in rows if row.name.startswith(beginning)]


def comparable(rows: list[Row], *, untuned: bool) -> list[Row]:
    """Return the rows of the same test documents as ours that were tuned, or as those that were not."""
    ours = [row for row in rows if row.ours]
    chosen = [row for row in ours if row.untuned == untuned] or ours
    return [row for row in rows if row.test_documents in (None, *(each.test_documents for each in chosen[:1]))]


def _scores(corpora: dict[str, list[Row]], columns: tuple[str, ...]) -> Lines:
    """Return one table with a line of its own for each corpus; the best score of a corpus is bold."""
    lines = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for corpus, rows in corpora.items():
        if rows:
            values = {name: [row.scores[name] for row in rows if name in row.scores] for name in columns}
            best = {name: max(of) for name, of in values.items() if len(of) > 1}
            lines.append(f"| *{corpus}* |" + " |" * len(columns))
            lines += [
                f"| {f'**{row.name}**' if row.ours else row.name} | {' | '.join(_cells(row.scores, best, columns))} |"
                for row in rows
            ]
    return lines


def _cells(scores: Scores, best: Scores, columns: tuple[str, ...]) -> Iterator[str]:
    for name in columns:
        if name not in scores:
            yield ""
        else:
            yield f"**{scores[name] + 1e-9:.1f}**" if scores[name] == best.get(name) else f"{scores[name] + 1e-9:.1f}"


def _sources(corpora: dict[str, list[Row]]) -> Lines:
    """Return a table of how each row was obtained; rows of one run are one line."""
    keys = ("split", "settings", "seeds", "machine", "seconds", "file", "command")
    lines = [f"| corpus | row | {' | '.join(keys)} |", "|---" * (2 + len(keys)) + "|"]
    for corpus, rows in corpora.items():
        grouped: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            shared = tuple(row.source.get(key, "–") for key in keys if key != "seconds")
            grouped.setdefault(shared, []).append(row)
        for group in grouped.values():
            cells = dict.fromkeys(keys, "–") | group[0].source
            seconds = [row.source.get("seconds", "–") for row in group]
            cells["seconds"] = seconds[0] if len(set(seconds)) == 1 else "; ".join(seconds)
            names = "; ".join(row.name for row in group)
            lines.append(f"| {corpus} | {names} | {' | '.join(cells[key] for key in keys)} |")
    return lines


def _ours(results: Path, corpus: str) -> Iterator[tuple[str, Row]]:
    """Yield the rows of axml-ray of one corpus, each with the part that names its file."""
    for path in sorted(results.glob(f"quality-{corpus}*.json"), key=lambda file: file.stem):
        part = path.stem.removeprefix("quality-")
        if part != corpus and not part.startswith(f"{corpus}-"):
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        first: dict[str, Any] = content["rows"][0]
        variant = part.removeprefix(corpus).lstrip("-").replace("-", " ")
        chosen = TEST_KNOWN.get(part)
        whole = first["by_trees"][str(first["trees"])]["P@1"]
        for count, scores in first["by_trees"].items():
            is_whole = int(count) == first["trees"]
            # Members without networks that have no clusters are the same for any number of trees.
            if not is_whole and (count != "1" or math.isclose(scores["P@1"], whole)):
                continue
            seeds = [row["by_trees"][count] for row in content["rows"]]
            means = {name: sum(seed[name] for seed in seeds) / len(seeds) for name in scores}
            if "micro-F1" in content.get("figures", {}) and is_whole:
                means["micro-F1"] = content["figures"]["micro-F1"]
            name = f"axml-ray, {'one tree' if count == '1' else f'{count} trees'}" + (f", {variant}" if variant else "")
            source = _recorded(content, path, f"`configs/{corpus}.yaml`" + (f"; {chosen}" if chosen else ""))
            # The trees of a run differ by their seeds only: each is one seed of a single tree.
            trees = len(first["by_trees"])
            source["seeds"] = f"ensembles: {len(seeds)}; single trees: {len(seeds) * trees}"
            source["command"] = f"`{_present_command(content['command'], part)}`"
            totals = [sum(row["seconds"].values()) for row in content["rows"] if "seconds" in row]
            if totals:
                source["seconds"] = f"{sum(totals) / len(totals):,.0f} for all trees"
            tests = first["documents"]["test"]
            is_auto = variant.startswith("auto")
            yield part, Row(name, means, ours=True, untuned=is_auto, test_documents=tests, source=source)


def _others(results: Path, corpus: str) -> Iterator[Row]:
    """Yield the published rows of one corpus, and those of programs that ran on the same texts."""
    for name, scores, origin in PUBLISHED[corpus]:
        yield Row(name, scores, source={"split": "test", "settings": origin})
    for path in sorted([*results.glob(f"peers-quality-{corpus}-*.json"), *results.glob(f"peers-{corpus}*.json")]):
        content = json.loads(path.read_text(encoding="utf-8"))
        for row in content["rows"]:
            if row["system"] != "ours" and row["scores"] and not row["training_documents_left_out_by_quick"]:
                source = _recorded(content, path, "the program's documented settings, word TF-IDF")
                source["seeds"] = "1"
                source["seconds"] = f"{sum(row['seconds'].values()):,.0f}" if row.get("seconds") else "–"
                source["command"] = f"`{content['command']}`"
                name, tests = f"{row['program']}, {row['system']}", row["test_documents"]
                yield Row(name, row["scores"], untuned=True, test_documents=tests, source=source)


def _recorded(content: dict[str, Any], path: Path, settings: str) -> dict[str, str]:
    machine = content.get("machine", {})
    processor = str(machine.get("processor", "–")).replace("(R)", "").replace(" Processor", "")
    return {
        "split": "test",
        "settings": settings,
        "machine": f"{processor}, {machine.get('cores', '–')} cores",
        "file": f"`{path.name}`",
    }


def _present_command(command: str, part: str) -> str:
    flags = iter(COMMANDS.get(part, ()))
    for old, new in zip(flags, flags, strict=True):
        command = command.replace(old, new)
    return command


if __name__ == "__main__":
    main()
