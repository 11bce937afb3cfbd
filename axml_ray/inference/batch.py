"""Batch prediction with Ray Data: actors hold the model, and each block of documents becomes one file.

Files are written atomically, so a job that was killed and is started again predicts only the missing blocks.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from pydantic import Field

from axml_ray.cluster import max_processes, quiet_data, root_cause
from axml_ray.combine.combiner import Combiner
from axml_ray.corpus.input_changes import input_state
from axml_ray.corpus.records import storable
from axml_ray.corpus.source_files import is_unreachable
from axml_ray.corpus.sources import Document, Reader, Rejection
from axml_ray.corpus.store import Corpus
from axml_ray.corpus.tables import MissingColumn
from axml_ray.evaluation.predictions import ENSEMBLE, MADE_BY
from axml_ray.files import read_json, whole_directory, whole_file, write_json
from axml_ray.heartbeat import Heartbeat
from axml_ray.inference.bundle import MANIFEST, sha256
from axml_ray.inference.tagger import Tag, Tagger
from axml_ray.network.devices import predictor_device
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.run import Run
from axml_ray.settings import Experiment, Settings, SettingsError

log = logging.getLogger(__name__)

ROWS = 1_024
"""Number of documents of a block."""
READ_BYTES = 1 << 20
"""Approximate bytes that a reader task yields at a time; small, so that actors start while it still reads."""
JOB, RESULT = "job.json", "predictions.json"
JOB_VERSION = 2
"""Version of the files' content: since 2 `threshold` is a probability, and a text without a word has no labels."""
Format = Literal["parquet", "jsonl"]


# Prediction of a split of a run's corpus


class EnsemblePredictor:
    """A Ray Data actor with all members of a run.

    Args:
        settings: settings of the run.
        directory: where files are written.
        combiner: combiner of the members' scores; None takes the run's.
    """

    def __init__(self, settings: Experiment, directory: Path, combiner: Combiner | None):
        use_threads(settings.resources.threads_of_worker)
        device = predictor_device(settings.resources.gpus_per_predictor)
        run = Run(settings, Corpus.open(settings.corpus_directory))
        self.ensemble = run.open_ensemble(None if combiner is None else lambda: combiner, device)
        self.directory, self.made_by = directory, {MADE_BY: run.predictions_key}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Predict `ROWS` rows of a split's file from row `start` on, write them, and return their number."""
        table = pq.read_table(row["file"], columns=["id", "tokens", "labels"]).slice(row["start"], ROWS)
        member_rankings = self.ensemble.rank_members(Ragged.from_arrow(table["tokens"]))
        rankings = {ENSEMBLE: self.ensemble.combination.rank(member_rankings), **member_rankings}
        columns = {"id": table["id"], "labels": table["labels"]}
        for name, (labels, scores) in rankings.items():
            columns[f"{name}.labels"], columns[f"{name}.scores"] = (
                _lists(labels, pa.int32()),
                _lists(scores, pa.float32()),
            )
        with whole_file(self.directory / f"{row['number']:06d}.parquet") as temporary:
            pq.write_table(pa.table(columns, metadata=self.made_by), temporary)
        return {"rows": len(table)}


