"""Prediction of files of texts with a bundle: reader tasks yield blocks, and a pool of Ray Data actors tags them."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray.data
import torch

from axml_ray.cluster.connection import quiet_data
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import whole_file, write_json
from axml_ray.corpus.preparation.input_changes import content_of
from axml_ray.corpus.readers.source_files import is_unreachable
from axml_ray.corpus.readers.sources import Reader, Rejection
from axml_ray.corpus.readers.tables import MissingColumn
from axml_ray.corpus.records.records import Fields, file_name, storable
from axml_ray.corpus.text.tokenizer import beginning
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import MANIFEST, sha256
from axml_ray.inference.predict.actor_pool import ROWS, map_with_actors
from axml_ray.inference.predict.prediction_files import (
    JOB_VERSION,
    RESULT,
    Format,
    PredictionOptions,
    claim_directory,
    finished_result,
    summarise,
    write_block,
)
from axml_ray.inference.tagger import Tag, Tagger
from axml_ray.network.backends.devices import reserved_device
from axml_ray.network.backends.precision import chosen_format
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.settings import Precision

log = logging.getLogger(__name__)

BLOCK_CHARACTERS = 8 << 20
"""Approximate limit of the characters of a block, which are a string of Arrow and copies in several processes."""
READ_BYTES = 1 << 20
"""Approximate bytes that a reader task yields at a time; small, so that actors start while it still reads."""


Record = tuple[str, str | None, str | None]
"""Id, text and error of a record; one of text and error is None."""


class BundlePredictor:
    """A Ray Data actor with an open bundle, in the number format of matrix products that all actors use."""

    def __init__(
        self,
        bundle: Path,
        output: Path,
        options: PredictionOptions,
        threads: int,
        gpus: float = 0.0,
        precision: Precision | None = None,
    ):
        # The driver has verified the checksums.
        device = str(reserved_device(gpus))
        self.tagger = Tagger.load(bundle, precision=precision, threads=threads, verify=False, device=device)
        self.output, self.options = output, options

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Predict one block and write its file. A text that cannot be tagged becomes an error and fails no others."""
        records = json.loads(row["records"])
        ids, texts, errors = (list(column) for column in zip(*records, strict=True))
        readable = [number for number, text in enumerate(texts) if text is not None]
        tags: list[list[Tag]] = [[] for _ in records]
        try:
            for number, result in zip(readable, self._tag([texts[number] for number in readable]), strict=True):
                tags[number] = result
        except Exception:
            failed = 0
            for number in readable:
                try:
                    [tags[number]] = self._tag([texts[number]])
                except Exception as error:
                    errors[number] = f"cannot be tagged: {' '.join(str(error).split()) or type(error).__name__}"
                    failed += 1
            if failed == len(readable):
                raise  # not a fault of single texts
        with whole_file(self.output / row["part"]) as temporary:
            write_block(temporary, self.options.form, ids, tags, errors)
        return {"rows": len(records)}

    def _tag(self, texts: list[str]) -> list[list[Tag]]:
        options = self.options
        return self.tagger.tag(texts, top_k=options.top_k, threshold=options.threshold, conditions=options.conditions)


