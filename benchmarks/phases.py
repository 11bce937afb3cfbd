"""Measure the phases of a run next to the estimates of `axml-ray plan`: peak memory of a process, rates of one core.

    python benchmarks/phases.py [--labels 60000] [--documents 6000] [--quick] [--home DIRECTORY] [--json PATH]

The corpus is that of `paper_scale.py`. Each phase runs in a process of its own, on one core, as its Ray task would, and
its seconds are those of that core, so that other work on the machine does not count. The
ranges of linear classifiers are one of level 1, and others for `SECONDS`. Networks are left out: their
memory is tested (`tests/planning`), and `gpu.py` and `training.py` time their steps.

Figures: `PHASE_gib`, `PHASE_planned_gib` and `PHASE_seconds`, `floor_gib` of a process that has imported what a Ray
worker imports, and the rates of `axml_ray.members` and `axml_ray.planning.phases`: `counted_per_second`,
`rows_per_second`, `compared_per_second`, `searched_per_second`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from paper_scale import TEST_SHARE, write_texts
from rich.console import Console

from axml_ray.core.memory import peak_gib
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.counts import count_corpus
from axml_ray.corpus.preparation.prepare import prepare
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.knn import NearestNeighbours
from axml_ray.members.linear_fit import SAMPLED, SIMILAR, LinearFit
from axml_ray.planning.memory import GIB
from axml_ray.planning.phases import task_memory
from axml_ray.runs.fitting import build_tree_of_run, fit_features
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load

SECONDS, TEXTS, COPIES = 60.0, 64, 20
"""Time for ranges of linear classifiers, texts that other members rank, and copies of the training texts in kNN."""
Found = dict[str, float]


class RangesFoundError(Exception):
    """The ranges of a fit are known."""


def settings_of(home: Path, labels: int) -> Experiment:
    """Return the settings of a run without networks."""
    config = {
        "preset": "recommended",
        "name": "plan",
        "runs": str(home / "runs"),
        "corpora": str(home / "corpora"),
        "corpus": {"train": [str(home / "train.jsonl")], "test": [str(home / "test.jsonl")], "word_dimension": 100},
        "tree": {"height": 3 if labels > 100_000 else 2, "cluster_size": 8},
        "ensemble": {"trees": 1},
        "members": {"network_tree": {"weight": 0}, "label_names": {"weight": 0.1}},
    }
    path = home / "plan.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return load(path)


def prepare_texts(settings: Experiment) -> Found:
    """Prepare the corpus."""
    prepare(settings.corpus, settings.corpus_directory)
    return {}


def build_tree(settings: Experiment) -> Found:
    """Build and keep a label tree."""
    run = Run.open(settings)
    run.keep_tree(0, build_tree_of_run(run, 0))
    return {}


def count_features(settings: Experiment) -> Found:
    """Fit the featurizer, and compute the feature matrix of the training texts."""
    run = Run.open(settings)
    fit_features(run)
    began = time.process_time()
    entries = run.open_features().matrix(run.corpus.split("train").tokens).nnz
    return {"counted_per_second": entries / (time.process_time() - began)}


def write_inputs(settings: Experiment) -> Found:
    """Cluster labels and write the inputs of the linear classifiers."""
    run = Run.open(settings)
    spec = run.spec("linear_tree-0")

    def stop(work: Callable[..., Any], ranges: Iterable[Any]) -> Any:
        raise RangesFoundError

    try:
        spec.implementation.fit(spec, replace(run.prepare_fit(spec), parallel_map=stop))
    except RangesFoundError:
        return {}
    raise RuntimeError("this corpus has so few ranges that one process fits them; give more --labels")


def fit_ranges(settings: Experiment) -> Found:
    """Fit some ranges of nodes."""
    [path] = settings.run_directory.rglob("inputs.safetensors")
    fit = LinearFit.open(path)
    ranges, rows = list(fit.ranges()), 0
    first, rest = ranges[0], ranges[1:]
    fit.fit(first, 4.0)
    began = time.process_time()
    for nodes in rest[:: max(1, len(rest) // 16)]:
        fit.fit(nodes, 4.0)
        lengths = fit.documents[nodes.level - 1].lengths[nodes.first : nodes.last]
        rows += int((3 * lengths + SIMILAR + SAMPLED).sum())
        if time.process_time() - began > SECONDS:
            break
    return {"rows_per_second": rows / (time.process_time() - began), "ranges": len(ranges)}


def fit_member(settings: Experiment, name: str) -> Found:
    """Fit a member, and rank some texts."""
    run = Run.open(settings)
    spec = run.spec(name)
    spec.implementation.fit(spec, run.prepare_fit(spec))
    spec.mark_fitted()
    fitted = peak_gib()
    member = run.open_member(spec, run.open_features())
    tokens = run.corpus.split("test").tokens
    tokens = tokens.take(np.arange(min(TEXTS, len(tokens))))
    work = len(tokens.values)
    if isinstance(member, NearestNeighbours):  # more texts: what a search costs besides them must not count
        train = run.corpus.split("train")
        rows = [member.featurizer.matrix(train.tokens)] * COPIES
        labels = Ragged.concatenate([train.labels] * COPIES)
        member = NearestNeighbours.of(rows, labels, run.corpus.trained, member.count, member.featurizer)
        work = len(labels) * len(tokens)
    member.rank(TextViews(tokens), 10)  # warm-up
    began = time.process_time()
    member.rank(TextViews(tokens), 10)
    figure = "compared_per_second" if name == "knn" else "searched_per_second"
    return {figure: work / (time.process_time() - began), "peak_gib": fitted}


def import_all(settings: Experiment) -> Found:
    """Import what a Ray worker of a fit has imported."""
    import ray  # noqa: F401
    import sklearn.svm  # noqa: F401

    import axml_ray.orchestration.members  # noqa: F401

    return {}


PARTS: dict[str, tuple[Callable[..., Found], tuple[str, ...]]] = {
    "floor": (import_all, ()),
    "prepare": (prepare_texts, ()),
    "label trees": (build_tree, ()),
    "features": (count_features, ()),
    "linear_tree": (write_inputs, ()),
    "linear_tree, parts": (fit_ranges, ()),
    "knn": (fit_member, ("knn",)),
    "label_names": (fit_member, ("label_names",)),
}
"""The phases in their order; but for the first, the names are those of `task_memory`."""


def measured(work: Callable[..., Found], home: Path, labels: int, *arguments: str) -> Found:
    """Return the seconds and the peak memory of a phase in this process, and its results."""
    import torch

    torch.set_num_threads(1)
    began = time.process_time()
    figures = work(settings_of(home, labels), *arguments)
    return {"seconds": time.process_time() - began, "gib": figures.pop("peak_gib", peak_gib()), **figures}


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate the corpus, run the phases, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=60_000)
    parser.add_argument("--documents", type=int, default=6_000)
    parser.add_argument("--quick", action="store_true", help="the defaults, which take some minutes")
    parser.add_argument("--home", type=Path, help="directory of corpus and run; default: a temporary one")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "phases.json")
    options = parser.parse_args(arguments)
    figures: dict[str, float] = {}
    rows = []
    with tempfile.TemporaryDirectory(prefix="axml-ray-plan-") as temporary:
        home = (options.home or Path(temporary)).resolve()
        write_texts(home / "train.jsonl", options.documents, options.labels, seed=0)
        write_texts(home / "test.jsonl", round(TEST_SHARE * options.documents), options.labels, seed=1)
        settings = settings_of(home, options.labels)
        for name, (work, more) in PARTS.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                result = process.submit(measured, work, home, options.labels, *more).result()
            if name in (needed := task_memory(settings, count_corpus(settings)) if name != "floor" else {}):
                result["planned_gib"] = needed[name] / GIB
            rows.append({"phase": name, **result})
            Console().print(rows[-1])
            for key, value in result.items():
                is_common = key in ("gib", "seconds", "planned_gib")
                figures[f"{name.replace(', ', '_').replace(' ', '_')}_{key}" if is_common else key] = value
        rows.append({"counts": asdict(count_corpus(settings)) | {"source": "generated"}})
    results_file.write(options.json, figures, rows)


if __name__ == "__main__":
    results_file.run(main)