def predict_split(run: Run, split: str, directory: Path | None = None, combiner: Combiner | None = None) -> Path:
    """Predict a split of the corpus with the run's members. Ray must be initialised.

    Args:
        run: the run, with all of its members fitted.
        split: name of the split.
        directory: where to write; by default the run's predictions of that split.
        combiner: combiner of the members' scores; by default the run's.

    Returns:
        A directory of Parquet files with the columns id, labels (the true ones), and for the ensemble and each member
        `<name>.labels` and `<name>.scores`, fixed-size lists, best first.

    Raises:
        RuntimeError: an actor failed.
    """
    resources = run.settings.resources
    directory = directory or run.layout.predictions(split)
    slices = []
    for file in run.corpus.files(split):
        rows = pq.read_metadata(file).num_rows
        slices += [{"file": str(file), "start": start} for start in range(0, rows, ROWS)]
    numbered = [{"number": number, **one} for number, one in enumerate(slices)]
    with whole_directory(directory) as work:
        quiet_data()
        # Several blocks per actor, so that all actors are busy until the end.
        blocks = max(1, min(len(numbered), 4 * resources.predictors))
        items = ray.data.from_items(numbered, override_num_blocks=blocks)
        actors = resources.predictors, resources.of_a_predictor
        then = f"the {split} split is not predicted; run the same command again, which does not repeat the training"
        predictor = EnsemblePredictor, (run.settings, work, combiner)
        with Heartbeat("predict", run.corpus.documents(split), f"{split} documents") as heartbeat:
            for row in _map_with_actors(items, *predictor, *actors, then=then):
                heartbeat.add(int(row["rows"]))
        assert heartbeat.done == run.corpus.documents(split), (heartbeat.done, run.corpus.documents(split))
    return directory


def _map_with_actors(
    dataset: ray.data.Dataset,
    predictor: type,
    arguments: tuple[Any, ...],
    actors: int,
    reserved: dict[str, float],
    *,
    then: str,
) -> Iterator[dict[str, Any]]:
    """Yield what a pool of actors returns for the rows of a dataset.

    Args:
        dataset: the rows.
        predictor: class of the actors.
        arguments: arguments of its constructor.
        actors: number of actors.
        reserved: CPUs and GPUs of an actor, by Ray's names.
        then: advice that is appended to the message of an error.

    Raises:
        SettingsError: the cluster's nodes have no room for the actors' GPUs.
        RuntimeError: an actor failed.
    """
    gpus = reserved.get("GPU", 0)
    if gpus and (fit := max_processes(reserved)) < actors:  # Ray would wait indefinitely
        raise SettingsError(
            f"{actors} predictors × {gpus:g} GPUs are required, but the cluster's nodes have room for {fit}; lower the "
            "number of predictors or their GPUs, or set the GPUs to 0"
        )
    predicted = dataset.map(
        predictor,
        fn_constructor_args=arguments,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=reserved["CPU"],
        num_gpus=gpus or None,
    )
    try:
        yield from predicted.iter_rows()
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"{root_cause(error)}; {then}") from error


def _lists(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Convert [rows, k] to an array of fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), kind), values.shape[1])


# Prediction of files of texts


class PredictionOptions(Settings):
    """Options of the predictions that are written."""

    form: Format = "parquet"
    """Format of the files."""
    top_k: int = 5
    """Largest number of labels of a text."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Omit labels with a lower probability."""