@phase("predict")
def predict_files(
    bundle: Path,
    readers: Sequence[Reader],
    output: Path,
    options: PredictionOptions,
    *,
    actors: int = 1,
    cpus_per_actor: float = 1.0,
    gpus_per_actor: float = 0.0,
) -> dict[str, Any]:
    """Predict the documents that some readers yield. Ray must be initialised, and every node must see the same files.

    Args:
        bundle: directory of a bundle whose checksums were verified.
        readers: the readers of the texts.
        output: directory in which `part-<reader>-<block>.parquet` or `.jsonl` are written and, when all are complete,
            `predictions.json`. Columns or keys: id; labels, names, scores and probabilities, lists, best first; and
            error, null unless the text could not be read or tagged.
        options: options of the predictions.
        actors: number of actors, each of which opens the bundle.
        cpus_per_actor: CPUs reserved for an actor, and its number of threads.
        gpus_per_actor: GPUs reserved for an actor; 0 predicts on the CPU.

    Returns:
        The content of `predictions.json`: documents, errors, first_error, files.

    Raises:
        SettingsError: `output` contains something else, or predictions of another job; a table lacks a column.
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
    settings = Bundle.open(bundle, verify=False).settings
    precision = settings.precision
    if precision == "auto" and not gpus_per_actor:
        precision = chosen_format(torch.device("cpu"), precision)
    precision = claim_directory(output, _identity(bundle, readers, options), precision)
    finished = finished_result(output)
    if finished is not None:
        return finished
    arguments = bundle, output, options, max(1, int(cpus_per_actor)), gpus_per_actor, precision
    reserved = {"CPU": cpus_per_actor, "GPU": gpus_per_actor}
    then = "run the same command again to continue from here"
    log.info("predict: starting %d actors, which open the bundle", actors)
    quiet_data()
    ray.data.DataContext.get_current().target_max_block_size = READ_BYTES
    numbers = [{"number": number} for number in range(len(readers))]
    blocks = ray.data.from_items(numbers, override_num_blocks=len(readers)).map_batches(
        _read_blocks,
        batch_size=1,
        # Listed once: a reader task that Ray retries must yield the same blocks in the same order.
        fn_kwargs={
            "readers": list(readers),
            "finished": frozenset(path.name for path in output.glob("part-*")),
            "form": options.form,
            "max_tokens": settings.max_tokens,
        },
        num_cpus=0,  # the actors hold all CPUs
        # Each task is a process: enough of them to keep the actors busy, but not one for each of thousands of files.
        compute=ray.data.TaskPoolStrategy(size=min(len(readers), actors + 1)),
    )
    with Heartbeat("predict", unit="texts") as heartbeat:
        for row in map_with_actors(blocks, BundlePredictor, arguments, actors, reserved, then=then):
            heartbeat.add(int(row["rows"]))
    result = summarise(output, options.form)
    write_json(output / RESULT, result)
    return result


def _identity(bundle: Path, readers: Sequence[Reader], options: PredictionOptions) -> dict[str, Any]:
    """Return what determines a job's result; a directory with files of another identity is refused."""
    inputs = [[file_name(reader.path), content_of(reader.path)] for reader in readers]
    fields = sorted(
        {
            f"{type(reader).__name__} {getattr(reader, 'fields', None)} {getattr(reader, 'delimiter', None) or ''}"
            for reader in readers
        }
    )
    versions = {"version": JOB_VERSION, "bundle": sha256(bundle / MANIFEST), "rows": ROWS}
    return {**versions, **options.model_dump(), "inputs": inputs, "fields": fields}


def _read_blocks(
    batch: dict[str, np.ndarray], readers: list[Reader], finished: frozenset[str], form: Format, max_tokens: int
) -> Iterator[dict[str, list[str]]]:
    """Yield the unfinished blocks of some readers, each as one row: the name of its file, and its records as JSON."""
    for number in batch["number"].tolist():
        for block, records in enumerate(_cut_blocks(_records(readers[number]), max_tokens)):
            part = f"part-{number:05d}-{block:06d}.{form}"
            if part not in finished:
                yield {"part": [part], "records": [json.dumps(records)]}


def _cut_blocks(records: Iterator[Record], max_tokens: int) -> Iterator[list[Record]]:
    """Yield the records in blocks of limited size, with each text cut after the words that the bundle reads."""
    block: list[Record] = []
    size = 0
    for name, text, error in records:
        block.append((name, text and beginning(text, max_tokens), error))
        size += len(block[-1][1] or "")
        if len(block) == ROWS or size >= BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _records(reader: Reader) -> Iterator[Record]:
    """Yield id, text and error of each document of a reader; a damaged file ends with a row that has an error.

    Raises:
        OSError: the file is unreachable, which a restarted job may remedy, unlike damage.
    """
    name = getattr(reader, "fields", Fields()).file_name(reader.path)
    try:
        for document in reader.read():
            if isinstance(document, Rejection):
                yield f"{name}:{document.line}", None, document.reason
            else:
                yield document.id, document.text, None
    except (OSError, ValueError) as error:
        if is_unreachable(error, reader.path):
            raise
        yield name, None, storable(f"the file cannot be read on from here: {error}")
