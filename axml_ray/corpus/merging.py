"""Words and labels of all blocks become those of the corpus: counted, ranked, and each block told their ids.

Counts are summed in Arrow, a few blocks at a time, so that memory grows with the distinct strings alone. Ranks are by
falling count, equals by spelling: they don't depend on how the corpus was cut into blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.corpus.label_index import write_labels
from axml_ray.corpus.staging import StagedBlock, write_strings
from axml_ray.corpus.tokenizer import LONGEST, SEPARATOR, UNKNOWN, Tokenizer
from axml_ray.settings import SPLITS, CorpusSettings

ROWS = 4 << 20


def merge(kind: str, paths: Sequence[str], work: Path, stage: Path, settings: CorpusSettings) -> list[dict[str, Any]]:
    """One of the two merges, `words` or `labels`; the one row says what came of it."""
    found = [StagedBlock(Path(path)) for path in paths]
    return [merge_words(found, stage, settings) if kind == "words" else merge_labels(found, work, settings)]


def merge_words(found: Sequence[StagedBlock], stage: Path, settings: CorpusSettings) -> dict[str, Any]:
    """Write `vocabulary.arrow` (word, count), the two special words left out, and each block's `word_ids`.

    With subwords the characters of all words of training documents follow, a block's words have `word_ids` from
    `word_ids_offsets` on, and counts are of whole words alone.
    """
    table = _sum(
        pa.table({"word": block.strings("words")["word"], "count": block.array("word_counts")}) for block in found
    )
    every = table["word"]
    if settings.subwords:
        table = table.filter(pc.less_equal(pc.utf8_length(every), LONGEST))
    table = table.filter(pc.greater_equal(table["count"], max(settings.min_document_frequency, 1)))
    table = _ranked(table, "count", "word").slice(0, settings.vocabulary_size - UNKNOWN - 1)
    if settings.subwords:
        table = pa.concat_tables([table, _characters(every, table["word"])])
    write_strings(stage / "vocabulary.arrow", word=table["word"], count=table["count"])
    words = table["word"].combine_chunks()
    tokenizer = Tokenizer.of_words(words.to_pylist(), settings.segmentation, subwords=settings.subwords)

    def ids_of(block: StagedBlock, ids: np.ndarray, own: pa.ChunkedArray) -> None:
        ids = np.where(ids >= 0, ids + UNKNOWN + 1, UNKNOWN).astype(np.int32)
        # What serving does to a word, or a separator, that isn't in the vocabulary.
        asked = ids == UNKNOWN
        if not settings.subwords:
            asked &= pc.equal(own, SEPARATOR).to_numpy()
        answers = tokenizer.of_split(own.filter(pa.array(asked)).to_pylist())
        lengths = np.ones(len(ids), dtype=np.int64)
        lengths[asked] = answers.lengths
        ids = np.repeat(ids, lengths)
        ids[np.repeat(asked, lengths)] = answers.values
        block.keep("word_ids", ids)
        if settings.subwords:
            block.keep("word_ids_offsets", np.concatenate([[0], np.cumsum(lengths)]))

    _look_up(found, "words", "word", words, ids_of)
    return {"words": len(words)}


def _characters(words: pa.ChunkedArray, known: pa.ChunkedArray) -> pa.Table:
    """Rows of the vocabulary, without a count, for the characters of `words` that aren't words of `known`."""
    words, letters = words.filter(pc.not_equal(words, SEPARATOR)), set[str]()
    for begin in range(0, len(words), ROWS):
        letters.update(*words.slice(begin, ROWS).to_pylist())
    more = pa.array(sorted(letters.difference(known.to_pylist())), pa.string())
    return pa.table({"word": more, "count": np.zeros(len(more), np.int64)})


def merge_labels(found: Sequence[StagedBlock], work: Path, settings: CorpusSettings) -> dict[str, Any]:
    """Write `labels.parquet`, and each block's `label_ids` and `labelled` (bool [documents])."""
    tables = (
        pa.table(
            {"label": block.strings("labels")["label"], **dict(zip(SPLITS, block.array("label_counts"), strict=True))}
        )
        for block in found
    )
    table = _sum(tables)
    total = pc.add(pc.add(table["train"], table["valid"]), table["test"])
    table = table.filter(pc.greater(total, 0))
    row = {"all": table.num_rows}
    table = table.filter(pc.greater_equal(total.filter(pc.greater(total, 0)), settings.min_label_count))
    table = _ranked(table, "train", "label")
    labels, counts = table["label"].combine_chunks(), table["train"].to_numpy()
    write_labels(work / "labels.parquet", labels, counts, settings.label_names)
    unseen = counts == 0
    row |= {
        "labels": len(labels),
        "trained": int(np.count_nonzero(counts)),
        "unseen_valid": int((unseen & (table["valid"].to_numpy() > 0)).sum()),
        "unseen_test": int((unseen & (table["test"].to_numpy() > 0)).sum()),
    }

    def ids_of(block: StagedBlock, ids: np.ndarray, own: pa.ChunkedArray) -> None:
        block.keep("label_ids", ids.astype(np.int32))
        given = block.rows("label")
        known = np.concatenate([[0], np.cumsum(ids[given.values] >= 0)])
        block.keep("labelled", np.diff(known[given.offsets]) > 0)

    _look_up(found, "labels", "label", labels, ids_of)
    return row


def _sum(tables: Iterator[pa.Table]) -> pa.Table:
    """The sums of all columns but the first over rows with the same string in that."""
    held: list[pa.Table] = []
    rows = 0

    def together() -> pa.Table:
        table = pa.concat_tables(held).combine_chunks()
        key, *counts = table.column_names
        summed = table.group_by(key, use_threads=False).aggregate([(count, "sum") for count in counts])
        return summed.rename_columns({f"{count}_sum": count for count in counts}).select([key, *counts])

    merged = 0
    for table in tables:
        if table.num_columns == 2:
            table = table.filter(pc.greater(table.column(1), 0))
        held.append(table)
        rows += table.num_rows
        # Twice what the last sum left, so that summing again and again stays linear.
        if rows > max(ROWS, 2 * merged):
            held = [together()]
            rows = merged = held[0].num_rows
    return together()


def _ranked(table: pa.Table, count: str, string: str) -> pa.Table:
    return table.sort_by([(count, "descending"), (string, "ascending")]).combine_chunks()


def _look_up(
    found: Sequence[StagedBlock],
    name: str,
    column: str,
    known: pa.Array,
    take: Callable[[StagedBlock, np.ndarray, pa.ChunkedArray], None],
) -> None:
    """Give each block the places of its strings in `known`, -1 where they aren't; several blocks at a time."""
    waiting: list[tuple[StagedBlock, pa.ChunkedArray]] = []

    def flush() -> None:
        strings = pa.chunked_array([chunk for _, own in waiting for chunk in own.chunks], pa.string())
        places = pc.fill_null(pc.index_in(strings, known), -1).to_numpy()
        begin = 0
        for block, own in waiting:
            take(block, places[begin : begin + len(own)], own)
            begin += len(own)
        waiting.clear()

    for block in found:
        waiting.append((block, block.strings(name)[column]))
        if sum(len(own) for _, own in waiting) > ROWS:
            flush()
    if waiting:
        flush()