class BundlePredictor:
    """A Ray Data actor with an open bundle.

    Args:
        bundle: directory of the bundle.
        output: directory of the files.
        options: options of the predictions.
        threads: number of PyTorch threads.
        device: name of the networks' device.
    """

    def __init__(self, bundle: Path, output: Path, options: PredictionOptions, threads: int, device: str = "cpu"):
        # The driver has verified the checksums.
        self.tagger = Tagger.load(bundle, threads=threads, verify=False, device=device)
        self.output, self.options = output, options

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Predict one block and write its file."""
        records = json.loads(row["records"])
        ids, texts, errors = (list(column) for column in zip(*records, strict=True))
        readable = [row for row, text in enumerate(texts) if text is not None]
        tags: list[list[Tag]] = [[] for _ in records]
        for row_number, result in zip(readable, self._tag_or_explain([texts[row] for row in readable]), strict=True):
            if isinstance(result, str):
                errors[row_number] = result
            else:
                tags[row_number] = result
        with whole_file(self.output / row["part"]) as temporary:
            _write(temporary, self.options.form, ids, tags, errors)
        return {"rows": len(records)}

    def _tag_or_explain(self, texts: list[str]) -> list[list[Tag] | str]:
        """Return the tags of each text, or an error message: a text that cannot be tagged must not fail the others."""
        try:
            return list(self._tag(texts))
        except Exception as error:
            problem = error
        results = [self._tag_one(text) for text in texts]
        if all(isinstance(result, str) for result in results):
            raise problem  # not a fault of single texts
        return results

    def _tag_one(self, text: str) -> list[Tag] | str:
        """Return the tags of a text, or an error message."""
        try:
            return self._tag([text])[0]
        except Exception as error:
            return f"cannot be tagged: {' '.join(str(error).split()) or type(error).__name__}"

    def _tag(self, texts: list[str]) -> list[list[Tag]]:
        return self.tagger.tag(texts, top_k=self.options.top_k, threshold=self.options.threshold)


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
        The content of `predictions.json`: documents, errors, files.

    Raises:
        SettingsError: `output` contains something else, or predictions of another job; a table lacks a column.
        RuntimeError: a reader or an actor failed.
    """
    _check_columns(readers)
    inputs = [[str(reader.path), *input_state(reader.path)] for reader in readers]
    # The fields that are read determine the result, so they are part of the job's identity.
    fields = sorted(
        {repr(getattr(reader, "fields", None)) + (getattr(reader, "delimiter", None) or "") for reader in readers}
    )
    job = {"version": JOB_VERSION, "bundle": sha256(bundle / MANIFEST), "rows": ROWS, **options.model_dump()}
    job |= {"inputs": inputs, "fields": fields}
    _claim(output, job)
    finished = _finished(output)
    if finished is not None:
        return finished
    quiet_data()
    ray.data.DataContext.get_current().target_max_block_size = READ_BYTES
    numbers = ray.data.from_items(
        [{"number": number} for number in range(len(readers))], override_num_blocks=len(readers)
    )
    blocks = numbers.map_batches(
        _read_blocks,
        batch_size=1,
        # Listed once: a reader task that Ray retries must yield the same blocks in the same order.
        fn_kwargs={
            "readers": list(readers),
            "finished": frozenset(path.name for path in output.glob("part-*")),
            "form": options.form,
        },
        num_cpus=0,  # the actors hold all CPUs
        # Each task is a process: enough of them to keep the actors busy, but not one for each of thousands of files.
        compute=ray.data.TaskPoolStrategy(size=min(len(readers), actors + 1)),
    )
    device = "cuda" if gpus_per_actor else "cpu"
    arguments = bundle, output, options, max(1, int(cpus_per_actor)), device
    reserved = {"CPU": cpus_per_actor, "GPU": gpus_per_actor}
    then = "run the same command again to continue from here"
    log.info("predict: starting %d actors, which open the bundle", actors)
    with Heartbeat("predict", unit="texts") as heartbeat:
        for row in _map_with_actors(blocks, BundlePredictor, arguments, actors, reserved, then=then):
            heartbeat.add(int(row["rows"]))
    result = _summarise(output, options.form)
    write_json(output / RESULT, result)
    return result


def _read_blocks(
    batch: dict[str, np.ndarray], readers: list[Reader], finished: frozenset[str], form: Format
) -> Iterator[dict[str, list[str]]]:
    """Yield the unfinished blocks of some readers, each as one row: the name of its file, and its records as JSON."""
    for number in batch["number"].tolist():
        records = _records(readers[number])
        block = 0
        while chunk := list(islice(records, ROWS)):
            part = f"part-{number:05d}-{block:06d}.{form}"
            if part not in finished:
                yield {"part": [part], "records": [json.dumps(chunk)]}
            block += 1


