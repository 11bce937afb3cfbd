"""Settings, counts and machines of plans."""

from pathlib import Path
from typing import Any

from axml_ray.corpus.counts import Counts, count_corpus
from axml_ray.planning.machines import Machines
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load

ROOT = Path(__file__).parents[2]


def experiment(**groups: dict[str, Any]) -> Experiment:
    """A small one; groups override it."""
    base: dict[str, dict[str, Any]] = {
        "corpus": {"source": "installed_packages", "max_tokens": 40},
        "tree": {"height": 1, "cluster_size": 8, "beam": 6},
        "network": {"hidden": 16, "fully_connected": [16, 8]},
        "training": {"batch_size": 8, "precision": "float32"},
    }
    names = base.keys() | groups.keys()
    return load(**{name: {**base.get(name, {}), **groups.get(name, {})} for name in names})


def counts(**changes: Any) -> Counts:
    given = {"documents": 60, "valid_documents": 9, "labels": 300, "words": 70, "word_dimension": 12, "tokens": 40.0}
    return Counts(**{**given, "longest": 40, "source": "a test", **changes})


def gpus(units: int, gib: float) -> Machines:
    return Machines(
        accelerator=True, units=units, unit_share=1, memory=gib, memory_source="a test", shared=False, width=2
    )


def amazon3m(**groups: dict[str, Any]) -> tuple[Experiment, Counts]:
    settings = load(ROOT / "configs/amazon3m.yaml", corpora="/none", **groups)
    return settings, count_corpus(settings)
