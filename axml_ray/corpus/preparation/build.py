"""The passes of preparation, from texts to integers.

Each pass runs as Ray Data tasks over files that the previous pass wrote, in parts of similar size:

1. *Stage*: read every record once; write blocks of documents, with words and labels numbered per block.
2. *Labels*: count the labels of each block, merge and rank them, and give each block their ids.
3. *Words*: the same for the words of training documents that have a label of the corpus.
4. *Encode*: write the documents as integers, in files of a fixed number of documents.
5. *Label features*: sum them over ranges of labels.

Between the passes, the driver decides what needs the whole corpus: duplicates and splits. For this it holds a few
numbers per document, never a text. Documents are drawn by a hash of their text, and files follow the order of the
input, so the result does not depend on the number of blocks or tasks, or on the order in which tasks end.
"""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.continued import check_kept_labels, largest_valid_draw
from axml_ray.corpus.file_layout import FileLayout
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.labels.name_files import name_labels
from axml_ray.corpus.preparation.derived_files import (
    write_label_features,
    write_word_vectors,
)
from axml_ray.corpus.preparation.input_changes import Inputs
from axml_ray.corpus.preparation.input_staging import StagedInput, stage_sources
from axml_ray.corpus.preparation.manifest import Counts, write_manifest
from axml_ray.corpus.preparation.merging import merge
from axml_ray.corpus.preparation.passes import count_labels, count_subwords, count_words, encode_files
from axml_ray.corpus.preparation.split_assignment import TRAIN, Summary, assign_splits
from axml_ray.corpus.preparation.staging import StagedBlock
from axml_ray.corpus.preparation.tasks import Workspace, group_by_size
from axml_ray.corpus.readers.tables import SeparatedValues
from axml_ray.corpus.records.document_ids import check_ids
from axml_ray.corpus.records.records import Reader
from axml_ray.corpus.records.separators import separator_warning
from axml_ray.corpus.records.values import are_one_hot
from axml_ray.corpus.text.scripts import segmentation_warning
from axml_ray.corpus.text.tokenizer import Tokenizer
from axml_ray.settings import SPLITS

log = logging.getLogger(__name__)

COUNTING_DOCUMENTS = 1 << 15
"""Approximate number of documents that a counting task reads."""


def build_corpus(workspace: Workspace, readers: list[tuple[str, Reader]], inputs: Inputs) -> None:
    """Write a corpus into the directory of `workspace`.

    Args:
        workspace: settings and directory of the corpus.
        readers: split and reader of each source.
        inputs: what the corpus is prepared from, for the manifest.

    Raises:
        SettingsError: an input is unreadable or empty, has too many bad records, or a split has no labels.
        RuntimeError: a task failed.
    """
    start = time.monotonic()
    staged = stage_sources(workspace, readers)
    given = [int(split[0]) for split in staged.splits]
    limit = largest_valid_draw(workspace.settings)
    summary = assign_splits(workspace.settings, staged.splits, staged.facts, workspace.describe_split, limit)
    summary.rejected = staged.rejections
    if workspace.settings.source != "installed_packages":  # the ids of these are ours
        check_ids(staged, given)
    _log_input(len(readers), staged)
    _check_labels(staged)
    _warn(workspace, staged, given, readers, summary)
    labels = _merge_labels(workspace, staged)
    layout = _lay_out_files(workspace, staged, summary)
    documents = {split: layout.documents(split) for split in SPLITS}
    tokenizer, frequency = _merge_words(workspace, staged)
    counts = ", ".join(f"{documents[split]:,} {split}" for split in SPLITS)
    log.info("prepare: %s documents, %s labels, %s words", counts, f"{labels['labels']:,}", f"{len(tokenizer):,}")
    _encode(workspace, layout, frequency, summary)
    write_label_features(workspace, len(tokenizer))
    _remove_blocks(workspace)
    coverage, dimension = write_word_vectors(workspace, tokenizer, summary.tokens["train"])
    numbers = Counts(documents, labels, len(tokenizer), coverage, dimension)
    write_manifest(workspace, inputs, numbers, summary, time.monotonic() - start)
    shutil.rmtree(workspace.stage)
    log.info("prepare: done in %.0f s", time.monotonic() - start)


