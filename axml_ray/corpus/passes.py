"""The passes of `prepare` over shards and staged blocks, as Ray Data tasks.

A task knows its part by number; what all tasks need lies once in Ray's object store. Arrays stay in files: rows that
come back are small.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data

from axml_ray.cluster import quiet_data, root_cause
from axml_ray.corpus.label_features import FILE_DOCUMENTS as FEATURE_DOCUMENTS
from axml_ray.corpus.label_features import document_features, sorted_pairs, word_weights
from axml_ray.corpus.records import Block, blocks
from axml_ray.corpus.staging import StagedBlock, distinct, stage_block
from axml_ray.corpus.tokenizer import UNKNOWN
from axml_ray.corpus.translation import Translation
from axml_ray.heartbeat import Heartbeat
from axml_ray.ragged import Ragged
from axml_ray.settings import SPLITS, CorpusSettings

log = logging.getLogger(__name__)

SMALL_BYTES = 8 << 20
FILE_DOCUMENTS = 8192
"""Documents of a file of the corpus, but for the last of a split."""


def over(
    parts: Sequence[Any], task: Callable[..., Any], *, what: str, small: bool = False, **arguments: Any
) -> list[Any]:
    """Run `task` for each of `parts` as a Ray Data task of its own; the rows that it returns, in any order.

    Args:
        parts: what a task works on, one each.
        task: takes a part and `arguments`; returns rows, dictionaries of values that Arrow holds.
        what: the pass does, for the log.
        small: all of it is so little that handing it out would take longer.
        arguments: what every task takes; large ones as references into Ray's object store.

    Raises:
        RuntimeError: a task failed, as where a disk is full.
    """
    if small or not parts:
        return [row for part in parts for row in task(part, **arguments)]
    log.info("prepare: %s", what)
    quiet_data()
    together = ray.put(list(parts))
    numbered = ray.data.from_items([{"number": i} for i in range(len(parts))], override_num_blocks=len(parts))
    mapped: Iterator[dict[str, Any]] = numbered.flat_map(
        _numbered, fn_kwargs={"parts": together, "task": task, "arguments": arguments}
    ).iter_rows()
    try:
        with Heartbeat(f"prepare: {what}"):
            return list(mapped)
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"preparing the corpus failed: {root_cause(error)}") from error


def _numbered(row: dict[str, Any], parts: Any, task: Callable[..., Any], arguments: dict[str, Any]) -> list[Any]:
    given: list[Any] = resolve(parts)
    rows: list[Any] = task(given[int(row["number"])], **arguments)
    return rows


def resolve(value: Any) -> Any:
    """What a reference stands for; anything else is itself."""
    return ray.get(value) if isinstance(value, ray.ObjectRef) else value


def stage_shards(numbered: Sequence[tuple[int, Any]], stage: Path, settings: CorpusSettings) -> list[dict[str, Any]]:
    """Read shards into staged blocks and lists of rejections; one row a block written or failure met."""
    rows: list[dict[str, Any]] = []
    mine = {f"{number:06d}" for number, _ in numbered}
    for left in [path for path in stage.iterdir() if path.name[:6] in mine]:  # by a killed task: Ray starts another
        left.unlink() if left.is_file() else shutil.rmtree(left)
    for number, shard in numbered:
        try:
            rows += _stage_shard(number, shard, stage, settings)
        # As a row, because Ray hides the kind of an exception that a task raises.
        except ValueError as error:
            rows.append({"path": str(shard.path), "rows": 0, "failure": f"cannot be read: {error}"})
        except OSError as error:
            rows.append({"path": str(stage), "rows": 0, "failure": f"cannot be written: {error.strerror or error}"})
    return rows


def _blocks(shard: Any, size: int) -> Iterator[Block]:
    """The blocks of a shard; what can't be read is a ValueError, so that an OSError is one of writing."""
    try:
        yield from blocks(shard, size)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None


