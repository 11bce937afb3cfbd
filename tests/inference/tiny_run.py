"""A finished run over the tiny corpus, fitted in seconds, without Ray."""

from pathlib import Path
from typing import Any

import yaml
from tiny_corpus import experiment, write_corpus

from axml_ray.core.run_manifest import write_run_manifest
from axml_ray.ensemble.combiner import Combiner
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings.members import members_model


def train_run(
    home: Path,
    *,
    trees: int = 2,
    height: int = 1,
    epochs: int = 4,
    members: dict[str, dict[str, Any]] | None = None,
    combiner: str = "mean",
    fitted: Combiner | None = None,
    **network: Any,
) -> Run:
    """Fit a run whose beam of three of four clusters leaves some labels out.

    Args:
        home: where corpus and run lie.
        trees: label trees.
        height: of each.
        epochs: of each level.
        members: settings by kind; by default networks alone.
        combiner: kind.
        fitted: a combiner of this kind that takes the place of a fitted one: next to all validation labels are right.
        network: settings of the networks.
    """
    corpus = write_corpus(home / "corpora" / "tiny")
    settings = experiment(home, tree={"height": height, "cluster_size": 4, "beam": 3}, epochs=(epochs,))
    shape = settings.network.model_copy(update={"evidence": network.get("kind", "attention") == "attention", **network})
    ensemble = settings.ensemble.model_copy(update={"trees": trees, "top_labels": 20, "combiner": combiner})
    chosen = members_model()(**(members or {}))
    settings = settings.model_copy(update={"network": shape, "ensemble": ensemble, "members": chosen})
    run = Run(settings, corpus)
    run.layout.directory.mkdir(parents=True)
    fit_run(run)
    if fitted is not None:
        run.keep_combiner(fitted)
    write_run_manifest(run.layout.directory)
    content = yaml.safe_dump(settings.model_dump(mode="json"))
    run.layout.settings.write_text(content, encoding="utf-8")
    return run


def texts_of(run: Run, split: str) -> list[str]:
    """The texts of a split as they were written."""
    texts: list[str] = run.corpus.table(split, ["text"])["text"].to_pylist()
    return texts
