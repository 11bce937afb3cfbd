"""Prediction of files of texts with a bundle."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import torch
from pydantic import Field

from axml_ray.cluster.shared_state import check_nodes_see
from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import file_bytes, read_json, write_json
from axml_ray.core.lease import own
from axml_ray.corpus.preparation.input_changes import content_of
from axml_ray.corpus.readers.columns import MissingColumn
from axml_ray.corpus.readers.source_files import is_unreachable
from axml_ray.corpus.readers.sources import Reader, Rejection
from axml_ray.corpus.records.records import Fields, storable
from axml_ray.corpus.text.tokenizer import beginning
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import MANIFEST
from axml_ray.inference.predict.prediction_files import TEXT, Format, read_errors, write_predictions
from axml_ray.inference.predict.shards import ROWS, claim_directory, predict_shards
from axml_ray.inference.tagger import Tag, Tagger
from axml_ray.network.backends.devices import reserved_device
from axml_ray.network.backends.precision import chosen_format
from axml_ray.planning.phases import predictor_bytes
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.settings import LabelConditions, Precision, Settings

log = logging.getLogger(__name__)

SHARD_CHARACTERS = 8 << 20
"""Approximate limit of the characters of a shard, which are copied to several processes."""
RESULT = "predictions.json"
JOB_VERSION = 4
"""Version of the files' content: since 2 `threshold` is a probability, and a text without a word has no labels; since 3
files of one name in several directories have distinct ids, and shards are limited in bytes."""
DOCUMENTS = pa.schema({"id": TEXT, "text": pa.large_string(), "error": TEXT})
"""Columns of a shard of texts; one of text and error is null."""


class PredictionOptions(Settings):
    """Options of the predictions that are written."""

    form: Format = "parquet"
    """Format of the files."""
    top_k: int = 5
    """Largest number of labels of a text."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Omit labels with a lower probability."""
    conditions: LabelConditions | None = None
    """Which labels are allowed or excluded."""


@dataclass(frozen=True)
class TextFile:
    """A file of texts, as the documents that a task reads.

    Attributes:
        reader: reader of the file.
        max_tokens: number of words after which texts are cut, as early as possible.
    """

    reader: Reader
    max_tokens: int

    def shards(self) -> Iterator[pa.Table]:
        """Yield the records of limited size at a time, with the columns `DOCUMENTS`."""
        rows: list[dict[str, str | None]] = []
        size = 0
        for row in self._rows():
            text = row["text"] and beginning(row["text"], self.max_tokens)
            rows.append({**row, "text": text})
            size += len(text or "")
            if len(rows) == ROWS or size >= SHARD_CHARACTERS:
                yield pa.Table.from_pylist(rows, DOCUMENTS)
                rows, size = [], 0
        if rows:
            yield pa.Table.from_pylist(rows, DOCUMENTS)

    def _rows(self) -> Iterator[dict[str, str | None]]:
        """Yield a row for each record; a damaged file ends with a row that has an error.

        Raises:
            OSError: the file is unreachable, which a restarted job may remedy, unlike damage.
        """
        name = name_of(self.reader)
        try:
            for record in self.reader.read():
                if isinstance(record, Rejection):
                    yield {"id": record.id or f"{name}:{record.line}", "text": None, "error": record.reason}
                else:
                    yield {"id": record.id, "text": record.text, "error": None}
        except (OSError, ValueError) as error:
            if is_unreachable(error, self.reader.path):
                raise
            reason = storable(f"the file cannot be read on from here: {error}")
            yield {"id": name, "text": None, "error": reason}


def check_readable(readers: Sequence[Reader]) -> None:
    """Raise SettingsError if no file has a record or can be read at all: nothing is to be started for them."""
    problems = []
    for reader in readers:
        try:
            if next(iter(reader.read()), None) is not None:
                return
            problems.append(f"{reader.path}: holds no texts")
        except (OSError, ValueError) as error:
            problems.append(str(error) if str(reader.path) in str(error) else f"{reader.path}: {error}")
    raise SettingsError(f"--input: {problems[0]}")


def name_of(reader: Reader) -> str:
    """Return the name of a reader's file in the ids of records without one."""
    return getattr(reader, "fields", Fields()).file_name(reader.path)