def _stage_shard(number: int, shard: Any, stage: Path, settings: CorpusSettings) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    waiting: list[Block] = []

    def flush() -> None:
        if not waiting:
            return
        path = stage / f"{number:06d}-{len(written):06d}"
        together = Block(
            ids=pa.concat_arrays([block.ids for block in waiting]),
            texts=pa.concat_arrays([block.texts for block in waiting]),
            labels=pa.concat_arrays([block.labels for block in waiting]),
        )
        stage_block(path, together, settings)
        written.append({"path": str(path), "rows": len(together.texts), "failure": ""})
        waiting.clear()

    held = 0
    rejections = stage / f"{number:06d}.rejected.jsonl"
    for block in _blocks(shard, settings.block_bytes):
        if block.rejections:
            bad = [{"file": r.file, "line": r.line, "reason": r.reason} for r in block.rejections]
            with rejections.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in bad)
        if len(block.texts):
            waiting.append(block)
            held += block.texts.nbytes
        if held >= settings.block_bytes:
            flush()
            held = 0
    flush()
    return written


def count_labels(numbers: Sequence[int], paths: Sequence[str], splits: Any) -> list[dict[str, Any]]:
    """Count in each block: documents of each label in train, valid and test."""
    splits = resolve(splits)
    for number in numbers:
        block, split = StagedBlock(Path(paths[number])), splits[number]
        labels = block.rows("label")
        of_label = np.repeat(split, labels.lengths)
        size = block.strings("labels").num_rows
        counts = [np.bincount(labels.values[of_label == i], minlength=size) for i in range(len(SPLITS))]
        block.keep("label_counts", np.stack(counts))
    return []


def count_words(numbers: Sequence[int], paths: Sequence[str], splits: Any) -> list[dict[str, Any]]:
    """Count in each block: training documents of each word."""
    splits = resolve(splits)
    for number in numbers:
        block, split = StagedBlock(Path(paths[number])), splits[number]
        words = block.rows("word")
        if (split == 0).all():
            train = Ragged(np.asarray(words.values), words.offsets)
        else:
            train = words.take(np.flatnonzero(split == 0))
        size = block.strings("words").num_rows
        block.keep("word_counts", np.bincount(distinct(train).values, minlength=size))
    return []


def count_pieces(numbers: Sequence[int], paths: Sequence[str], splits: Any, most: int) -> list[dict[str, Any]]:
    """Count in each block: training documents that each word of the vocabulary is in once subwords are written."""
    splits = resolve(splits)
    for number in numbers:
        block = StagedBlock(Path(paths[number]))
        train = _in_ids(block, np.flatnonzero(splits[number] == 0), most)
        block.keep("piece_counts", np.bincount(distinct(train).values))
    return []


