"""Writes the manifest of a prepared corpus, `corpus.json`; see `store`."""

from dataclasses import asdict, dataclass
from typing import Any

from axml_ray.core.files import content_digest, write_json
from axml_ray.corpus.preparation.input_changes import Inputs
from axml_ray.corpus.preparation.split_assignment import Summary
from axml_ray.corpus.preparation.tasks import Workspace
from axml_ray.corpus.report_page import write_report_page
from axml_ray.corpus.store import FORMAT, MANIFEST, VERSION
from axml_ray.settings import stored


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
        "sources": [asdict(file) for file in inputs.files],
        # Without the rejected records, which name their files by path, and on which no result depends.
        "fingerprint": content_digest(directory, [path for path in files if path.name != "rejected.jsonl"]),
        "settings": stored(settings),
        "identity": settings.identity,
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
