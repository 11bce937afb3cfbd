"""TF-IDF label centroids: what a label tree is clustered from (paper, "Building Shallow and Wide PLT").

A label's vector is the L2-normalised sum of the L2-normalised TF-IDF vectors of its training documents. Term
frequencies enter as 1 + ln(tf), as the linear trees that ours is compared with take them.

The sums of millions of labels fit no memory before they are cut to their strongest terms. So each file of training
documents leaves its TF-IDF vectors and its pairs of label and document, sorted by label, on disk; labels are cut into
ranges of about `RANGE_TERMS` terms to add; and a task sums a range, reading from each file what belongs to it. A sum
runs over documents in the order of the corpus, whatever the ranges, so its rounding is always the same.
"""

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy import sparse

from axml_ray.corpus.tokenizer import UNKNOWN
from axml_ray.ragged import Ragged

RANGE_TERMS = 12_000_000
TABLE_TERMS = 1 << 19
FILE_DOCUMENTS = 1 << 15
"""Training documents whose features are in one file, but for the last."""


@dataclass(frozen=True, slots=True)
class DocumentFeatures:
    """TF-IDF vectors of the documents of a file.

    Attributes:
        words: int32 [terms], word ids, rising within a document.
        weights: float32 [terms]; a document's vector has length one, or none where it has no known word.
        offsets: int64 [documents + 1].
    """

    words: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray

    def save(self, stem: Path) -> None:
        """Write `<stem>.words.npy` and so on."""
        for name in ("words", "weights", "offsets"):
            np.save(stem.with_name(f"{stem.name}.{name}.npy"), getattr(self, name))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Labels and their documents in a file, sorted by label, equals by document.

    Attributes:
        labels: int32 [pairs].
        documents: int32 [pairs], by their place in the whole split.
    """

    labels: np.ndarray
    documents: np.ndarray

    def save(self, stem: Path) -> None:
        """Write `<stem>.labels.npy` and `<stem>.documents.npy`."""
        np.save(stem.with_name(f"{stem.name}.labels.npy"), self.labels)
        np.save(stem.with_name(f"{stem.name}.documents.npy"), self.documents)


def bag_of_words(tokens: Ragged, words: int, times: np.ndarray | None = None) -> sparse.csr_matrix:
    """Word counts, float32 CSR [documents, words]; padding and unknown words count nothing.

    Args:
        tokens: word ids.
        words: size of the vocabulary.
        times: float32 [tokens], how many times each counts; by default once.
    """
    if times is None:
        times = np.ones(len(tokens.values), np.float32)
    counts = sparse.csr_matrix(
        (times, tokens.values, tokens.offsets),
        shape=(len(tokens), words),
        copy=True,  # sum_duplicates sorts in place, and the order of the tokens is the text
    )
    counts.sum_duplicates()
    counts.data[counts.indices <= UNKNOWN] = 0
    counts.eliminate_zeros()
    return counts


def indicators(rows: Ragged, columns: int) -> sparse.csr_matrix:
    """1 for each value of a row, where it stands as often as it is there; those from `columns` on are left out.

    float32 CSR [rows, columns].
    """
    width = max(columns, int(rows.values.max(initial=-1)) + 1)
    ones = np.ones(len(rows.values), np.float32)
    return sparse.csr_matrix((ones, rows.values, rows.offsets), shape=(len(rows), width))[:, :columns]


def word_weights(frequency: np.ndarray, documents: int) -> np.ndarray:
    """How much each word tells: float32 [words], the smoothed inverse document frequency.

    Args:
        frequency: int64 [words], training documents that hold each word.
        documents: training documents in all.
    """
    weights: np.ndarray = np.log(np.float32(documents + 1) / (frequency.astype(np.float32) + 1)) + 1
    return weights


def document_features(tokens: Ragged, weights: np.ndarray) -> DocumentFeatures:
    """TF-IDF vectors of documents.

    Args:
        tokens: word ids.
        weights: of the words, `word_weights`.
    """
    bag = bag_of_words(tokens, len(weights))
    weigh(bag, weights)
    return DocumentFeatures(bag.indices.astype(np.int32), bag.data, bag.indptr.astype(np.int64))


def weigh(counts: sparse.csr_matrix, weights: np.ndarray) -> None:
    """Turn counts into TF-IDF vectors of length one, in place.

    Args:
        counts: float32 CSR, 1 or more.
        weights: of the columns, `word_weights`.
    """
    counts.data = (np.log(counts.data) + 1) * weights[counts.indices]
    to_length_one(counts)


def to_length_one(rows: sparse.csr_matrix) -> None:
    """Scale each row of a float32 matrix to Euclidean length one, in place; rows of zeros stay."""
    terms = np.diff(rows.indptr)
    filled = np.flatnonzero(terms)
    if len(filled):
        lengths = np.sqrt(np.add.reduceat(rows.data.astype(np.float64) ** 2, rows.indptr[filled]))
        lengths[lengths == 0] = 1
        rows.data = (rows.data / np.repeat(lengths, terms[filled])).astype(np.float32)


def sorted_pairs(labels: Ragged, first: int) -> Pairs:
    """The pairs of a file's documents, which are numbered from `first` on."""
    documents = np.repeat(np.arange(first, first + len(labels), dtype=np.int32), labels.lengths)
    order = np.argsort(labels.values, kind="stable")
    return Pairs(labels.values[order], documents[order])


