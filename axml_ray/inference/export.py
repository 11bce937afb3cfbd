"""A finished run made a bundle: weights as asked for, what they cost in accuracy, probabilities from validation."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml

from axml_ray import __version__
from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.store import TRANSLATION, Corpus, Split
from axml_ray.evaluation.metrics import Scores
from axml_ray.files import read_json, whole_directory, write_json
from axml_ray.inference.beam import open_tree, trained_levels, trained_linear
from axml_ray.inference.bundle import (
    CALIBRATION,
    FORMAT,
    LABELS,
    MANIFEST,
    SETTINGS,
    SHARED_WORDS,
    TOKENIZER,
    VERSION,
    Bundle,
    BundleSettings,
    Manifest,
    entries,
    level_file,
    linear_file,
    tree_file,
)
from axml_ray.inference.calibration import Calibration
from axml_ray.inference.combining import Found
from axml_ray.inference.ensemble import LEARNED_JOIN, Ensemble, votes_of
from axml_ray.inference.frozen import WORDS
from axml_ray.inference.weights import Weights, save_weights
from axml_ray.settings import Experiment, SettingsError
from axml_ray.training.tree import LINEAR, NAME_MATCHES, NEIGHBOURS, tree_directory

MEASURES = ("P@1", "P@3", "P@5", "nDCG@5")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was exported."""

    directory: Path
    """Of the bundle."""
    bytes: int
    """Of all its files."""
    documents: int
    """Validation documents that the scores are of."""
    scores: dict[str, dict[str, float]]
    """In percent, by weights ("float32" and those exported) and measure."""


def export_bundle(settings: Experiment, directory: Path, weights: Weights = "float32") -> Exported:
    """Write a bundle of a finished run; a reader sees the old one or the whole new one.

    Args:
        settings: of the run.
        directory: where to; nothing, an empty directory, or a bundle, which is replaced.
        weights: number format of matrices.

    Raises:
        SettingsError: the run isn't finished, or something else lies at `directory`.
    """
    _check_place(directory)
    corpus = Corpus.open(settings.corpus_directory)
    valid = corpus.split("valid")
    if not len(valid):
        raise SettingsError(f"{corpus.directory}: no validation documents, from which probabilities are made")
    with whole_directory(directory) as work:
        bundle = _write(settings, corpus, work, weights)
        (labels, scores), _ = bundle.ensemble().predict(valid.tokens)
        calibration = Calibration.fit(labels, scores, valid.labels)
        write_json(work / CALIBRATION, calibration.as_json())
        manifest = bundle.manifest.model_copy(update={"files": dict(entries(work))})
        write_json(work / MANIFEST, manifest.model_dump(mode="json"))
    found = {weights: (labels, scores)}
    if weights != "float32":
        found = {"float32": Ensemble.open(settings, corpus).predict(valid.tokens)[0], **found}
    return Exported(
        directory=directory,
        bytes=sum(entry.bytes for entry in manifest.files.values()),
        documents=len(valid),
        scores={name: accuracy(one, valid, corpus.labels) for name, one in found.items()},
    )


def accuracy(found: Found, split: Split, labels: LabelIndex) -> dict[str, float]:
    """How good predictions are, in percent; empty where no document has a label."""
    scores = Scores(np.ones(len(labels)))
    scores.add(found[0], split.labels.values, split.labels.offsets)
    result = scores.result() if scores.documents else {}
    return {name: result[name] for name in MEASURES if name in result}


def _check_place(directory: Path) -> None:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    try:
        ours = read_json(directory / MANIFEST)["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise SettingsError(f"--to: {directory} exists and is no bundle; choose a directory that doesn't exist")


def _write(settings: Experiment, corpus: Corpus, work: Path, weights: Weights) -> Bundle:
    """All but calibration and manifest."""
    numbers, votes = range(settings.ensemble.trees), votes_of(settings, corpus)
    trees = [open_tree(settings, corpus, number) for number in numbers]
    levels = [trained_levels(settings, corpus, number, tree) for number, tree in enumerate(trees)]
    tables = [state[WORDS] for tree in levels for state in tree]
    shared = len(tables) > 1 and all(torch.equal(table, tables[0]) for table in tables[1:])
    if shared:
        save_weights({WORDS: tables[0]}, work / SHARED_WORDS, weights)
    for number, tree in enumerate(trees):
        for level, state in enumerate(levels[number], start=1):
            path = work / level_file(number, level)
            path.parent.mkdir(parents=True)
            save_weights({name: value for name, value in state.items() if name != WORDS or not shared}, path, weights)
        tree.save(work / tree_file(number))
        if settings.linear.weight:
            trained_linear(settings, corpus, number, tree)  # or the error that says what is missing
            shutil.copyfile(tree_directory(settings.run_directory, number) / LINEAR, work / linear_file(number))
    neighbours = settings.linear.neighbours if settings.linear.weight else 0
    if neighbours:
        shutil.copyfile(settings.run_directory / NEIGHBOURS, work / NEIGHBOURS)
    name_matches = settings.linear.name_matches_weight if settings.linear.weight else 0.0
    if name_matches:
        shutil.copyfile(settings.run_directory / NAME_MATCHES, work / NAME_MATCHES)
    if votes.learned is not None:
        shutil.copyfile(settings.run_directory / LEARNED_JOIN, work / LEARNED_JOIN)
    shutil.copyfile(corpus.directory / "tokenizer.json", work / TOKENIZER)
    if corpus.translation is not None:
        shutil.copyfile(corpus.directory / TRANSLATION, work / TRANSLATION)
    known = corpus.labels
    trained = slice(corpus.trained)
    LabelIndex(known.labels[trained], known.names[trained], known.counts[trained]).save(work / LABELS)
    kept = BundleSettings(
        name=settings.name,
        max_tokens=settings.corpus.max_tokens,
        beam=settings.tree.beam,
        top_labels=settings.ensemble.top_labels,
        precision=settings.training.precision,
        network=settings.network,
        linear_weight=settings.linear.weight,
        neighbours=neighbours,
        neighbours_weight=settings.linear.neighbours_weight if neighbours else 0.0,
        name_matches_weight=name_matches,
        learned_join=votes.learned is not None,
        frequency=None if votes.correction is None else votes.correction.coefficients,
        text_field=settings.corpus.text_field,
        title_field=settings.corpus.title_field,
        id_field=settings.corpus.id_field,
    )
    text = yaml.safe_dump(kept.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    (work / SETTINGS).write_text(text, encoding="utf-8")
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        axml_ray=__version__,
        weights=weights,
        labels=corpus.trained,
        words=len(tables[0]),
        level_sizes=tuple(tree.level_sizes for tree in trees),
        files=dict(entries(work)),
    )
    return Bundle(work, manifest, kept)