def _log_input(files: int, staged: StagedInput) -> None:
    sources = "1 file" if files == 1 else f"{files:,} files"
    rejected = sum(staged.rejections.values())
    log.info("prepare: read %s documents from %s (%s rejected)", f"{staged.documents:,}", sources, f"{rejected:,}")


def _check_labels(staged: StagedInput) -> None:
    """Check that labels are not vectors of ones and zeros.

    Raises:
        SettingsError: they are.
    """
    blocks = [StagedBlock(Path(path)) for path in staged.paths]
    if not all((block.directory / "indicators.npy").is_file() for block in blocks):
        return
    lengths = np.concatenate([block.array("indicators") for block in blocks])
    if are_one_hot(lengths):
        raise SettingsError(
            f"corpus.labels_field: texts have lists of up to {lengths.max()} numbers, each 0 or 1 (one-hot vectors), "
            'instead of labels; write the names of the labels that a text has, such as ["art", "law"], or make a '
            "column of 0 and 1 for each label and list them: labels_field: art,law. If the labels are called 0 and 1, "
            "write each once"
        )


def _warn(
    workspace: Workspace,
    staged: StagedInput,
    given: Sequence[int],
    readers: Sequence[tuple[str, Reader]],
    summary: Summary,
) -> None:
    """Warn if labels look as if they were split at the wrong separator, or texts as if they had no words.

    Args:
        workspace: settings of the corpus.
        staged: the input.
        given: the split for which the documents of each block were given.
        readers: split and reader of each source.
        summary: where warnings are kept for the manifest and the report page.
    """
    has_separator = any(isinstance(reader, SeparatedValues) for _, reader in readers)
    warnings = [separator_warning(staged.paths, workspace.settings.label_separator if has_separator else "")]
    if workspace.settings.segmentation == "words":
        train = [path for path, split in zip(staged.paths, given, strict=True) if split == TRAIN]
        warnings.append(segmentation_warning(train))
    for warning in filter(None, warnings):
        summary.warnings.append(warning)
        log.warning("prepare: WARNING: %s", warning)


def _merge_labels(workspace: Workspace, staged: StagedInput) -> dict[str, int]:
    """Write `labels.parquet`; return what `merging.merge_labels` returns.

    Raises:
        SettingsError: no label, or no label of a training document, is left, or one of a continued corpus has none; or
            the file of names is of other labels.
    """
    labels = _count_and_merge(workspace, staged, "labels", count_labels)
    train = workspace.describe_split("train")
    if not labels["all"]:
        raise SettingsError(f"{train}: no document has a label; every record's `labels` is empty")
    if not labels["labels"]:
        raise SettingsError(f"corpus.min_label_count is {workspace.settings.min_label_count}: no label occurs so often")
    if not labels["trained"]:
        raise SettingsError(f"{train}: no training document has a label")
    if workspace.settings.continues is not None:
        check_kept_labels(workspace.directory, workspace.settings.continues)
    if workspace.settings.label_names is not None:
        path = workspace.directory / "labels.parquet"
        index = LabelIndex.load(path)
        replace(index, names=tuple(name_labels(index.labels, workspace.settings.label_names))).save(path)
    return labels


def _count_and_merge(workspace: Workspace, staged: StagedInput, kind: str, count: Callable[..., Any]) -> dict[str, int]:
    """Count `words` or `labels` in each block and merge the counts; return what the merge returns."""
    workspace.run(
        _block_groups(staged), count, f"counting {kind}", paths=staged.paths, splits=workspace.share(staged.splits)
    )
    [counts] = workspace.run(
        [kind],
        merge,
        f"merging the counts of {kind}",
        paths=staged.paths,
        stage=workspace.stage,
        work=workspace.directory,
        settings=workspace.settings,
    )
    return counts