def train_counts(labels: Path) -> np.ndarray:
    """int64 [trained labels]: training documents of each, from `labels.parquet`."""
    counts: np.ndarray = pq.read_table(labels, columns=["count"])["count"].to_numpy()
    return counts[counts > 0]


def mean_terms(features: Path, files: int) -> float:
    """Mean number of distinct words of a training document."""
    offsets = [np.load(features / f"{number:06d}.offsets.npy", mmap_mode="r") for number in range(files)]
    return float(sum(int(array[-1]) for array in offsets) / max(1, sum(len(array) - 1 for array in offsets)))


def label_ranges(counts: np.ndarray, terms: float) -> list[tuple[int, int]]:
    """Ranges of labels with about `RANGE_TERMS` terms to add each, or of one label.

    Args:
        counts: int64 [L], training documents of each label.
        terms: mean number of distinct words of a document.
    """
    cost = np.cumsum(counts * max(terms, 1.0))
    ranges, begin = [], 0
    while begin < len(counts):
        before = cost[begin - 1] if begin else 0.0
        end = max(begin + 1, int(np.searchsorted(cost, before + RANGE_TERMS, side="right")))
        ranges.append((begin, end))
        begin = end
    return ranges


def sum_ranges(
    ranges: Sequence[tuple[int, tuple[int, int]]], features: Path, files: int, words: int, max_terms: int | None
) -> list[dict[str, Any]]:
    """Write `range-<number>.<part>.npy`, parts `counts`, `indices` and `data`, for numbered ranges of labels."""
    for number, (begin, end) in ranges:
        rows = label_sums(features, files, begin, end, words, max_terms)
        stem = features / f"range-{number:06d}"
        np.save(f"{stem}.counts.npy", np.diff(rows.indptr).astype(np.int64))
        np.save(f"{stem}.indices.npy", rows.indices.astype(np.int32))
        np.save(f"{stem}.data.npy", rows.data)
    return []


def label_sums(
    features: Path, files: int, begin: int, end: int, words: int, max_terms: int | None
) -> sparse.csr_matrix:
    """Vectors of the labels `begin` to `end`, float32 CSR [end - begin, words], of length one."""

    def mapped(number: int, name: str) -> np.ndarray:
        array: np.ndarray = np.load(features / f"{number:06d}.{name}.npy", mmap_mode="r")
        return array

    labels, documents, parts = [], [], []
    single = np.zeros(words, dtype=np.float32) if end - begin == 1 else None
    rows = 0
    for number in range(files):
        sorted_labels = mapped(number, "labels")
        low, high = np.searchsorted(sorted_labels, [begin, end])
        if low == high:
            continue
        wanted, place = np.unique(mapped(number, "documents")[low:high], return_inverse=True)
        inside = wanted - number * FILE_DOCUMENTS
        chosen = _rows(mapped(number, "words"), mapped(number, "weights"), mapped(number, "offsets"), inside)
        if single is not None:
            np.add.at(single, chosen[0], chosen[1])
            continue
        labels.append(sorted_labels[low:high] - begin)
        documents.append(place + rows)
        parts.append(chosen)
        rows += len(wanted)
    if single is not None:
        vector = sparse.csr_matrix(single[None])
        return strongest(vector, max_terms)
    if not parts:
        return sparse.csr_matrix((end - begin, words), dtype=np.float32)
    of_label, of_document = np.concatenate(labels), np.concatenate(documents)
    order = np.argsort(of_label, kind="stable")
    counts = np.bincount(of_label, minlength=end - begin)
    given = sparse.csr_matrix(
        (
            np.ones(len(order), np.float32),
            of_document[order].astype(np.int32),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        ),
        shape=(end - begin, rows),
    )
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([lengths for _, _, lengths in parts]))])
    vectors = sparse.csr_matrix(
        (
            np.concatenate([weights for _, weights, _ in parts]),
            np.concatenate([indices for indices, _, _ in parts]),
            offsets.astype(np.int32),
        ),
        shape=(rows, words),
    )
    return strongest((given @ vectors).tocsr(), max_terms)


