"""Speed of a bundle's `Tagger` in one process: one text at a time and many, with all members.

    python benchmarks/tagger.py [--bundle bundles/quickstart] [--texts corpora/quickstart] [--rounds 3]
                                [--against REVISION] [--json PATH]

Texts are those of the corpus's test split. Each round is a process of its own. With `--against`, a clone of that
revision takes turns with this working tree, on the same bundle, which it must be able to open.

Figures: `ms_p50` and `ms_p99` of one text a call, `texts_per_s_64` with 64 texts a call, and `texts_per_s` with all
texts in one call, each the median over the rounds; with `--against` also the other's, `other_…`, and `bulk_ratio` and
`single_ratio`: the medians over the rounds of our texts per second over the other's (all texts, and one text a call).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import results_file
from demo import OTHER, OURS, measure_in_turns

from axml_ray import Tagger
from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute
from axml_ray.corpus.store import Corpus

WARM, SINGLE, MANY = 100, 500, 2_000
"""Texts before the timing, texts one by one, and texts of the other calls."""
MEASURE = "--measure"
FIGURES = ("ms_p50", "ms_p99", "texts_per_s_64", "texts_per_s")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rounds, print each row, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=absolute, default=absolute("bundles/quickstart"), help="what tags")
    parser.add_argument("--texts", type=absolute, default=absolute("corpora/quickstart"), help="a prepared corpus")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side (default: 3)")
    parser.add_argument("--against", metavar="REVISION", help="a commit that takes turns with this working tree")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "tagger.json", help="where to")
    parser.add_argument(MEASURE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(options.bundle, options.texts)))
        return

    def in_turn(repository: Path, _: Path) -> dict[str, Any]:
        return in_process(repository, options.bundle, options.texts)

    rows = measure_in_turns(in_turn, options.rounds, options.against)
    results_file.write(options.json, figures(rows), rows)


def in_process(repository: Path, bundle: Path, texts: Path) -> dict[str, Any]:
    """Measure a repository's Tagger in a process of its own.

    Raises:
        SettingsError: the process failed, such as when the revision cannot open the bundle.
    """
    # This script, with the package of the other revision.
    words = [sys.executable, __file__, MEASURE, "--bundle", str(bundle), "--texts", str(texts)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SettingsError(f"{repository}: {done.stderr.strip()[-2_000:]}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def measure(bundle: Path, corpus: Path) -> dict[str, float]:
    """Return the figures of this process."""
    texts: list[str] = []
    for file in Corpus.open(corpus).files("test"):
        texts += pq.read_table(file, columns=["text"])["text"].to_pylist()
    texts = texts[:MANY]
    tagger = Tagger.load(bundle)

    def seconds(some: list[str], each: int) -> list[float]:
        spent = []
        for start in range(0, len(some), each):
            began = time.perf_counter()
            tagger.tag(some[start : start + each])
            spent.append(time.perf_counter() - began)
        return spent

    seconds(texts[:WARM], 1)
    p50, p99 = (1_000 * float(value) for value in np.percentile(seconds(texts[:SINGLE], 1), [50, 99]))
    seconds(texts, MANY)  # compiles the kernels of larger batches
    rates = [len(texts) / sum(seconds(texts, each)) for each in (64, MANY)]
    return dict(zip(FIGURES, (p50, p99, *rates), strict=True))


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of the rows of each side, and of the ratios of the two sides round by round."""
    result: dict[str, float] = {}
    for side, prefix in ((OURS, ""), (OTHER, "other_")):
        if of_side := [row for row in rows if row["side"] == side]:
            result |= {prefix + name: statistics.median(row[name] for row in of_side) for name in FIGURES}
    by_side = {(row["side"], row["round"]): row for row in rows}
    pairs = [(by_side[OURS, number], other) for (side, number), other in by_side.items() if side == OTHER]
    if pairs:
        result["bulk_ratio"] = statistics.median(ours["texts_per_s"] / other["texts_per_s"] for ours, other in pairs)
        result["single_ratio"] = statistics.median(other["ms_p50"] / ours["ms_p50"] for ours, other in pairs)
    return result


if __name__ == "__main__":
    results_file.run(main)