@dataclass(frozen=True)
class Plan:
    """Which documents of which blocks each file of the corpus holds.

    Attributes:
        paths: the staged blocks in the order of the input.
        splits: of each block, int8 [documents]: the split of each, or DROPPED.
        starts: of each split, int64 [blocks + 1]: its documents in the blocks before.
    """

    paths: list[str]
    splits: list[np.ndarray]
    starts: dict[str, np.ndarray]

    @classmethod
    def of(cls, paths: list[str], splits: list[np.ndarray]) -> "Plan":
        """The plan for blocks whose splits are known."""
        counts = {name: [int((split == i).sum()) for split in splits] for i, name in enumerate(SPLITS)}
        return cls(paths, splits, {name: np.concatenate([[0], np.cumsum(c)]).astype(int) for name, c in counts.items()})

    def files(self) -> list[tuple[str, range]]:
        """Split and numbers of the files that a task writes: those whose label features go to one file."""
        together = FEATURE_DOCUMENTS // FILE_DOCUMENTS
        found = []
        for name in SPLITS:
            files = -(-int(self.starts[name][-1]) // FILE_DOCUMENTS)
            found += [(name, range(i, min(i + together, files))) for i in range(0, files, together)]
        return found

    def rows(self, split: str, begin: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """Block and rows of the documents `begin` to `end` of a split, in order."""
        starts = self.starts[split]
        first = int(np.searchsorted(starts, begin, side="right")) - 1
        for number in range(first, len(self.paths)):
            if starts[number] >= end:
                return
            inside = np.flatnonzero(self.splits[number] == SPLITS.index(split))
            low, high = max(begin - starts[number], 0), min(end - starts[number], len(inside))
            if high > low:
                yield number, inside[low:high]


def encode_files(
    files: tuple[str, range], plan: Any, work: Path, features: Path | None, frequency: Any, documents: int, most: int
) -> list[dict[str, Any]]:
    """Write files of the corpus; for files of train, also what label features are summed from, see `label_features`."""
    split, numbers = files
    plan, frequency = resolve(plan), resolve(frequency)
    written = [_encode_file(split, number, plan, work, most) for number in numbers]
    if split == "train" and features is not None:
        stem, weights = _features_of(numbers, features), word_weights(frequency, documents)
        document_features(Ragged.concatenate(tokens for tokens, _ in written), weights).save(stem)
        labels = Ragged.concatenate(labels for _, labels in written)
        sorted_pairs(labels, numbers[0] * FILE_DOCUMENTS).save(stem)
    return [{"split": split, "tokens": len(tokens.values), "labels": len(labels.values)} for tokens, labels in written]


def count_translated(files: tuple[str, range], work: Path, translation: Any, features: Path) -> list[dict[str, Any]]:
    """Count for files of train: documents that each word is in once they are translated."""
    _, numbers = files
    tokens, words = _translated(numbers, work, resolve(translation)), len(resolve(translation).sides)
    counts = np.bincount(distinct(tokens).values, minlength=words)
    np.save(_features_of(numbers, features).with_suffix(".counts.npy"), counts)
    return []


def translate_features(
    files: tuple[str, range], work: Path, translation: Any, features: Path, frequency: Any, documents: int
) -> list[dict[str, Any]]:
    """Let the label features be summed from what `encode_files` wrote as it is once translated."""
    _, numbers = files
    tokens, weights = _translated(numbers, work, resolve(translation)), word_weights(resolve(frequency), documents)
    document_features(tokens, weights).save(_features_of(numbers, features))
    return []


def _features_of(numbers: range, features: Path) -> Path:
    """Where the features of some files' documents lie, without a suffix."""
    return features / f"{numbers[0] * FILE_DOCUMENTS // FEATURE_DOCUMENTS:06d}"


def _translated(numbers: range, work: Path, translation: Translation) -> Ragged:
    """The documents of some files of train."""
    files = (pq.read_table(work / "train" / f"{number:06d}.parquet", columns=["tokens"]) for number in numbers)
    return translation.translated(Ragged.concatenate(Ragged.from_arrow(table["tokens"]) for table in files))


def _encode_file(split: str, number: int, plan: Plan, work: Path, most: int) -> tuple[Ragged, Ragged]:
    """Write a file of the corpus; its tokens and labels."""
    tables, tokens, labels = [], [], []
    begin = number * FILE_DOCUMENTS
    for block_number, inside in plan.rows(split, begin, begin + FILE_DOCUMENTS):
        block = StagedBlock(Path(plan.paths[block_number]))
        tables.append(block.strings("documents").take(pa.array(inside)))
        tokens.append(_in_ids(block, inside, most))
        labels.append(_known(block.rows("label").take(inside), block.array("label_ids")))
    table = pa.concat_tables(tables).combine_chunks()
    token_rows, label_rows = Ragged.concatenate(tokens), Ragged.concatenate(labels)
    columns = {
        "id": table["id"],
        "tokens": token_rows.to_arrow(),
        "labels": label_rows.to_arrow(),
        "text": table["text"],
    }
    pq.write_table(pa.table(columns), work / split / f"{number:06d}.parquet", use_dictionary=False)
    return token_rows, label_rows


def _in_ids(block: StagedBlock, documents: np.ndarray, most: int) -> Ragged:
    """Some of the block's documents as at most so many words of the vocabulary; an empty one is one unknown word."""
    rows, ids = block.rows("word").take(documents), block.array("word_ids")
    if (block.directory / "word_ids_offsets.npy").is_file():
        written = block.rows("word_ids").take(rows.values)
        rows = Ragged(np.arange(len(written.values)), written.offsets[rows.offsets]).cut(most)
        ids = written.values
    lengths = np.maximum(rows.lengths, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.full(offsets[-1], UNKNOWN, dtype=np.int32)
    values[np.repeat(rows.lengths > 0, lengths)] = ids[rows.values]
    return Ragged(values, offsets)


def _known(rows: Ragged, ids: np.ndarray) -> Ragged:
    """Rows of the block's labels as ids, sorted; what isn't in the index is left out."""
    values = ids[rows.values]
    kept = values >= 0
    places = np.concatenate([[0], np.cumsum(kept)])
    return distinct(Ragged(values[kept], places[rows.offsets]))
