"""The tasks of the later passes of preparation, each over some staged blocks or files (see `tasks.Workspace.run`)."""

import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.sparse import save_npz

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels import label_feature_sums
from axml_ray.corpus.labels.label_features import FILE_DOCUMENTS as FEATURE_FILE_DOCUMENTS
from axml_ray.corpus.labels.label_features import idf_weights
from axml_ray.corpus.preparation.split_assignment import FILE_DOCUMENTS, TRAIN, FileLayout
from axml_ray.corpus.preparation.staging import StagedBlock, distinct_values
from axml_ray.corpus.text.cooccurrence import cooccurrences
from axml_ray.corpus.text.tokenizer import UNKNOWN
from axml_ray.settings import SPLITS

ROW_GROUP_BYTES = 256 << 20
"""Approximate limit of the text in a row group, which is in memory at a time; few files have more than one."""
SAMPLED = 64
"""Distinct strings for each checksum that a counting task returns."""


def count_labels(numbers: Sequence[int], paths: Sequence[str], splits: Sequence[np.ndarray]) -> np.ndarray:
    """Count for each block the documents with each label: `label_counts`, int64 [splits, labels of the block].

    Returns a sample of the blocks' labels, see `_sample`.
    """
    for number in numbers:
        block, split = StagedBlock(Path(paths[number])), splits[number]
        labels = block.rows("label")
        split_of_label = np.repeat(split, labels.lengths)
        size = block.table("labels").num_rows
        counts = [np.bincount(labels.values[split_of_label == i], minlength=size) for i in range(len(SPLITS))]
        block.save("label_counts", np.stack(counts))
    return _sample([StagedBlock(Path(paths[number])).table("labels")["label"] for number in numbers])


def count_words(numbers: Sequence[int], paths: Sequence[str], splits: Sequence[np.ndarray]) -> np.ndarray:
    """Count for each block the training documents with each word: `word_counts`, int64 [words of the block].

    Returns a sample of the blocks' words, see `_sample`.
    """
    for number in numbers:
        block, split = StagedBlock(Path(paths[number])), splits[number]
        words = block.rows("word")
        if (split == TRAIN).all():
            train = Ragged(np.asarray(words.values), words.offsets)
        else:
            train = words.take(np.flatnonzero(split == TRAIN))
        size = block.table("words").num_rows
        block.save("word_counts", np.bincount(distinct_values(train).values, minlength=size))
    return _sample([StagedBlock(Path(paths[number])).table("words")["word"] for number in numbers])


def count_subwords(numbers: Sequence[int], paths: Sequence[str], splits: Sequence[np.ndarray], max_tokens: int) -> None:
    """Count for each block the training documents with each word of the vocabulary, as a word or as a subword."""
    for number in numbers:
        block = StagedBlock(Path(paths[number]))
        train, _ = _token_ids(block, np.flatnonzero(splits[number] == TRAIN), max_tokens)
        block.save("subword_counts", np.bincount(distinct_values(train).values))


def encode_files(
    files: tuple[str, range],
    layout: FileLayout,
    work: Path,
    features: Path,
    frequency: np.ndarray,
    documents: int,
    max_tokens: int,
) -> list[dict[str, Any]]:
    """Write Parquet files of a split, given with their numbers; of the training split also those of label features.

    `frequency` (int64 [words]) is the number of training documents with each word, `documents` that of all training
    documents. Returns the split and the numbers of tokens, labels and cut texts of each file.
    """
    split, numbers = files
    written = [_encode_file(split, number, layout, work, max_tokens) for number in numbers]
    if split == "train":
        stem = features / f"{numbers[0] * FILE_DOCUMENTS // FEATURE_FILE_DOCUMENTS:06d}"
        of_files, labels_of_files, _ = zip(*written, strict=True)
        tokens, labels = Ragged.concatenate(of_files), Ragged.concatenate(labels_of_files)
        first = numbers[0] * FILE_DOCUMENTS
        label_feature_sums.save_documents(stem, tokens, labels, first, idf_weights(frequency, documents))
    return [
        {"split": split, "tokens": len(tokens.values), "labels": len(labels.values), "cut": cut}
        for tokens, labels, cut in written
    ]


