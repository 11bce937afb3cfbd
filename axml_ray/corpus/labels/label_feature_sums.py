"""Label centroids (`label_features`) of corpora whose sums do not fit into memory.

Before they are cut to their largest terms, the sums of millions of labels do not fit into memory. Therefore the TF-IDF
vectors of each file of training documents, and its (label, document) pairs sorted by label, are on disk. Labels are cut
into ranges of about `label_features.RANGE_TERMS` terms to add, and a task sums a range by reading the matching part of
each file. A sum always adds documents in the order of the corpus, so its rounding does not depend on the ranges.
"""

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from scipy import sparse

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_features import FILE_DOCUMENTS, apply_tf_idf, bag_of_words, keep_strongest


def save_documents(stem: Path, tokens: Ragged, labels: Ragged, first: int, weights: np.ndarray) -> None:
    """Write the TF-IDF vectors of training documents, and their (label, document) pairs sorted by label.

    The files are `<stem>.words.npy` and `.weights.npy` (int32 and float32 [terms]) with `.offsets.npy` (int64
    [documents + 1]), and `<stem>.labels.npy` with `.documents.npy` (int32 [pairs]). `first` is the number of the first
    document in the whole split, and `weights` (float32 [words]) are those of `idf_weights`.
    """
    vectors = bag_of_words(tokens, len(weights))
    apply_tf_idf(vectors, weights)
    documents = np.repeat(np.arange(first, first + len(labels), dtype=np.int32), labels.lengths)
    order = np.argsort(labels.values, kind="stable")
    arrays = {
        "words": vectors.indices.astype(np.int32),
        "weights": vectors.data,
        "offsets": vectors.indptr.astype(np.int64),
        "labels": labels.values[order],
        "documents": documents[order],
    }
    for name, array in arrays.items():
        np.save(stem.with_name(f"{stem.name}.{name}.npy"), array)


def train_counts(labels: Path) -> np.ndarray:
    """Read the number of training documents of each trained label from `labels.parquet`, int64 [trained labels]."""
    counts: np.ndarray = pq.read_table(labels, columns=["count"])["count"].to_numpy()
    return counts[counts > 0]


def mean_terms(features: Path, files: int) -> float:
    """Return the mean number of distinct words of a training document."""
    offsets = [np.load(features / f"{number:06d}.offsets.npy", mmap_mode="r") for number in range(files)]
    return float(sum(int(array[-1]) for array in offsets) / max(1, sum(len(array) - 1 for array in offsets)))


def sum_ranges(
    ranges: Sequence[tuple[int, tuple[int, int]]], features: Path, files: int, words: int, max_terms: int | None
) -> list[dict[str, Any]]:
    """Sum numbered ranges of labels, as a task; writes `range-<number>.counts.npy`, `.indices.npy` and `.data.npy`.

    `ranges` are number, first label and last label + 1. A label keeps at most `max_terms` terms.
    """
    for number, (begin, end) in ranges:
        if end - begin == 1:
            rows = _sum_label(features, files, begin, words)
        else:
            rows = _sum_labels(features, files, begin, end, words)
        rows = keep_strongest(rows, max_terms)
        stem = features / f"range-{number:06d}"
        np.save(f"{stem}.counts.npy", np.diff(rows.indptr).astype(np.int64))
        np.save(f"{stem}.indices.npy", rows.indices.astype(np.int32))
        np.save(f"{stem}.data.npy", rows.data)
    return []


def _sum_label(features: Path, files: int, label: int, words: int) -> sparse.csr_matrix:
    """Sum one label densely, because it may have most documents of the corpus; float32 CSR [1, words]."""
    total = np.zeros(words, dtype=np.float32)
    for part in _parts(features, files, label, label + 1):
        np.add.at(total, part.words, part.weights)
    return sparse.csr_matrix(total[None])


def _sum_labels(features: Path, files: int, begin: int, end: int, words: int) -> sparse.csr_matrix:
    """Sum the labels `begin` to `end - 1` as a sparse product; float32 CSR [end - begin, words]."""
    parts = list(_parts(features, files, begin, end))
    if not parts:
        return sparse.csr_matrix((end - begin, words), dtype=np.float32)
    documents_before = np.cumsum([0, *(len(part.lengths) for part in parts)])
    label_of_pair = np.concatenate([part.labels for part in parts]) - begin
    document_of_pair = np.concatenate(
        [part.documents + before for part, before in zip(parts, documents_before[:-1], strict=True)]
    )
    order = np.argsort(label_of_pair, kind="stable")
    counts = np.bincount(label_of_pair, minlength=end - begin)
    assignments = sparse.csr_matrix(
        (
            np.ones(len(order), np.float32),
            document_of_pair[order].astype(np.int32),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        ),
        shape=(end - begin, documents_before[-1]),
    )
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in parts]))])
    vectors = sparse.csr_matrix(
        (
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.words for part in parts]),
            offsets.astype(np.int32),
        ),
        shape=(documents_before[-1], words),
    )
    return (assignments @ vectors).tocsr()


class _Part(NamedTuple):
    """The documents of one file that have a label of a range."""

    labels: np.ndarray
    """int32 [pairs], the label of each (label, document) pair."""
    documents: np.ndarray
    """int64 [pairs], the document of each pair, as a position among the documents of this part."""
    words: np.ndarray
    """int32 [terms], the words of the documents' TF-IDF vectors."""
    weights: np.ndarray
    """float32 [terms]."""
    lengths: np.ndarray
    """int64 [documents], number of terms of each document."""


def _parts(features: Path, files: int, begin: int, end: int) -> Iterator[_Part]:
    """Yield the part of each file that belongs to the labels `begin` to `end - 1`, if there is one."""
    for number in range(files):
        labels, pairs, offsets, words, weights = (
            np.load(features / f"{number:06d}.{name}.npy", mmap_mode="r")
            for name in ("labels", "documents", "offsets", "words", "weights")
        )
        low, high = np.searchsorted(labels, [begin, end])
        if low == high:
            continue
        documents, document_of_pair = np.unique(pairs[low:high], return_inverse=True)
        rows = documents - number * FILE_DOCUMENTS
        lengths = offsets[1:][rows] - offsets[:-1][rows]
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(int(lengths.sum())) + np.repeat(offsets[:-1][rows] - starts, lengths)
        yield _Part(labels[low:high], document_of_pair, words[positions], weights[positions], lengths)


def assemble(path: Path, features: Path, ranges: int, words: int) -> None:
    """Write the ranges as one file for `scipy.sparse.load_npz`, holding one range in memory at a time."""

    def parts(name: str) -> Iterator[np.ndarray]:
        return (np.load(features / f"range-{number:06d}.{name}.npy", mmap_mode="r") for number in range(ranges))

    counts = np.concatenate([np.zeros(1, np.int64), *parts("counts")])
    offsets = np.cumsum(counts)
    index_type = np.dtype(np.int32 if offsets[-1] < 2**31 else np.int64)
    with zipfile.ZipFile(path, "w") as archive:

        def write(name: str, dtype: np.dtype, shape: tuple[int, ...], chunks: Iterator[np.ndarray]) -> None:
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for chunk in chunks:
                    file.write(np.ascontiguousarray(chunk, dtype).data)

        size = (int(offsets[-1]),)
        write("indices", index_type, size, parts("indices"))
        write("indptr", index_type, offsets.shape, iter([offsets]))
        write("format", np.dtype("S3"), (), iter([np.array(b"csr")]))
        write("shape", np.dtype(np.int64), (2,), iter([np.array([len(offsets) - 1, words])]))
        write("data", np.dtype(np.float32), size, parts("data"))
