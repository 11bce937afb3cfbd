"""Export of a finished run as a bundle: weights in a chosen number format, calibration on validation, a model card."""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from axml_ray import __version__
from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, whole_directory, write_json
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.ensemble.calibration import Calibration
from axml_ray.ensemble.combiner import Validation, out_of_fold
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.inference.bundle.bundle import VECTORS, Bundle, BundleSettings
from axml_ray.inference.bundle.manifest import (
    CALIBRATION,
    CARD,
    COMBINER,
    FEATURES,
    FORMAT,
    LABELS,
    MANIFEST,
    SETTINGS,
    TOKENIZER,
    VERSION,
    WORD_VECTORS,
    Manifest,
    MemberEntry,
    entries,
    is_of_bundles,
    tree_file,
)
from axml_ray.inference.bundle.model_card import LICENCE, VALIDATION_MEASURES, render_card
from axml_ray.members.weight_files import Weights, save_weights
from axml_ray.runs.run import Run
from axml_ray.settings import ReadingSettings
from axml_ray.settings.members import kinds


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A bundle that was written."""

    directory: Path
    bytes: int
    """Size of all its files in bytes."""
    documents: int
    """Number of validation documents from which the scores are computed."""
    scores: dict[str, dict[str, float]]
    """Scores in percent by number format ("float32" and the exported one) and measure."""


def export_bundle(run: Run, directory: Path, weights: Weights = "float32", *, licence: str | None = None) -> Exported:
    """Write a bundle of a finished run; an existing bundle is replaced atomically.

    Args:
        run: the run, with all of its members fitted.
        directory: where to write: a new path, an empty directory, or a bundle, which is replaced.
        weights: number format of matrices.
        licence: licence of the model as an SPDX identifier, for its card; by default none is stated.

    Files of others in the bundle that is replaced, such as `LICENSE`, are kept.

    Raises:
        SettingsError: the run is not finished, `directory` has other content, or the licence is not an identifier.
    """
    if licence is not None and not LICENCE.fullmatch(licence.lower()):
        raise SettingsError(
            f"--licence: expected an identifier such as apache-2.0 or cc-by-4.0, or other (given: {licence!r})"
        )
    licence = licence and licence.lower()
    storage.fetch(directory, [MANIFEST])
    old: dict[str, Any] = {}
    if not storage.is_empty(directory):
        with suppress(OSError, ValueError, TypeError):
            old = dict(read_json(directory / MANIFEST))
        if old.get("format") != FORMAT:
            raise SettingsError(f"--to: {directory} exists and is no bundle; choose a directory that doesn't exist")
    corpus, valid = run.corpus, run.corpus.split("valid")
    with whole_directory(directory) as work:
        bundle = _write(run, work, weights)
        ensemble = bundle.ensemble()
        has_words, of_members = corpus.has_words("valid"), ensemble.rank_members(valid.tokens)
        of_members = {name: ranking.of_documents(has_words) for name, ranking in of_members.items()}
        ranking = ensemble.combination.rank(of_members)
        validation = Validation(
            run.member_weights, [of_members[spec.name] for spec in run.members], valid.labels, corpus.labels.counts
        )
        held_out = out_of_fold(type(ensemble.combination.combiner), validation, ensemble.combination.top_labels)
        calibration = Calibration.fit(*held_out, valid.labels)
        write_json(work / CALIBRATION, calibration.as_json())
        rankings = {weights: ranking}
        if weights != "float32":
            rankings = {"float32": run.open_ensemble().rank(valid.tokens).of_documents(has_words), **rankings}
        scores = {str(name): accuracy(ranked, valid.labels, corpus.labels) for name, ranked in rankings.items()}
        (work / CARD).write_text(render_card(run, bundle.manifest, scores, licence), encoding="utf-8")
        manifest = bundle.manifest.model_copy(update={"files": dict(entries(work))})
        write_json(work / MANIFEST, manifest.model_dump(mode="json"))
        keep_files_of_others(directory, work)
    return Exported(
        directory=directory,
        bytes=sum(entry.bytes for entry in manifest.files.values()),
        documents=len(valid),
        scores=scores,
    )


def keep_files_of_others(directory: Path, work: Path) -> None:
    """Copy what is no file of the bundle in a directory to the one that replaces it."""
    old: set[str] = set()
    with suppress(OSError, ValueError, TypeError, KeyError):
        old = set(read_json(directory / MANIFEST)["files"])
    others = storage.sizes(directory).keys() - old
    names = [name for name in others if not is_of_bundles(name) and not (work / name).exists()]
    storage.fetch(directory, names)
    for name in names:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(directory / name, work / name)


def accuracy(ranking: TopK, truth: Ragged, labels: LabelIndex) -> dict[str, float]:
    """Return the `VALIDATION_MEASURES` of predictions in percent; empty if no document has a label."""
    scores = Scores(np.ones(len(labels)))
    scores.add(ranking.labels, truth.values, truth.offsets)
    result = scores.result() if scores.documents else {}
    return {name: result[name] for name in VALIDATION_MEASURES if name in result}


def _write(run: Run, work: Path, weights: Weights) -> Bundle:
    """Write all files of a bundle except calibration, model card and manifest, and return it opened."""
    settings, corpus = run.settings, run.corpus
    run.open_ensemble()  # raises an error that names what is missing, before anything is written
    trees = [run.open_tree(number) for number in range(settings.ensemble.trees)]
    for number, tree in enumerate(trees):
        path = work / tree_file(number)
        path.parent.mkdir(exist_ok=True)
        tree.save(path)
    members, needs_vectors, vectors = [], False, torch.from_numpy(corpus.word_vectors())
    for spec in run.members:
        config = spec.config.model_dump(mode="json")
        entry = MemberEntry(name=spec.name, kind=spec.kind, tree=spec.tree, weight=spec.weight, config=config)
        to = work / entry.path
        to.mkdir(parents=True)
        needs_vectors |= kinds()[spec.kind].load().export(spec, to, weights, vectors)
        members.append(entry)
    if needs_vectors:
        save_weights({VECTORS: vectors}, work / WORD_VECTORS, weights)
    if run.needs_features:
        shutil.copyfile(run.layout.features, work / FEATURES)
    combiner = run.open_combiner()
    (work / COMBINER).mkdir()
    combiner.save(work / COMBINER)
    shutil.copyfile(corpus.directory / "tokenizer.json", work / TOKENIZER)
    index, trained = corpus.labels, slice(corpus.trained)  # labels without training documents cannot be predicted
    LabelIndex(index.labels[trained], index.names[trained], index.counts[trained]).save(work / LABELS)
    bundle_settings = BundleSettings(
        name=settings.name,
        max_tokens=settings.corpus.max_tokens,
        top_labels=settings.ensemble.top_labels,
        precision=settings.training.precision,
        **{name: getattr(settings.corpus, name) for name in ReadingSettings.model_fields},
    )
    text = yaml.safe_dump(bundle_settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    (work / SETTINGS).write_text(text, encoding="utf-8")
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        axml_ray=__version__,
        weights=weights,
        labels=corpus.trained,
        words=len(corpus.tokenizer),
        level_sizes=tuple(tree.level_sizes for tree in trees),
        members=tuple(members),
        combiner=settings.ensemble.combiner,
        files=dict(entries(work)),
    )
    return Bundle(work, manifest, bundle_settings)
