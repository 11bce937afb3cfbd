"""The three passes of `prepare` over files, as Ray Data tasks: stage, count, encode.

A task knows its file by number; what all tasks need (shards, staged files) lies once in Ray's object store.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data

from axml_ray.cluster import quiet_data
from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.sources import Document
from axml_ray.corpus.store import SPLITS
from axml_ray.corpus.tokenizer import Tokenizer, count_documents
from axml_ray.settings import CorpusSettings

STAGED_ROWS = 2_000
DROPPED = len(SPLITS)  # the split number of a document that is left out


@dataclass(frozen=True)
class StagedFile:
    """What the driver knows of a staged file: where it lies, and the split that each of its rows goes to."""

    path: str
    split: np.ndarray  # int8 [rows], an index into SPLITS, or DROPPED
    digest: np.ndarray  # S16 [rows]


def over(numbers: range, task: Callable[..., Any], **arguments: Any) -> list[dict[str, Any]]:
    """Run `task` for each number as a Ray Data task of its own; the rows that it returns, in any order."""
    quiet_data()
    numbered = ray.data.from_items([{"number": i} for i in numbers], override_num_blocks=max(1, len(numbers)))
    mapped: Iterator[dict[str, Any]] = numbered.flat_map(task, fn_kwargs=arguments).iter_rows()
    return list(mapped)


def _resolve(value: Any) -> Any:
    return ray.get(value) if isinstance(value, ray.ObjectRef) else value


def stage_shard(row: dict[str, Any], shards: Any, stage: Path) -> list[dict[str, Any]]:
    """Read a shard into staged Parquet files and a list of rejections; one row a file written."""
    number = int(row["number"])
    split_name, shard = _resolve(shards)[number]
    split = SPLITS.index(split_name) if split_name else 0
    written: list[dict[str, Any]] = []
    documents: list[Document] = []
    rejections: list[str] = []

    def flush() -> None:
        if not documents:
            return
        path = stage / f"{number:06d}-{len(written):06d}.parquet"
        digests = [hashlib.blake2b(document.text.encode(), digest_size=16).digest() for document in documents]
        columns = {
            "id": pa.array([document.id for document in documents], pa.string()),
            "text": pa.array([document.text for document in documents], pa.string()),
            "labels": pa.array([list(document.labels) for document in documents], pa.list_(pa.string())),
            "split": pa.array([split] * len(documents), pa.int8()),
            "digest": pa.array(digests, pa.binary()),
        }
        pq.write_table(pa.table(columns), path)
        written.append({"path": str(path), "rows": len(documents), "failure": ""})
        documents.clear()

    records = iter(shard.read())
    while True:
        try:
            record = next(records, None)
        except OSError as error:
            # As a row, because Ray hides the kind of an exception that a task raises.
            return [{"path": str(shard.path), "rows": 0, "failure": error.strerror or str(error)}]
        if record is None:
            break
        if isinstance(record, Document):
            documents.append(record)
            if len(documents) == STAGED_ROWS:
                flush()
        else:
            bad = {"file": record.file, "line": record.line, "reason": record.reason}
            rejections.append(json.dumps(bad, ensure_ascii=False) + "\n")
    flush()
    if rejections:
        (stage / f"{number:06d}.rejected.jsonl").write_text("".join(rejections), encoding="utf-8")
    return written


def count_file(row: dict[str, Any], staged: Any, settings: CorpusSettings) -> list[dict[str, Any]]:
    """Training documents of each word, and documents of each label over all splits, in a staged file."""
    file = _resolve(staged)[int(row["number"])]
    table = pq.read_table(file.path, columns=["text", "labels"])
    train = table.filter(pa.array(file.split == 0))
    words = count_documents(train["text"].to_pylist(), settings.max_tokens)
    kept = table.filter(pa.array(file.split != DROPPED))
    labels = Counter(label for row in kept["labels"].to_pylist() for label in row)
    return [
        {
            "words": list(words),
            "word_counts": np.fromiter(words.values(), np.int64, len(words)),
            "labels": list(labels),
            "label_counts": np.fromiter(labels.values(), np.int64, len(labels)),
        }
    ]


def encode_file(row: dict[str, Any], staged: Any, work: Path, settings: CorpusSettings) -> list[dict[str, Any]]:
    """Write a staged file's documents as integers, split by split; documents without a known label are left out."""
    file = _resolve(staged)[int(row["number"])]
    tokenizer = Tokenizer.load(work / "tokenizer.json")
    index = LabelIndex.load(work / "labels.parquet")
    table = pq.read_table(file.path, columns=["id", "text", "labels"])
    counts = dict.fromkeys(SPLITS, 0)
    for number, split in enumerate(SPLITS):
        chosen = table.filter(pa.array(file.split == number))
        labels = index.encode(chosen["labels"].to_pylist())
        labelled = labels.lengths > 0
        chosen, labels = chosen.filter(pa.array(labelled)), labels.take(np.flatnonzero(labelled))
        if not len(labels):
            continue
        tokens = tokenizer.encode(chosen["text"].to_pylist(), settings.max_tokens)
        columns = {
            "id": chosen["id"],
            "tokens": tokens.to_arrow(),
            "labels": labels.to_arrow(),
            "text": chosen["text"],
        }
        pq.write_table(pa.table(columns), work / split / Path(file.path).name)
        counts[split] = len(labels)
    return [counts]