def _block_groups(staged: StagedInput) -> list[list[int]]:
    """Return the numbers of the blocks that each counting task reads."""
    sizes = [len(split) for split in staged.splits]
    return group_by_size(list(range(len(staged.paths))), sizes, COUNTING_DOCUMENTS)


def _lay_out_files(workspace: Workspace, staged: StagedInput, summary: Summary) -> FileLayout:
    """Drop the documents without a label of the corpus, and lay out the others in files.

    Raises:
        SettingsError: a split that the settings ask for is empty.
    """
    settings = workspace.settings
    for path, split in zip(staged.paths, staged.splits, strict=True):
        summary.drop_unlabelled(split, StagedBlock(Path(path)).array("labelled"))
    layout = FileLayout.from_splits(staged.paths, staged.splits)
    for name in SPLITS:
        if not layout.documents(name) and (name != "test" or settings.has_test):
            raise SettingsError(f"{workspace.describe_split(name)}: no document with a label is left in this split")
    valid = layout.documents("valid")
    if not settings.valid and valid < settings.valid_documents:
        log.info(
            "prepare: %s validation documents: %s drawn (corpus.valid_documents is %s, at most a tenth of train), "
            "those without a label left out",
            f"{valid:,}", f"{summary.drawn_valid:,}", f"{settings.valid_documents:,}",
        )  # fmt: skip
    summary.count_kept(staged.splits, staged.facts)
    staged.facts.clear()  # not needed any more, and large
    return layout


def _merge_words(workspace: Workspace, staged: StagedInput) -> tuple[Tokenizer, np.ndarray]:
    """Write `tokenizer.json`; return the tokenizer and the document frequency of its words, int64 [words]."""
    _count_and_merge(workspace, staged, "words", count_words)
    settings = workspace.settings
    with pa.memory_map(str(workspace.stage / "vocabulary.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    tokenizer = Tokenizer.from_words(table["word"].to_pylist(), settings.segmentation, subwords=settings.subwords)
    tokenizer.save(workspace.directory / "tokenizer.json")
    if settings.subwords:
        return tokenizer, _subword_frequency(workspace, staged, len(tokenizer))
    # The two special words, padding and unknown, have no frequency.
    return tokenizer, np.concatenate([[0, 0], table["count"].to_numpy()]).astype(np.int64)


def _subword_frequency(workspace: Workspace, staged: StagedInput, words: int) -> np.ndarray:
    """Return the number of training documents that contain each word, as a word or as a subword, int64 [words]."""
    workspace.run(
        _block_groups(staged),
        count_subwords,
        "counting subwords",
        paths=staged.paths,
        splits=workspace.share(staged.splits),
        max_tokens=workspace.settings.max_tokens,
    )
    frequency = np.zeros(words, dtype=np.int64)
    for path in staged.paths:
        counts = StagedBlock(Path(path)).array("subword_counts")
        frequency[: len(counts)] += counts
    return frequency


def _encode(workspace: Workspace, layout: FileLayout, frequency: np.ndarray, summary: Summary) -> None:
    """Write the Parquet files of all splits, and the document features of the training split."""
    for split in SPLITS:
        (workspace.directory / split).mkdir()
    rows = workspace.run(
        layout.file_groups(),
        encode_files,
        "writing the texts as integers",
        layout=workspace.share(layout),
        work=workspace.directory,
        features=None if workspace.settings.label_features else workspace.features,
        frequency=workspace.share(frequency),
        documents=layout.documents("train"),
        max_tokens=workspace.settings.max_tokens,
    )
    for split in SPLITS:
        own = [row for row in rows if row["split"] == split]
        summary.tokens[split] = sum(int(row["tokens"]) for row in own)
        summary.assignments[split] = sum(int(row["labels"]) for row in own)


def _remove_blocks(workspace: Workspace) -> None:
    """Remove the staged blocks and document features."""
    for path in workspace.stage.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