def count_cooccurrences(stripe: int, paths: Sequence[Path], files: Sequence[Path], words: int) -> None:
    """Count the contexts of the words of a stripe in files of training documents, and write them to `paths[stripe]`."""
    documents = (Ragged.from_arrow(pq.read_table(file, columns=["tokens"])["tokens"]) for file in files)
    save_npz(paths[stripe], cooccurrences(documents, stripe, len(paths), words), compressed=False)


def _sample(strings_of_blocks: Sequence[pa.ChunkedArray]) -> np.ndarray:
    """Return the distinct checksums (uint32) of one in `SAMPLED` strings, the same ones wherever they occur."""
    checksums = (zlib.crc32(string.encode()) for strings in strings_of_blocks for string in strings.to_pylist())
    return np.array(list({checksum for checksum in checksums if checksum % SAMPLED == 0}), np.uint32)


def _encode_file(
    split: str, number: int, layout: FileLayout, work: Path, max_tokens: int
) -> tuple[Ragged, Ragged, int]:
    """Write a Parquet file, in row groups of about `ROW_GROUP_BYTES` of text.

    Returns its tokens and labels, and the number of texts with more than `max_tokens` tokens.
    """
    tokens, labels, cut = [], [], 0
    begin = number * FILE_DOCUMENTS
    pieces = [
        (StagedBlock(Path(layout.paths[block])), rows)
        for block, rows in layout.block_rows(split, begin, begin + FILE_DOCUMENTS)
    ]
    sizes = [pc.binary_length(block.table("documents")["text"]).to_numpy()[rows] for block, rows in pieces]
    # The row group of each document, which does not depend on how the input was cut into blocks.
    ends = np.cumsum(np.concatenate(sizes), dtype=np.int64)
    group_of = np.split((ends - np.concatenate(sizes)) // ROW_GROUP_BYTES, np.cumsum(list(map(len, sizes)))[:-1])
    with ExitStack() as stack:
        writer = None
        for group in np.unique(np.concatenate(group_of)):
            chosen = [(block, rows[of == group]) for (block, rows), of in zip(pieces, group_of, strict=True)]
            table = pa.concat_tables(block.table("documents").take(pa.array(rows)) for block, rows in chosen)
            encoded, is_cut = zip(*(_token_ids(block, rows, max_tokens) for block, rows in chosen), strict=True)
            tokens.append(Ragged.concatenate(encoded))
            cut += int(np.concatenate(is_cut).sum())
            labels.append(Ragged.concatenate(_label_ids(block, rows) for block, rows in chosen))
            content = pa.table({
                "id": table["id"].combine_chunks(), "tokens": tokens[-1].to_arrow(), "labels": labels[-1].to_arrow(),
                "text": table["text"].combine_chunks(),
            })  # fmt: skip
            if writer is None:
                path = work / split / f"{number:06d}.parquet"
                writer = stack.enter_context(pq.ParquetWriter(path, content.schema, use_dictionary=False))
            writer.write_table(content)
    return Ragged.concatenate(tokens), Ragged.concatenate(labels), cut


def _token_ids(block: StagedBlock, documents: np.ndarray, max_tokens: int) -> tuple[Ragged, np.ndarray]:
    """Return the first `max_tokens` token ids of some documents of a block, and whether each has more, bool.

    An empty text is one unknown word.
    """
    rows, ids = block.rows("word").take(documents), block.array("word_ids")
    is_cut: np.ndarray = block.array("facts")["cut"][documents]
    if (block.directory / "word_ids_offsets.npy").is_file():
        # With subwords, each word has several ids: concatenate them, and number them consecutively.
        subwords = block.rows("word_ids").take(rows.values)
        rows = Ragged(np.arange(len(subwords.values)), subwords.offsets[rows.offsets])
        is_cut = is_cut | (rows.lengths > max_tokens)
        rows, ids = rows.cut(max_tokens), subwords.values
    lengths = np.maximum(rows.lengths, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.full(offsets[-1], UNKNOWN, dtype=np.int32)
    values[np.repeat(rows.lengths > 0, lengths)] = ids[rows.values]
    return Ragged(values, offsets), is_cut


def _label_ids(block: StagedBlock, documents: np.ndarray) -> Ragged:
    """Return the sorted label ids of some documents of a block; labels outside the corpus are dropped."""
    rows = block.rows("label").take(documents)
    values = block.array("label_ids")[rows.values]
    in_corpus = values >= 0
    kept_before = np.concatenate([[0], np.cumsum(in_corpus)])
    return distinct_values(Ragged(values[in_corpus], kept_before[rows.offsets]))
