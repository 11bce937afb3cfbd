"""Staged blocks: documents between the passes of preparation, with words and labels numbered per block.

A staged block is a directory of memory-mapped arrays, so that a pass reads only what it needs:

| file | content |
|---|---|
| `documents.arrow` | id and text |
| `words.arrow`, `labels.arrow` | the block's distinct words and labels, by their number in the block |
| `word.npy`, `word_offsets.npy` | the words of each document, the first `max_tokens` |
| `label.npy`, `label_offsets.npy` | the distinct labels of each document |
| `indicators.npy` | only if all of the block's labels are `values.INDICATORS`: the number of labels of each document |
| `facts.npy` | `DOCUMENT_FACTS` of each document |
| `word_counts.npy`, `label_counts.npy` | number of documents that contain each of the block's words and labels |
| `word_ids.npy`, `label_ids.npy` | their ids in the corpus |
| `labelled.npy` | whether a document has a label of the corpus |
| `word_ids_offsets.npy` | only with subwords: where the subword ids of each of the block's words begin in `word_ids` |
| `subword_counts.npy` | only with subwords: number of training documents that contain each word of the vocabulary |
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.records.records import Document, Reader
from axml_ray.corpus.records.values import INDICATORS
from axml_ray.corpus.text.composition import composed
from axml_ray.corpus.text.tokenizer import SEPARATOR
from axml_ray.corpus.text.words import split_texts
from axml_ray.settings import CorpusSettings

DOCUMENT_FACTS = np.dtype(
    [
        ("high", np.uint64),
        ("low", np.uint64),
        ("draw", np.uint64),
        ("id", np.uint64),
        ("words", np.int32),
        ("cut", np.bool_),
        ("labelled", np.bool_),
    ]
)
"""The two halves of the text's digest; a hash by which subsets are drawn; a hash of the id; number of words, and
whether it was cut; whether the record has a label."""


@dataclass(frozen=True, slots=True)
class StagedBlock:
    """A staged block on disk."""

    directory: Path

    def table(self, name: str) -> pa.Table:
        """Return one of the `.arrow` files, memory-mapped."""
        with pa.memory_map(str(self.directory / f"{name}.arrow")) as file:
            return pa.ipc.open_file(file).read_all()

    def array(self, name: str) -> np.ndarray:
        """Return one of the `.npy` files, memory-mapped."""
        return np.load(self.directory / f"{name}.npy", mmap_mode="r")

    def rows(self, name: str) -> Ragged:
        """Return the block's `word` or `label` numbers, one row per document."""
        return Ragged(self.array(name), self.array(f"{name}_offsets"))

    def save(self, name: str, array: np.ndarray) -> None:
        """Write one of the `.npy` files."""
        np.save(self.directory / f"{name}.npy", array)


def write_table(path: Path, **columns: pa.Array) -> None:
    """Write columns as an Arrow file that can be memory-mapped."""
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


@dataclass
class StagedInput:
    """All staged blocks.

    Attributes:
        paths: the staged blocks, in the order of the input.
        starts: int64 [blocks + 1], the number of documents before each block.
        split: int8 [documents], the split of each document.
        facts: `DOCUMENT_FACTS` [documents].
        readers: the readers, by the number with which the names of their blocks begin.
    """

    paths: list[str]
    starts: np.ndarray
    split: np.ndarray
    facts: np.ndarray
    readers: list[Reader]

    def splits(self) -> list[np.ndarray]:
        """Return the split of each document by block."""
        return np.split(self.split, self.starts[1:-1])


def reader_number(path: str) -> int:
    """Return the number of the reader of a staged block."""
    return int(Path(path).name[:6])


def stage_block(directory: Path, documents: Sequence[Document], settings: CorpusSettings) -> None:
    """Split texts into words, number the words and labels of the block, and write it to a new directory."""
    directory.mkdir()
    staged = StagedBlock(directory)
    ids = [document.id for document in documents]
    texts = [composed(document.text) for document in documents]
    words = split_texts(texts, settings.max_tokens, settings.segmentation)
    facts = np.empty(len(documents), DOCUMENT_FACTS)
    digests, facts["draw"] = text_digests(texts)
    facts["high"], facts["low"] = digests.T
    facts["id"] = id_hashes(ids)
    is_separator = words.ids == pc.index(words.vocabulary, SEPARATOR).as_py()
    separators = np.bincount(np.repeat(np.arange(len(texts)), words.lengths)[is_separator], minlength=len(texts))
    facts["words"], facts["cut"] = words.lengths - separators, words.is_cut
    write_table(directory / "documents.arrow", id=pa.array(ids), text=pa.array(texts))
    write_table(directory / "words.arrow", word=words.vocabulary)
    names = [composed(label) for document in documents for label in document.labels]
    encoded = pa.array(names, pa.string()).dictionary_encode()
    write_table(directory / "labels.arrow", label=encoded.dictionary)
    lengths = np.array([len(document.labels) for document in documents], np.int64)
    facts["labelled"] = lengths > 0
    if len(encoded.dictionary) <= len(INDICATORS) and INDICATORS.issuperset(encoded.dictionary.to_pylist()):
        staged.save("indicators", lengths)
    labels = distinct_values(Ragged(encoded.indices.to_numpy(), np.concatenate([[0], np.cumsum(lengths)])))
    staged.save("word", words.ids)
    staged.save("word_offsets", np.concatenate([[0], np.cumsum(words.lengths)]))
    staged.save("label", labels.values)
    staged.save("label_offsets", labels.offsets)
    staged.save("facts", facts)


def distinct_values(rows: Ragged) -> Ragged:
    """Return the distinct values of each row, sorted."""
    if not len(rows.values):
        return rows
    # One integer key per value, (row, value), so that a single sort orders all rows.
    size = int(rows.values.max()) + 1
    keys = np.repeat(np.arange(len(rows)), rows.lengths) * size + rows.values
    keys.sort()
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    counts = np.bincount(keys // size, minlength=len(rows))
    return Ragged((keys % size).astype(np.int32), np.concatenate([[0], np.cumsum(counts)]))


def id_hashes(ids: Sequence[str]) -> np.ndarray:
    """Return hashes of ids, uint64 [n]."""
    return np.frombuffer(b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids), np.uint64)


def text_digests(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return digests of texts, uint64 [texts, 2], and hashes by which subsets are drawn, uint64 [texts]."""
    digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
    # Trailing NULs are removed as numpy's byte strings did in earlier versions, because draws must not change.
    draws = [hashlib.blake2b(digest.rstrip(b"\0"), key=b"draw0").digest()[:8] for digest in digests]
    halves = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)
    return halves, np.frombuffer(b"".join(draws), ">u8").astype(np.uint64)
