"""A block of documents between the passes of `prepare`: texts split once, words and labels numbered by the block.

A block is a directory of arrays that are mapped from disk, so a pass reads only what it needs of it:

    documents.arrow                id, text
    words.arrow, labels.arrow      the block's words and labels, by the block's numbers
    word.npy, word_offsets.npy     the words of each document, cut at `max_tokens`
    label.npy, label_offsets.npy   the labels of each document, distinct
    about.npy                      digest, draw, words and whether it was cut, of each document
    word_counts.npy, label_counts.npy, word_ids.npy, label_ids.npy     what the passes find out about the block's words
                                   and labels: how often they occur, and their ids in the corpus
    labelled.npy                   documents that have a label left
    word_ids_offsets.npy           where a word is written in several: its ids in `word_ids` begin here
    piece_counts.npy               then: training documents that each word of the corpus is in
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from axml_ray.corpus.records import Block
from axml_ray.corpus.words import split_texts
from axml_ray.ragged import Ragged
from axml_ray.settings import CorpusSettings

ABOUT = np.dtype([("high", np.uint64), ("low", np.uint64), ("draw", np.uint64), ("words", np.int32), ("cut", np.bool_)])
"""High and low half of the text's digest; what it is drawn by; words as cut; whether it was cut."""


@dataclass(frozen=True, slots=True)
class StagedBlock:
    """A block on disk."""

    directory: Path

    def strings(self, name: str) -> pa.Table:
        """One of the `.arrow` files, mapped."""
        with pa.memory_map(str(self.directory / f"{name}.arrow")) as file:
            return pa.ipc.open_file(file).read_all()

    def array(self, name: str) -> np.ndarray:
        """One of the `.npy` files, mapped."""
        path = self.directory / f"{name}.npy"
        return np.load(path, mmap_mode="r")

    def rows(self, name: str) -> Ragged:
        """The numbers of `word` or `label` of each document."""
        return Ragged(self.array(name), self.array(f"{name}_offsets"))

    def keep(self, name: str, array: np.ndarray) -> None:
        """Write one of the `.npy` files."""
        np.save(self.directory / f"{name}.npy", array)


def write_strings(path: Path, **columns: pa.Array) -> None:
    """Write columns as an Arrow file that can be mapped."""
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def stage_block(directory: Path, block: Block, settings: CorpusSettings) -> None:
    """Split the texts of a block, number its words and labels, and write it to the new directory `directory`."""
    directory.mkdir()
    staged = StagedBlock(directory)
    words = split_texts(block.texts, settings.max_tokens, settings.segmentation)
    about = np.empty(len(block.texts), ABOUT)
    digests, draws = _digests(block.texts, settings.seed)
    about["high"], about["low"], about["draw"] = digests[:, 0], digests[:, 1], draws
    about["words"], about["cut"] = words.lengths, words.whole > words.lengths
    write_strings(directory / "documents.arrow", id=block.ids, text=block.texts)
    write_strings(directory / "words.arrow", word=words.words)
    encoded = block.labels.flatten().dictionary_encode()
    write_strings(directory / "labels.arrow", label=encoded.dictionary)
    lengths = np.diff(block.labels.offsets.to_numpy()).astype(np.int64)
    labels = distinct(Ragged(encoded.indices.to_numpy(), np.concatenate([[0], np.cumsum(lengths)])))
    staged.keep("word", words.ids)
    staged.keep("word_offsets", np.concatenate([[0], np.cumsum(words.lengths)]))
    staged.keep("label", labels.values)
    staged.keep("label_offsets", labels.offsets)
    staged.keep("about", about)


def distinct(rows: Ragged) -> Ragged:
    """The values of each row, sorted, each once."""
    if not len(rows.values):
        return rows
    size = int(rows.values.max()) + 1
    keys = np.repeat(np.arange(len(rows)), rows.lengths) * size + rows.values
    keys.sort()
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    counts = np.bincount(keys // size, minlength=len(rows))
    return Ragged((keys % size).astype(np.int32), np.concatenate([[0], np.cumsum(counts)]))


def _digests(texts: pa.Array, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Digests of texts, uint64 [texts, 2], and the numbers that they are drawn by, uint64 [texts]."""
    key = b"draw%d" % seed
    digests = [hashlib.blake2b(text.as_buffer(), digest_size=16).digest() for text in texts]
    # Without trailing NULs, as digests of numpy's byte strings were: a draw stays what it was.
    draws = [hashlib.blake2b(digest.rstrip(b"\0"), key=key).digest()[:8] for digest in digests]
    whole = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)
    return whole, np.frombuffer(b"".join(draws), ">u8").astype(np.uint64)
