"""The files of a trained tree's networks, and copies of its run."""

import os
import time
from pathlib import Path

from axml_ray.core.run_layout import RunLayout
from axml_ray.corpus.store import Corpus
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.training.level_files import MODEL, ROWS
from axml_ray.training.tree import level_directory, level_key
from axml_ray.tree.label_tree import LabelTree

ROWS_0 = ROWS.format(0)

BRIEF = {"epochs": (2,), "average_after": (1,), "eval_every_steps": 5}
"""Training that teaches little: what is resumed must only end with the same bytes."""
AT = [5, 10, 15, 20, 25, 30]
"""The steps after which one of its levels is scored."""


def copied(settings: Experiment, runs: Path) -> Experiment:
    """Copy a run; the copies of its files are old."""
    copy = settings.model_copy(update={"runs": runs})
    source = settings.run_directory
    for file in sorted(source.rglob("*")):
        if file.is_file():
            target = copy.run_directory / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
            long_ago = time.time_ns() - 10**12
            os.utime(target, ns=(long_ago, long_ago))
    return copy


def networks_of(settings: Experiment) -> Path:
    """Where the networks of tree 0 lie."""
    return RunLayout(settings.run_directory).member("network_tree", 0)


def label_tree(settings: Experiment) -> LabelTree:
    return LabelTree.load(RunLayout(settings.run_directory).tree_file(0))


def key_of(settings: Experiment, corpus: Corpus, level: int, tree: int = 0) -> str:
    return level_key(Run(settings, corpus).spec(f"network_tree-{tree}").key, level)


def level_file(settings: Experiment, level: int, name: str = MODEL) -> Path:
    return level_directory(networks_of(settings), level) / name


def opened(records: list[dict]) -> list[int]:
    return [record["level"] for record in records if "opened" in record]


def scored_at(records: list[dict]) -> list[int]:
    return [record["scoring"]["step"] for record in records if "scoring" in record]


def path_of(settings: Experiment, level: int, what: str) -> Path:
    return networks_of(settings) / f"level-{level}.{what}"