class BundlePredictor:
    """An open bundle that tags the texts of a shard, in the number format of matrix products that all actors use."""

    def __init__(
        self,
        bundle: Path,
        options: PredictionOptions,
        threads: int,
        gpus: float = 0.0,
        precision: Precision | None = None,
        checksum: str | None = None,
    ):
        # The driver has verified the checksums, which the manifest holds; `checksum` is that of the manifest.
        device = str(reserved_device(gpus))
        self.tagger = Tagger.load(bundle, precision=precision, threads=threads, verify=False, device=device)
        if checksum is not None and storage.sha256(bundle / MANIFEST) != checksum:
            raise SettingsError(f"--bundle: {bundle} was replaced while it is read; predict again")
        self.options = options

    def __call__(self, documents: pa.Table, path: Path) -> None:
        """Write the tags of each text. A text that cannot be tagged becomes an error and fails no others."""
        ids, texts, errors = (documents[name].to_pylist() for name in DOCUMENTS.names)
        readable = [row for row, text in enumerate(texts) if text is not None]
        tags: list[list[Tag]] = [[] for _ in ids]
        tagged = self._tag([texts[row] for row in readable])
        failures = [result for result in tagged if isinstance(result, Exception)]
        if failures and len(failures) == len(tagged):
            raise failures[0]  # not a fault of single texts
        for row, result in zip(readable, tagged, strict=True):
            if isinstance(result, Exception):
                errors[row] = f"cannot be tagged: {' '.join(str(result).split()) or type(result).__name__}"
            else:
                tags[row] = result
        rows = [
            {
                "id": document,
                "labels": [tag.label for tag in of_text],
                "names": [tag.name for tag in of_text],
                "scores": [tag.score for tag in of_text],
                "probabilities": [tag.probability for tag in of_text],
                "error": error,
            }
            for document, of_text, error in zip(ids, tags, errors, strict=True)
        ]
        write_predictions(rows, path, self.options.form)

    def _tag(self, texts: list[str]) -> list[list[Tag] | Exception]:
        """Return the tags of each text, or why it cannot be tagged; the halves of a batch that fails are tried apart.

        Raises:
            torch.AcceleratorError: a GPU failed, which is no fault of a text.
            torch.OutOfMemoryError: a GPU's memory does not suffice for one text.
        """
        options = self.options
        try:
            return list(
                self.tagger.tag(texts, top_k=options.top_k, threshold=options.threshold, conditions=options.conditions)
            )
        except torch.AcceleratorError:
            raise
        except Exception as error:
            failure = error.with_traceback(None)  # its frames would keep the tensors of the whole batch in memory
        if len(texts) > 1:
            half = len(texts) // 2
            return [*self._tag(texts[:half]), *self._tag(texts[half:])]
        if isinstance(failure, torch.OutOfMemoryError):
            raise failure
        return [failure]


@phase("predict")
def predict_files(
    bundle: Path,
    readers: Sequence[Reader],
    output: Path,
    options: PredictionOptions,
    *,
    actors: int | None = None,
    cpus_per_actor: float = 1.0,
    gpus_per_actor: float = 0.0,
) -> dict[str, Any]:
    """Predict the documents that some readers yield; every node must see the same files.

    Args:
        bundle: directory of a bundle whose checksums were verified.
        readers: the readers of the texts.
        output: directory in which `part-<reader>-<shard>.parquet`, `.jsonl` or `.csv` are written (`prediction_files`);
            and, when all are complete, `predictions.json`.
        options: options of the predictions.
        actors: largest number of actors, each of which opens the bundle; by default Ray starts all that fit.
        cpus_per_actor: CPUs that are reserved for an actor, and its number of threads.
        gpus_per_actor: GPUs that are reserved for an actor; without any it predicts on the CPU.

    Returns:
        The content of `predictions.json`: documents, errors, first_error, files.

    Raises:
        SettingsError: `output` contains something else, or predictions of another job, or another job writes there; a
            table lacks a column; or the actors do not fit.
        RuntimeError: a reader or an actor failed.
    """
    # The first file of each format must have the columns to read; errors in others become rows with an error.
    for reader in {type(reader): reader for reader in reversed(readers)}.values():
        try:
            next(iter(reader.read()), None)
        except MissingColumn as error:
            raise SettingsError(
                f"--input: {reader.path}: {error}; use --text-field or --title-field, or name the format with --source"
            ) from None
        except (OSError, ValueError):
            continue
    check_readable(readers)
    check_nodes_see(output, files=(bundle / MANIFEST,))
    settings = Bundle.open(bundle, verify=False).settings
    precision = settings.precision
    if precision == "auto" and not gpus_per_actor:
        precision = chosen_format(torch.device("cpu"), precision)
    fields = {
        f"{type(reader).__name__} {getattr(reader, 'fields', None)} {getattr(reader, 'delimiter', None) or ''}"
        for reader in readers
    }
    job = {
        "version": JOB_VERSION,
        "bundle": storage.sha256(bundle / MANIFEST),
        "rows": ROWS,
        **options.model_dump(),
        "inputs": [[name_of(reader), content_of(reader.path)] for reader in readers],
        "fields": sorted(fields),
    }
    precision = claim_directory(output, job, computed_in=precision)["computed_in"]
    if (output / RESULT).exists():
        result: dict[str, Any] = read_json(output / RESULT)
        if all((output / name).exists() for name in result["files"]):
            return result
        storage.remove(output / RESULT)
    sources = [TextFile(reader, settings.max_tokens) for reader in readers]
    threads = max(1, int(cpus_per_actor))
    open_predictor = partial(BundlePredictor, bundle, options, threads, gpus_per_actor, precision, job["bundle"])
    reserved = {"CPU": cpus_per_actor, "GPU": gpus_per_actor, "memory": predictor_bytes(file_bytes(bundle))}
    with own(output):
        log.info("predict: starting actors, which open the bundle")
        with Heartbeat("predict", unit="texts") as heartbeat:
            for count in predict_shards(sources, open_predictor, output, options.form, reserved, actors):
                heartbeat.add(count)
        storage.fetch(output)  # the shards of other nodes
        files = sorted(path.name for path in output.glob("part-*"))
        documents, failed = 0, []
        for name in files:
            texts = list(read_errors(output / name, options.form))
            documents += len(texts)
            failed += [f"{document}: {problem}" for document, problem in texts if problem is not None]
        result = {"format": "axml-ray predictions", "documents": documents, "errors": len(failed)}
        result |= {"first_error": failed[0] if failed else None, "files": files}
        write_json(output / RESULT, result)
    return result
