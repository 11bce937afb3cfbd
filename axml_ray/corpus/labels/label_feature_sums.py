"""The sums of label centroids (`label_features`), from files.

Before they are cut to their largest terms, the sums of millions of labels do not fit into memory. Therefore the TF-IDF
vectors of each file of training documents, and its (label, document) pairs sorted by label, are on disk. Labels are cut
into ranges of about `label_features.RANGE_TERMS` terms to add, and a task sums a range by reading the matching part of
each file. A sum always adds documents in the order of the corpus, so its rounding does not depend on the ranges.
"""

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

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
) -> None:
    """Sum numbered ranges of labels, as a task; writes `range-<number>.counts.npy`, `.indices.npy` and `.data.npy`.

    `ranges` are number, first label and last label + 1. A label keeps at most `max_terms` terms.
    """
    for number, (begin, end) in ranges:
        parts = _parts(features, files, begin, end, words)
        if end - begin == 1:  # summed densely, because it may have most documents of the corpus
            total = np.zeros(words, dtype=np.float32)
            for _, vectors in parts:
                np.add.at(total, vectors.indices, vectors.data)
            rows = sparse.csr_matrix(total[None])
        elif of_files := list(parts):
            assignments, vectors = zip(*of_files, strict=True)
            rows = sparse.hstack(assignments, format="csr") @ sparse.vstack(vectors, format="csr")
        else:
            rows = sparse.csr_matrix((end - begin, words), dtype=np.float32)
        rows = keep_strongest(rows, max_terms)
        stem = features / f"range-{number:06d}"
        np.save(f"{stem}.counts.npy", np.diff(rows.indptr).astype(np.int64))
        np.save(f"{stem}.indices.npy", rows.indices.astype(np.int32))
        np.save(f"{stem}.data.npy", rows.data)


def _parts(
    features: Path, files: int, begin: int, end: int, words: int
) -> Iterator[tuple[sparse.csr_matrix, sparse.csr_matrix]]:
    """Yield the documents of each file that have one of the labels `begin` to `end - 1`.

    These are which label each has, float32 CSR [end - begin, documents], and their vectors, [documents, words].
    """
    for number in range(files):
        labels, pairs, offsets, terms, weights = (
            np.load(features / f"{number:06d}.{name}.npy", mmap_mode="r")
            for name in ("labels", "documents", "offsets", "words", "weights")
        )
        low, high = np.searchsorted(labels, [begin, end])
        if low == high:
            continue
        documents, document_of_pair = np.unique(pairs[low:high], return_inverse=True)
        starts = np.searchsorted(labels[low:high], np.arange(begin, end + 1))
        ones = np.ones(high - low, np.float32)
        assignments = sparse.csr_matrix((ones, document_of_pair, starts), shape=(end - begin, len(documents)))
        rows = documents - number * FILE_DOCUMENTS
        of_words, of_weights = (Ragged(values, offsets).take(rows) for values in (terms, weights))
        vectors = (of_weights.values, of_words.values, of_words.offsets)
        yield assignments, sparse.csr_matrix(vectors, shape=(len(documents), words))


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
