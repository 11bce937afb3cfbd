"""The passes of preparation, from texts to integers.

The first pass is a Ray Data stream of the documents, from the files of the input to staged blocks (`source_stream.py`);
each later one runs as Ray tasks over files that the one before wrote (`passes.py`). Between the passes, the driver
decides what needs the whole corpus: duplicates and splits. For this it holds a few numbers per document, never a text.
Documents are drawn by a hash of their text, and files follow the order of the input, so the result does not depend on
the number of blocks or tasks, or on the order in which tasks end.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from axml_ray.cluster.connection import connect
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import content_digest, write_json
from axml_ray.core.memory import release_freed_memory
from axml_ray.corpus.continued import check_kept_labels, check_kept_texts, keep_word_vectors, largest_valid_draw
from axml_ray.corpus.counts import merging_bytes
from axml_ray.corpus.labels import label_feature_sums
from axml_ray.corpus.labels.label_feature_rows import read_feature_rows, rows_of_labels
from axml_ray.corpus.labels.label_features import keep_strongest, label_ranges, max_terms
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.labels.name_files import name_labels
from axml_ray.corpus.preparation import tasks
from axml_ray.corpus.preparation.checks import (
    check_ids,
    check_not_one_hot,
    check_titles,
    lookalike_warning,
    overlap_warning,
    repeated_warning,
    segmentation_warning,
    separator_warning,
    unseen_warning,
)
from axml_ray.corpus.preparation.input_changes import Inputs
from axml_ray.corpus.preparation.merging import merge_labels, merge_words
from axml_ray.corpus.preparation.passes import (
    SAMPLED,
    count_cooccurrences,
    count_labels,
    count_subwords,
    count_words,
    encode_files,
)
from axml_ray.corpus.preparation.split_assignment import DROPPED, TRAIN, VALID, FileLayout, assign_splits, by_split
from axml_ray.corpus.preparation.staging import DOCUMENT_FACTS, StagedBlock, StagedInput, reader_number
from axml_ray.corpus.preparation.tasks import Workspace, group_by_size
from axml_ray.corpus.readers.separated_values import SeparatedValues
from axml_ray.corpus.readers.source_files import file_size
from axml_ray.corpus.readers.tables import ParquetRows
from axml_ray.corpus.records.records import Reader
from axml_ray.corpus.report_page import write_report_page
from axml_ray.corpus.store import FORMAT, GIVEN_FEATURES, MANIFEST, VERSION, Corpus
from axml_ray.corpus.text import cooccurrence, word_vectors
from axml_ray.corpus.text.tokenizer import Tokenizer
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.settings import SPLITS, stored

log = logging.getLogger(__name__)

BLOCK_BYTES = 32 << 20
"""Bytes of the input in a staged block; results do not depend on it."""
SMALLEST_BYTES = 8 << 10
"""A smaller file counts as one of this size where files are read by one task, as opening it takes time as well."""
COUNTING_DOCUMENTS = 1 << 15
"""Approximate number of documents that a counting task reads."""
VECTOR_SEED = 0
"""Seed of random word vectors, and of the factorisation that learns them."""


def build_corpus(workspace: Workspace, readers: list[tuple[str, Reader]], inputs: Inputs) -> None:
    """Write a corpus into the directory of `workspace`.

    `readers` are split and reader of each source, the split empty for a source that has none; `inputs` is for the
    manifest.

    Raises:
        SettingsError: an input is unreadable or empty, has too many bad records, or a split has no labels.
        RuntimeError: a task failed.
    """
    start = time.monotonic()
    settings, work, describe_split = workspace.settings, workspace.directory, workspace.describe_split
    given_features = None if settings.label_features is None else read_feature_rows(settings.label_features)

    # 1. Stage: read every record once; write blocks of documents, with words and labels numbered per block.
    staged, rejections = stage_sources(workspace, readers)
    given_split = staged.split.copy()

    # Decide duplicates and splits on the driver, and check what only the whole input shows.
    limit = largest_valid_draw(settings)
    summary = assign_splits(settings, staged.split, staged.facts, describe_split, limit)
    drawn_valid = int(((staged.split == VALID) & (given_split != VALID)).sum())
    if settings.source != "installed_packages":  # the ids of these are ours
        check_ids(staged, given_split)
    files = "1 file" if len(readers) == 1 else f"{len(readers):,} files"
    rejected = sum(rejections.values())
    log.info("prepare: read %s documents from %s (%s rejected)", f"{len(given_split):,}", files, f"{rejected:,}")
    check_not_one_hot(staged.paths)
    if settings.title_field:
        check_titles(staged.paths, settings.title_field)
    warnings: list[str] = []

    def warn(warning: str | None) -> None:
        if warning:
            warnings.append(warning)
            log.warning("prepare: WARNING: %s", warning)

    has_separator = any(isinstance(reader, SeparatedValues) for _, reader in readers)
    warn(separator_warning(staged.paths, settings.label_separator if has_separator else ""))
    if settings.segmentation == "words":
        of_blocks = zip(staged.paths, given_split[staged.starts[:-1]], strict=True)
        warn(segmentation_warning([path for path, split in of_blocks if split == TRAIN]))
    if settings.continues is not None:
        for warning in check_kept_texts(settings.continues, staged.facts["high"], staged.split):
            warn(warning)
    duplicates = summary["duplicates"]
    for split, repeated in duplicates["within"].items():
        warn(repeated_warning(split, repeated, duplicates["of"][split]))
    if not settings.drop_duplicates:
        warn(overlap_warning(duplicates["also_in_train"], by_split(staged.split)))

    def count(task: Callable[..., Any], what: str, **more: Any) -> list[Any]:
        """Count something in all blocks; each task writes its counts next to them. Return what the tasks do."""
        groups = group_by_size(list(range(len(staged.paths))), np.diff(staged.starts).tolist(), COUNTING_DOCUMENTS)
        return workspace.run(groups, task, f"counting {what}", paths=staged.paths, splits=staged.splits(), **more)

    def merge(task: Callable[..., Any], what: str, samples: list[np.ndarray]) -> Any:
        """Merge the counts of all blocks in one task, which ranks what it counted and gives each block the ids."""
        memory = merging_bytes(SAMPLED * len(np.unique(np.concatenate(samples))))
        what = f"merging the counts of {what}"
        [counts] = workspace.run([staged.paths], task, what, memory, work=work, settings=settings)
        return counts

    # 2. Labels: count those of each block, rank them, and give each block their ids.
    labels = merge(merge_labels, "labels", count(count_labels, "labels"))
    if not labels["all"]:
        raise SettingsError(f"{describe_split('train')}: no document has a label; every record's `labels` is empty")
    if not labels["trained"] and settings.min_label_count > 1:
        raise SettingsError(f"corpus.min_label_count is {settings.min_label_count}: no label occurs so often in train")
    if not labels["trained"]:
        raise SettingsError(f"{describe_split('train')}: no training document has a label")
    warn(unseen_warning(labels))
    warn(lookalike_warning(pq.read_table(work / "labels.parquet", columns=["label"])["label"]))
    if settings.continues is not None:
        check_kept_labels(work, settings.continues)
    if settings.label_names is not None:
        index = LabelIndex.load(work / "labels.parquet")
        replace(index, names=tuple(name_labels(index.labels, settings.label_names))).save(work / "labels.parquet")

    # Drop the documents whose labels are all too rare for the corpus, and lay out the others in files.
    unlabelled = ~np.concatenate([StagedBlock(Path(path)).array("labelled") for path in staged.paths])
    for name, more in by_split(staged.split[unlabelled]).items():
        summary["left_out"]["without_label"][name] += more
    staged.split[unlabelled] = DROPPED
    layout = FileLayout.from_splits(staged.paths, staged.splits())
    documents = {split: layout.documents(split) for split in SPLITS}
    for name in SPLITS:
        if not documents[name] and (name != "test" or settings.has_test):
            raise SettingsError(f"{describe_split(name)}: no document with a label is left in this split")
    if not settings.valid and documents["valid"] < settings.valid_documents:
        log.info(
            "prepare: %s validation documents: %s drawn (corpus.valid_documents is %s, at most a tenth of train), "
            "those without a label left out",
            f"{documents['valid']:,}", f"{drawn_valid:,}", f"{settings.valid_documents:,}",
        )  # fmt: skip
    summary["empty_texts"] = by_split(staged.split[staged.facts["words"] == 0])
    if summary["empty_texts"]["train"] == documents["train"]:
        raise SettingsError(f"{describe_split('train')}: no text has a word; is corpus.text_field the field of texts?")
    staged.facts = staged.facts[:0]  # not needed any more, and large

    # 3. Words: the same as for labels, for the words of training documents that have a label of the corpus.
    merge(merge_words, "words", count(count_words, "words"))
    with pa.memory_map(str(workspace.stage / "vocabulary.arrow")) as file:
        vocabulary = pa.ipc.open_file(file).read_all()
    tokenizer = Tokenizer.from_words(vocabulary["word"].to_pylist(), settings.segmentation, subwords=settings.subwords)
    tokenizer.save(work / "tokenizer.json")
    frequency = np.zeros(len(tokenizer), dtype=np.int64)  # the number of training documents with each word
    if settings.subwords:
        count(count_subwords, "subwords", max_tokens=settings.max_tokens)
        for block in staged.paths:
            counts = StagedBlock(Path(block)).array("subword_counts")
            frequency[: len(counts)] += counts
    else:  # the two special words, padding and unknown, have no frequency
        frequency[2:] = vocabulary["count"].to_numpy()
    split_sizes = ", ".join(f"{documents[split]:,} {split}" for split in SPLITS)
    log.info("prepare: %s documents, %s labels, %s words", split_sizes, f"{labels['labels']:,}", f"{len(tokenizer):,}")

    # 4. Encode: write the documents as integers, in files of a fixed number of documents.
    for split in SPLITS:
        (work / split).mkdir()
    written = workspace.run(
        layout.file_groups(),
        encode_files,
        "writing the texts as integers",
        layout=layout,
        work=work,
        features=workspace.features,
        frequency=frequency,
        documents=documents["train"],
        max_tokens=settings.max_tokens,
    )
    rows = [row for of_task in written for row in of_task]
    for name, column in (("words", "tokens"), ("label_assignments", "labels"), ("cut_texts", "cut")):
        summary[name] = {split: sum(int(row[column]) for row in rows if row["split"] == split) for split in SPLITS}

    # 5. Label features: sum the documents' TF-IDF vectors over ranges of labels.
    feature_files = len(list(workspace.features.glob("*.offsets.npy")))
    mean_terms = label_feature_sums.mean_terms(workspace.features, feature_files)
    ranges = label_ranges(label_feature_sums.train_counts(work / "labels.parquet"), mean_terms)
    groups = group_by_size(list(enumerate(ranges)), [1] * len(ranges), max(1, len(ranges) // 16))
    sizes: dict[str, Any] = {"files": feature_files, "words": len(tokenizer), "max_terms": max_terms(labels["trained"])}
    if len(ranges) == 1:  # not worth a task
        label_feature_sums.sum_ranges(groups[0], features=workspace.features, **sizes)
    else:
        what = "summing label features"
        workspace.run(groups, label_feature_sums.sum_ranges, what, features=workspace.features, **sizes)
    label_feature_sums.assemble(work / "label_features.npz", workspace.features, len(ranges), len(tokenizer))
    if given_features is not None:
        chosen = rows_of_labels(given_features, LabelIndex.load(work / "labels.parquet").labels, labels["trained"])
        sparse.save_npz(work / GIVEN_FEATURES, keep_strongest(chosen, max_terms(labels["trained"])), compressed=False)
    for directory in filter(Path.is_dir, workspace.stage.iterdir()):  # blocks and features are as large as the input
        shutil.rmtree(directory)

    # 6. Word vectors.
    coverage, dimension = write_word_vectors(workspace, tokenizer, summary["words"]["train"])
    release_freed_memory()  # their factorisation takes more with more texts, and glibc may keep it for the whole run

    # The report page, and the manifest, which makes the corpus complete.
    files_written = sorted(path for path in work.rglob("*") if path.is_file() and path.parent != workspace.stage)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "inputs": inputs.key,
        "sources": [asdict(file) for file in inputs.files],
        # Without the rejected records, which name their files by path, and on which no result depends.
        "fingerprint": content_digest(work, [path for path in files_written if path.name != "rejected.jsonl"]),
        "settings": stored(settings),
        "identity": settings.identity,
        "counts": {
            "documents": documents,
            "labels": labels["labels"],
            "trained_labels": labels["trained"],
            "words": len(tokenizer),
            "rejected": rejected,
            "duplicates": summary["left_out"]["duplicates"],
        },
        "summary": {
            "records": len(given_split) + rejected,
            "rejected": dict(sorted(rejections.items())),
            "documents": documents,
            **summary,
            "labels_dropped_as_rare": labels["all"] - labels["labels"],
            "warnings": warnings,
            "labels_unseen_in_train": {"valid": labels["unseen_valid"], "test": labels["unseen_test"]},
        },
        "word_vector_coverage": coverage,
        "word_vector_dimension": dimension,
        "seconds": time.monotonic() - start,
    }
    # The page is not part of the fingerprint, because no result depends on it.
    files_written.append(write_report_page(work, settings.name, manifest["counts"], manifest["summary"]))
    manifest["files"] = {path.relative_to(work).as_posix(): path.stat().st_size for path in sorted(files_written)}
    write_json(work / MANIFEST, manifest)
    shutil.rmtree(workspace.stage)
    log.info("prepare: done in %.0f s", time.monotonic() - start)


def stage_sources(workspace: Workspace, readers: list[tuple[str, Reader]]) -> tuple[StagedInput, dict[str, int]]:
    """Read all sources into staged blocks, and list the rejected records in `rejected.jsonl`.

    Ray is started or joined if the input is large; `workspace.in_process` says whether it was not. Returns the blocks,
    and the number of rejected records by reason.

    Raises:
        SettingsError: a file cannot be read, or too many records were rejected.
    """
    settings = workspace.settings
    parts = [
        (split, part, file_size(part.path))
        for split, reader in readers
        for part in (reader.split(BLOCK_BYTES) if isinstance(reader, ParquetRows) else [reader])
    ]
    workspace.in_process = sum(size for _, _, size in parts) < tasks.SMALL_BYTES
    if not workspace.in_process:
        connect()
    groups = group_by_size(
        [(number, part) for number, (_, part, _) in enumerate(parts)],
        [max(size, SMALLEST_BYTES) for _, _, size in parts],
        min(BLOCK_BYTES, tasks.SMALL_BYTES),
    )
    rows = workspace.stage_sources(groups, BLOCK_BYTES)
    if failures := sorted(row["failure"] for row in rows if row["failure"]):
        raise SettingsError(f"corpus: {failures[0]}")

    reasons: dict[str, int] = {}
    first: dict[str, Any] = {}
    with (workspace.directory / "rejected.jsonl").open("w", encoding="utf-8") as output:
        for path in sorted(workspace.stage.glob("*.rejected.jsonl")):
            with path.open(encoding="utf-8") as file:
                for line in file:
                    output.write(line)
                    record = json.loads(line)
                    if record["ends_file"]:  # how much is lost is not known, so that no share allows it
                        raise SettingsError(
                            f"{record['file']}:{record['line']}: {record['reason']}; get the whole file, or remove "
                            "what cannot be read"
                        )
                    first = first or record
                    # Counted without the details that differ between records.
                    reason = record["reason"].partition(":")[0].partition(" at ")[0]
                    reasons[reason] = reasons.get(reason, 0) + 1
    rejected = sum(reasons.values())
    if rejected > settings.max_rejected_share * (sum(row["rows"] for row in rows) + rejected):
        more = f" (the first of {rejected:,} bad records)" if rejected > 1 else ""
        raise SettingsError(
            f"{first['file']}:{first['line']}: {first['reason']}{more}; fix the line, or allow bad records "
            "with corpus.max_rejected_share"
        )

    paths = sorted(row["path"] for row in rows if row["path"])
    facts = [StagedBlock(Path(path)).array("facts") for path in paths]
    split_names = [parts[reader_number(path)][0] for path in paths]
    splits = np.array([SPLITS.index(split) if split else TRAIN for split in split_names], dtype=np.int8)
    lengths = list(map(len, facts))
    all_facts = np.concatenate([np.empty(0, DOCUMENT_FACTS), *facts])
    readers_of_parts = [part for _, part, _ in parts]
    return StagedInput(
        paths, np.cumsum([0, *lengths]), np.repeat(splits, lengths), all_facts, readers_of_parts
    ), reasons


def write_word_vectors(workspace: Workspace, tokenizer: Tokenizer, tokens: int) -> tuple[float, int]:
    """Write `word_vectors.safetensors`: read from a file, learned from the `tokens` of the training texts, or random.

    Returns the share of the words with a read or learned vector, and the dimension of the vectors.

    Raises:
        SettingsError: the file of word vectors is invalid.
    """
    settings, work = workspace.settings, workspace.directory
    path, coverage = settings.word_vectors_path, 0.0
    # By the same seed, a new word would get the numbers of the old word that had its id.
    seed = VECTOR_SEED if settings.continues is None else int(Corpus.open(settings.continues).fingerprint, 16)
    if path is not None:
        vectors, coverage = word_vectors.read_vectors(path, tokenizer.words, seed)
        log.info("prepare: %s knows %.1f%% of the words", path, 100 * coverage)
    elif settings.word_vectors == "train":
        log.info("prepare: learning word vectors from the training texts")
        number_of_stripes = cooccurrence.number_of_stripes(tokens, len(tokenizer))
        stripes = [workspace.stage / f"cooccurrences-{number:06d}.npz" for number in range(number_of_stripes)]
        files, what = sorted((work / "train").iterdir()), "counting neighbouring words"
        workspace.run(range(len(stripes)), count_cooccurrences, what, paths=stripes, files=files, words=len(tokenizer))
        with Heartbeat("prepare: learning word vectors"):
            known, learned = cooccurrence.factorise(stripes, settings.word_dimension, VECTOR_SEED)
        vectors, coverage = word_vectors.fill_unknown(known, learned, len(tokenizer), seed)
    else:
        vectors = word_vectors.random_vectors(len(tokenizer), settings.word_dimension, seed)
    if settings.continues is not None:
        align = path is None and settings.word_vectors == "train"
        vectors = keep_word_vectors(vectors, tokenizer.words, settings.continues, align=align)
    word_vectors.save_vectors(work / "word_vectors.safetensors", vectors)
    return coverage, vectors.shape[1]
