"""The model card of a bundle: Markdown for people, with a YAML header for the Hugging Face Hub.

It is made from the run's settings, the corpus's numbers and, if the run was evaluated, its `metrics.json`. It names no
file or directory of the machine.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from axml_ray.core.files import read_json
from axml_ray.core.run_layout import TEST
from axml_ray.evaluation.metrics.bands import band_name
from axml_ray.evaluation.metrics.predictions import title_of
from axml_ray.inference.bundle.manifest import Manifest
from axml_ray.runs.run import Run
from axml_ray.settings.members import kinds

MEASURES = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "F1@5")
"""Measures of test documents that a card shows."""
VALIDATION_MEASURES = ("P@1", "P@3", "P@5", "nDCG@5")
FREQUENT_LABELS = 10
RARE_BELOW = 10
"""Number of training documents below which a card calls a label rare."""
LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
TAGS = (
    "axml-ray",
    "attentionxml",
    "multi-label-classification",
    "extreme-multi-label-classification",
    "arxiv:1811.01727",
)
GROUPS = ("preset", "seed", "tree", "network", "training", "features", "members", "ensemble")
"""Groups of settings that a card shows; the others are about files and machines."""


def render_card(
    run: Run, manifest: Manifest, validation: Mapping[str, Mapping[str, float]], licence: str | None
) -> str:
    """Return the model card of the bundle of a run.

    Args:
        run: the run.
        manifest: manifest of the bundle, which may lack files.
        validation: scores on the validation documents in percent, by number format of the weights and measure.
        licence: identifier of the licence in lower case, as the Hub writes it; None for none.
    """
    settings, corpus = run.settings, run.corpus
    metrics = _test_metrics(run)
    of_ensemble, intervals = metrics.get("ensemble", {}), metrics.get("intervals", {}).get("ensemble", {})
    scores = [(name, of_ensemble[name], *intervals[name]) for name in MEASURES if name in intervals]
    index, trained = corpus.labels, corpus.trained
    shown = _without_directories(settings.model_dump(include=set(GROUPS)))
    shown["members"] = {kind: shown["members"][kind] for kind in settings.members.chosen}
    environment = Environment(
        loader=PackageLoader("axml_ray.inference.bundle", ""),
        autoescape=False,  # it is not HTML: the filter `md` escapes what comes from the corpus
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": _escape_markdown, "title_of": title_of}
    return environment.get_template("model_card.md.jinja").render(
        metadata=_to_yaml(_metadata(run, scores, licence)),
        name=settings.name,
        manifest=manifest,
        shares=run.combination(run.open_combiner()).shares,
        has_titles=settings.corpus.title_field is not None,
        frequent=[
            (index.labels[label], index.names[label], int(index.counts[label]))
            for label in index.by_frequency(np.arange(len(index)))[:FREQUENT_LABELS]
        ],
        scores=scores,
        documents=metrics.get("documents", 0),
        bands=_bands(metrics),
        validation=validation,
        measures=VALIDATION_MEASURES,
        corpus={
            "name": settings.corpus.name,
            **{split: corpus.documents(split) for split in ("train", "valid", "test")},
            "unseen": len(index) - trained,
        },
        seed=settings.seed,
        settings=_to_yaml(shown),
        rare_below=RARE_BELOW,
        rare=int((index.counts[:trained] < RARE_BELOW).sum()),
        max_tokens=settings.corpus.max_tokens,
        holds_texts=any(kinds()[member.kind].load().holds_texts for member in manifest.members),
        licence=licence,
    )


def _metadata(run: Run, scores: list[tuple[Any, ...]], licence: str | None) -> dict[str, Any]:
    """Return the header of the card, in the fields of the Hub."""
    metadata: dict[str, Any] = {"license": licence} if licence else {}
    metadata |= {"library_name": "axml-ray", "pipeline_tag": "text-classification", "tags": list(TAGS)}
    if not scores:
        return metadata
    corpus = run.settings.corpus.name
    result = {
        "task": {"type": "text-classification"},
        "dataset": {"type": corpus, "name": corpus, "split": TEST},
        "metrics": [{"type": measure, "name": measure, "value": round(score, 2)} for measure, score, _, _ in scores],
    }
    return metadata | {
        "metrics": ["precision", "recall", "f1"],
        "model-index": [{"name": run.settings.name, "results": [result]}],
    }


def _test_metrics(run: Run) -> dict[str, Any]:
    """Return the content of the run's `metrics.json`; empty if it has none of the ensemble as it is now."""
    try:
        metrics = dict(read_json(run.layout.metrics(TEST)))
    except (OSError, ValueError, TypeError):
        return {}
    return metrics if metrics.get("made_by") == run.predictions_key else {}


def _bands(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table by label frequency."""

    def cell(band: Mapping[str, Any], measure: str) -> str:
        score = band.get("ensemble", {}).get(measure)
        interval = band.get("intervals", {}).get("ensemble", {}).get(measure)
        return "–" if score is None or interval is None else f"{score:.2f} ({interval[0]:.1f} – {interval[1]:.1f})"

    return [
        {
            "name": band_name(band),
            "labels": band["labels"],
            "documents": band["documents"],
            "ndcg": cell(band, "nDCG@5"),
            "recall": cell(band, "R@10"),
        }
        for band in metrics.get("bands", [])
    ]


def _without_directories(value: Any) -> Any:
    """Return settings as plain values, each path reduced to the name of its file."""
    if isinstance(value, Mapping):
        return {str(key): _without_directories(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_directories(inner) for inner in value]
    return value.name if isinstance(value, Path) else value


def _to_yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


def _escape_markdown(text: str) -> str:
    """Return text of one line in which no character has a meaning in Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&!])", r"\\\1", " ".join(text.split()))