def _rows(
    words: np.ndarray, weights: np.ndarray, offsets: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Words, weights and lengths of some documents of a file."""
    lengths = offsets[1:][rows] - offsets[:-1][rows]
    starts = np.cumsum(lengths) - lengths
    places = np.arange(int(lengths.sum())) + np.repeat(offsets[:-1][rows] - starts, lengths)
    return words[places], weights[places], lengths


def strongest(rows: sparse.csr_matrix, most: int | None) -> sparse.csr_matrix:
    """Rows of length one of at most `most` terms; of equally strong ones, the first."""
    lengths = np.diff(rows.indptr)
    if most is not None and lengths.max(initial=0) > most:
        sizes = np.abs(rows.data)
        weakest = _weakest_kept(sizes, rows.indptr, most)
        kept = np.flatnonzero(sizes >= np.repeat(weakest, lengths))
        offsets = np.searchsorted(kept, rows.indptr)
        surplus = np.flatnonzero(np.diff(offsets) > most)
        if len(surplus):
            gone = [_surplus(rows, kept[offsets[row] : offsets[row + 1]], weakest[row], most) for row in surplus]
            kept = np.setdiff1d(kept, np.concatenate(gone), assume_unique=True)
            offsets = np.searchsorted(kept, rows.indptr)
        rows = sparse.csr_matrix((rows.data[kept], rows.indices[kept], offsets), shape=rows.shape)
    rows.sort_indices()
    to_length_one(rows)
    return rows


def _surplus(rows: sparse.csr_matrix, places: np.ndarray, weakest: np.float32, most: int) -> np.ndarray:
    """Those of a row's `places` that equal the weakest and for which there is no room."""
    equal = places[np.abs(rows.data[places]) == weakest]
    equal = equal[np.argsort(rows.indices[equal])]  # a product's are in no order that could be told
    return equal[most - len(places) :] if len(places) > most else equal[:0]


def _weakest_kept(sizes: np.ndarray, offsets: np.ndarray, most: int) -> np.ndarray:
    """The `most`-th largest of each row's `sizes` (float32 [nnz]), float32 [rows]; 0 where it has no more than that."""
    lengths = np.diff(offsets)
    weakest = np.zeros(len(lengths), dtype=np.float32)
    long = np.flatnonzero(lengths > most)
    long = long[np.argsort(lengths[long], kind="stable")]
    begin = 0
    while begin < len(long):
        # Rows of about one length, side by side, filled up with zeros.
        width = int(lengths[long[begin]] * 1.25) + 1
        end = int(np.searchsorted(lengths[long], width, side="right"))
        end = min(end, begin + max(1, TABLE_TERMS // width))
        chosen = long[begin:end]
        inside = np.arange(width) < lengths[chosen, None]
        table = np.zeros(inside.shape, dtype=np.float32)
        places = offsets[chosen, None] + np.arange(width)
        table[inside] = sizes[places[inside]]
        table.partition(width - most, axis=1)
        weakest[chosen] = table[:, width - most]
        begin = end
    return weakest


def assemble(path: Path, features: Path, ranges: int, words: int) -> None:
    """Join the ranges to one file that `scipy.sparse.load_npz` opens, without holding them."""

    def parts(name: str) -> Iterator[np.ndarray]:
        return (np.load(features / f"range-{number:06d}.{name}.npy", mmap_mode="r") for number in range(ranges))

    counts = np.concatenate([np.zeros(1, np.int64), *parts("counts")])
    offsets = np.cumsum(counts)
    index = np.dtype(np.int32 if offsets[-1] < 2**31 else np.int64)
    with zipfile.ZipFile(path, "w") as archive:

        def put(name: str, dtype: np.dtype, shape: tuple[int, ...], chunks: Iterator[np.ndarray]) -> None:
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for chunk in chunks:
                    file.write(np.ascontiguousarray(chunk, dtype).data)

        size = (int(offsets[-1]),)
        put("indices", index, size, parts("indices"))
        put("indptr", index, offsets.shape, iter([offsets]))
        put("format", np.dtype("S3"), (), iter([np.array(b"csr")]))
        put("shape", np.dtype(np.int64), (2,), iter([np.array([len(offsets) - 1, words])]))
        put("data", np.dtype(np.float32), size, parts("data"))


def label_centroids(tokens: Ragged, labels: Ragged, words: int, trained: int) -> sparse.csr_matrix:
    """The vector of each label in memory, float32 CSR [trained, words], rows of length one (or zero without words).

    Args:
        tokens: word ids of the training documents.
        labels: their label ids, below `trained`.
        words: size of the vocabulary.
        trained: labels that have training documents.
    """
    bag = bag_of_words(tokens, words)
    frequency = np.bincount(bag.indices, minlength=words)
    found = document_features(tokens, word_weights(frequency, len(tokens)))
    vectors = sparse.csr_matrix((found.weights, found.words, found.offsets), shape=(len(tokens), words))
    return strongest((indicators(labels, trained).T.tocsr() @ vectors).tocsr(), None)
