"""Merges the words and labels of all blocks: counts them, ranks them, and gives each block their ids.

Counts are summed in Arrow, a few blocks at a time, so that memory grows only with the number of distinct strings. Ranks
are by decreasing count, then by spelling, so that they do not depend on how the corpus was cut into blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.corpus.continued import keep_ids, trained_labels
from axml_ray.corpus.labels.label_index import write_labels
from axml_ray.corpus.preparation.staging import StagedBlock, write_table
from axml_ray.corpus.text.tokenizer import LONGEST_WORD, SEPARATOR, UNKNOWN, Tokenizer
from axml_ray.settings import SPLITS, CorpusSettings

VOCABULARY_SIZE = 500_000
"""Largest number of words, as in the paper, including the padding and unknown words."""
ROWS = 4 << 20
"""Approximate number of strings that are processed at a time."""


def merge_words(paths: Sequence[str], work: Path, settings: CorpusSettings) -> None:
    """Write `stage/vocabulary.arrow` (word, count), without the two special words, and each block's `word_ids`.

    With subwords, the vocabulary also gets the characters of all words of training documents, each of the block's words
    has several `word_ids`, delimited by `word_ids_offsets`, and counts are those of whole words.
    """
    blocks = [StagedBlock(Path(path)) for path in paths]
    table = _sum_counts(
        pa.table({"word": block.table("words")["word"], "count": block.array("word_counts")}) for block in blocks
    )
    all_words = table["word"]
    if settings.subwords:
        table = table.filter(pc.less_equal(pc.utf8_length(all_words), LONGEST_WORD))
    table = table.filter(pc.greater_equal(table["count"], max(settings.min_document_frequency, 1)))
    table = _ranked(table, "count", "word").slice(0, VOCABULARY_SIZE - UNKNOWN - 1)
    if settings.subwords:
        table = pa.concat_tables([table, _characters(all_words, table["word"])])
    write_table(work / "stage" / "vocabulary.arrow", word=table["word"], count=table["count"])
    vocabulary = table["word"].combine_chunks()
    tokenizer = Tokenizer.from_words(vocabulary.to_pylist(), settings.segmentation, subwords=settings.subwords)

    def save_ids(block: StagedBlock, positions: np.ndarray, words: pa.ChunkedArray) -> None:
        ids = np.where(positions >= 0, positions + UNKNOWN + 1, UNKNOWN).astype(np.int32)
        # Words outside the vocabulary, and a separator outside it, get what the tokenizer will write when serving.
        outside = ids == UNKNOWN
        if not settings.subwords:
            outside &= pc.equal(words, SEPARATOR).to_numpy()
        encoded = tokenizer.encode_words(words.filter(pa.array(outside)).to_pylist())
        lengths = np.ones(len(ids), dtype=np.int64)
        lengths[outside] = encoded.lengths
        ids = np.repeat(ids, lengths)
        ids[np.repeat(outside, lengths)] = encoded.values
        block.save("word_ids", ids)
        if settings.subwords:
            block.save("word_ids_offsets", np.concatenate([[0], np.cumsum(lengths)]))

    _look_up(blocks, "words", "word", vocabulary, save_ids)


def _characters(words: pa.ChunkedArray, vocabulary: pa.ChunkedArray) -> pa.Table:
    """Return rows, with a count of 0, for the characters of `words` that are no words of the vocabulary."""
    words, characters = words.filter(pc.not_equal(words, SEPARATOR)), set[str]()
    for begin in range(0, len(words), ROWS):
        characters.update(*words.slice(begin, ROWS).to_pylist())
    added = pa.array(sorted(characters.difference(vocabulary.to_pylist())), pa.string())
    return pa.table({"word": added, "count": np.zeros(len(added), np.int64)})


def merge_labels(paths: Sequence[str], work: Path, settings: CorpusSettings) -> dict[str, int]:
    """Write `labels.parquet`, and each block's `label_ids` and `labelled` (bool [documents]).

    Returns numbers of labels: `all` before rare ones are dropped, `labels` of the corpus, `trained`, which have
    training documents, and `unseen_valid` and `unseen_test`, which have none. For these two splits also `pairs_valid`
    and so on, of a document and a label, and `unseen_pairs_valid` and so on, those of unseen labels.
    """
    blocks = [StagedBlock(Path(path)) for path in paths]
    table = _sum_counts(
        pa.table(
            {"label": block.table("labels")["label"], **dict(zip(SPLITS, block.array("label_counts"), strict=True))}
        )
        for block in blocks
    )
    total = pc.add(pc.add(table["train"], table["valid"]), table["test"])
    table = table.filter(pc.greater(total, 0))
    counts_of_labels = {"all": table.num_rows}
    # By training documents alone: which labels are learned must not depend on those of test documents.
    is_unseen, is_frequent = pc.equal(table["train"], 0), pc.greater_equal(table["train"], settings.min_label_count)
    table = table.filter(pc.or_(is_unseen, is_frequent))
    table = _ranked(table, "train", "label")
    if settings.continues is not None:
        table = keep_ids(table, trained_labels(settings.continues))
    labels, counts = table["label"].combine_chunks(), table["train"].to_numpy()
    write_labels(work / "labels.parquet", labels, labels, counts)
    unseen = counts == 0
    counts_of_labels |= {
        "labels": len(labels),
        "trained": int(np.count_nonzero(counts)),
    }
    for split in ("valid", "test"):
        pairs = table[split].to_numpy()
        counts_of_labels |= {
            f"unseen_{split}": int((unseen & (pairs > 0)).sum()),
            f"pairs_{split}": int(pairs.sum()),
            f"unseen_pairs_{split}": int(pairs[unseen].sum()),
        }

    def save_ids(block: StagedBlock, ids: np.ndarray, _: pa.ChunkedArray) -> None:
        block.save("label_ids", ids.astype(np.int32))
        labels_of_documents = block.rows("label")
        in_corpus = np.concatenate([[0], np.cumsum(ids[labels_of_documents.values] >= 0)])
        block.save("labelled", np.diff(in_corpus[labels_of_documents.offsets]) > 0)

    _look_up(blocks, "labels", "label", labels, save_ids)
    return counts_of_labels


def _sum_counts(tables: Iterator[pa.Table]) -> pa.Table:
    """Group tables by their first column, a string, and sum the other columns."""
    pending: list[pa.Table] = []
    rows = summed_rows = 0

    def sum_pending() -> pa.Table:
        table = pa.concat_tables(pending).combine_chunks()
        key, *counts = table.column_names
        summed = table.group_by(key, use_threads=False).aggregate([(count, "sum") for count in counts])
        return summed.rename_columns({f"{count}_sum": count for count in counts}).select([key, *counts])

    for table in tables:
        if table.num_columns == 2:
            table = table.filter(pc.greater(table.column(1), 0))
        pending.append(table)
        rows += table.num_rows
        # At least twice what the previous sum left, so that the cost of repeated sums stays linear.
        if rows > max(ROWS, 2 * summed_rows):
            pending = [sum_pending()]
            rows = summed_rows = pending[0].num_rows
    return sum_pending()


def _ranked(table: pa.Table, count: str, string: str) -> pa.Table:
    return table.sort_by([(count, "descending"), (string, "ascending")]).combine_chunks()


def _look_up(
    blocks: Sequence[StagedBlock],
    name: str,
    column: str,
    index: pa.Array,
    save: Callable[[StagedBlock, np.ndarray, pa.ChunkedArray], None],
) -> None:
    """Look up the strings of each block in `index`, several blocks at a time.

    Calls `save` with each block, the position of each of its strings in `index` (-1 if absent), and the strings.
    """
    pending: list[tuple[StagedBlock, pa.ChunkedArray]] = []

    def look_up_pending() -> None:
        strings = pa.chunked_array([chunk for _, chunked in pending for chunk in chunked.chunks], pa.string())
        positions = pc.fill_null(pc.index_in(strings, index), -1).to_numpy()
        begin = 0
        for block, chunked in pending:
            save(block, positions[begin : begin + len(chunked)], chunked)
            begin += len(chunked)
        pending.clear()

    for block in blocks:
        pending.append((block, block.table(name)[column]))
        if sum(len(chunked) for _, chunked in pending) > ROWS:
            look_up_pending()
    if pending:
        look_up_pending()