def _records(reader: Reader) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield id, text and error of each document of a reader; a damaged file ends with a row that has an error.

    Raises:
        OSError: the file is unreachable, which a restarted job may remedy, unlike damage.
    """
    try:
        yield from map(_record, reader.read())
    except (OSError, ValueError) as error:
        if is_unreachable(error, reader.path):
            raise
        yield (
            storable(PurePath(str(reader.path)).name),
            None,
            storable(f"the file cannot be read on from here: {error}"),
        )


def _record(read: Document | Rejection) -> tuple[str, str | None, str | None]:
    """Return id, text and error of what a reader yields; one of text and error is None."""
    if isinstance(read, Rejection):
        return f"{Path(read.file).name}:{read.line}", None, read.reason
    return read.id, read.text, None


def _write(path: Path, form: Format, ids: list[str], tags: list[list[Tag]], errors: list[str | None]) -> None:
    """Write the predictions of a block in the given format."""
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "id": (ids, pa.string()),
        "labels": ([[tag.label for tag in row] for row in tags], pa.list_(pa.string())),
        "names": ([[tag.name for tag in row] for row in tags], pa.list_(pa.string())),
        "scores": ([[tag.score for tag in row] for row in tags], pa.list_(pa.float32())),
        "probabilities": ([[tag.probability for tag in row] for row in tags], pa.list_(pa.float32())),
        "error": (errors, pa.string()),
    }
    if form == "parquet":
        pq.write_table(pa.table({name: pa.array(*column) for name, column in columns.items()}), path)
        return
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*(values for values, _ in columns.values()), strict=True):
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def _check_columns(readers: Sequence[Reader]) -> None:
    """Check that the first file of each format has the columns to read; errors in others become rows with an error.

    Raises:
        SettingsError: a table lacks a column.
    """
    for reader in {type(reader): reader for reader in reversed(readers)}.values():
        try:
            next(iter(reader.read()), None)
        except MissingColumn as error:
            raise SettingsError(
                f"--input: {reader.path}: {error}; name it with --text-field or --title-field"
            ) from None
        except (OSError, ValueError):
            continue


def _claim(output: Path, job: dict[str, Any]) -> None:
    """Write a job's identity into its output directory, or check that the directory belongs to the same job.

    Raises:
        SettingsError: the directory contains something else, or predictions of another job.
    """
    path = output / JOB
    job = json.loads(json.dumps(job))  # tuples become lists, as in the stored job
    if not path.exists():
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise SettingsError(f"--output: {output} exists and holds no predictions; choose a new directory")
        output.mkdir(parents=True, exist_ok=True)
        write_json(path, job)
        return
    try:
        stored = read_json(path)
    except ValueError as error:
        raise SettingsError(f"{error}; remove {output} and start again") from None
    changed = [key for key in job if not isinstance(stored, dict) or stored.get(key) != job[key]]
    if changed:
        raise SettingsError(f"--output: {output} holds predictions made with another {', another '.join(changed)}; "
                            "choose a new directory")  # fmt: skip
    for temporary in output.glob(".part-*"):  # left by a job that was killed
        temporary.unlink(missing_ok=True)


def _finished(output: Path) -> dict[str, Any] | None:
    """Return the result of an earlier run of the same job, if all of its files exist."""
    path = output / RESULT
    if not path.exists():
        return None
    result: dict[str, Any] = read_json(path)
    if all((output / name).exists() for name in result["files"]):
        return result
    path.unlink()
    return None


def _summarise(output: Path, form: Format) -> dict[str, Any]:
    """Count the documents and errors in all files."""
    files = sorted(path.name for path in output.glob(f"part-*.{form}"))
    documents = errors = 0
    for name in files:
        if form == "parquet":
            column = pq.read_table(output / name, columns=["error"])["error"]
            documents, errors = documents + len(column), errors + len(column) - column.null_count
        else:
            with (output / name).open(encoding="utf-8") as file:
                failed = [json.loads(line)["error"] is not None for line in file]
            documents, errors = documents + len(failed), errors + sum(failed)
    return {"format": "axml-ray predictions", "documents": documents, "errors": errors, "files": files}
