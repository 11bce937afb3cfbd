"""Writes the manifest of a prepared corpus, `corpus.json`; see `store`."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from axml_ray.corpus.report_page import write_report_page
from axml_ray.corpus.split_assignment import Summary
from axml_ray.corpus.store import FORMAT, MANIFEST, VERSION
from axml_ray.corpus.tasks import Workspace
from axml_ray.files import write_json
from axml_ray.limits import available_cpus


@dataclass(frozen=True)
class Inputs:
    """The inputs of a corpus.

    Attributes:
        key: fingerprint of the settings and of `files`; a corpus with the same key is up to date.
        files: split, path and the two numbers of `input_changes.input_state`, for each input.
    """

    key: str
    files: list[list[Any]]


@dataclass(frozen=True)
class Counts:
    """Numbers of the corpus.

    Attributes:
        documents: documents of each split.
        labels: what `merging.merge_labels` returned.
        words: size of the vocabulary.
        word_vector_coverage: share of the words with a read or learned vector.
        word_vector_dimension: dimension of the word vectors.
    """

    documents: dict[str, int]
    labels: dict[str, int]
    words: int
    word_vector_coverage: float
    word_vector_dimension: int


def write_manifest(workspace: Workspace, inputs: Inputs, counts: Counts, summary: Summary, seconds: float) -> None:
    """Write the report page and the manifest, which makes the corpus complete.

    Args:
        workspace: the directory of the corpus, with all other files.
        inputs: what the corpus was prepared from.
        counts: its numbers.
        summary: what became of each record.
        seconds: duration of the preparation.
    """
    directory, settings = workspace.directory, workspace.settings
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.parent != workspace.stage)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "inputs": inputs.key,
        "sources": inputs.files,
        "fingerprint": content_fingerprint(directory, files),
        "settings": settings.model_dump(mode="json"),
        "counts": {
            "documents": counts.documents,
            "labels": counts.labels["labels"],
            "trained_labels": counts.labels["trained"],
            "words": counts.words,
            "rejected": sum(summary.rejected.values()),
            "duplicates": summary.dropped_duplicates,
        },
        "summary": summary.to_manifest(counts.labels),
        "word_vector_coverage": counts.word_vector_coverage,
        "word_vector_dimension": counts.word_vector_dimension,
        "seconds": seconds,
    }
    # The page is not part of the fingerprint, because no result depends on it.
    page = write_report_page(directory, settings.name, manifest["counts"], manifest["summary"])
    manifest["files"] = {path.relative_to(directory).as_posix(): path.stat().st_size for path in sorted([*files, page])}
    write_json(directory / MANIFEST, manifest)


def content_fingerprint(directory: Path, files: Sequence[Path]) -> str:
    """Return a digest of the names and contents of files, which does not depend on the dates of the inputs."""

    def digest_of(path: Path) -> bytes:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    digest = hashlib.sha256()
    with ThreadPoolExecutor(available_cpus()) as threads:
        for path, content in zip(files, threads.map(digest_of, files), strict=True):
            digest.update(f"{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:12]
