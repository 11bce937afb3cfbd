"""Many documents through an ensemble with Ray Data: model actors, one file a block.

A block's file appears whole or not at all, so a job that was killed goes on with the blocks that have none.
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

from axml_ray.cluster import quiet_data, root_cause
from axml_ray.combine.combiner import Combiner
from axml_ray.corpus.places import out_of_reach
from axml_ray.corpus.records import storable
from axml_ray.corpus.sources import Document, Rejection, Shard
from axml_ray.corpus.store import Corpus
from axml_ray.corpus.tables import MissingColumn
from axml_ray.corpus.upkeep import state_of_input
from axml_ray.evaluation.predictions import ENSEMBLE, MADE_BY
from axml_ray.files import read_json, whole_directory, whole_file, write_json
from axml_ray.heartbeat import Heartbeat
from axml_ray.inference.bundle import MANIFEST, sha256
from axml_ray.inference.tagger import Tag, Tagger
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.run import Run
from axml_ray.settings import Experiment, Settings, SettingsError

log = logging.getLogger(__name__)

ROWS = 1_024
"""Documents of a block."""
READ_BYTES = 1 << 20
"""About how much a reader hands on at a time, so that actors have something to do while it reads on."""
JOB, RESULT = "job.json", "predictions.json"
JOB_VERSION = 2
"""Of what the files hold: since 2 `threshold` is a probability, and a text without a word has no labels."""
Format = Literal["parquet", "jsonl"]


# A split of a run's corpus


class EnsemblePredictor:
    """An actor that holds every member of a run."""

    def __init__(self, settings: Experiment, directory: Path, combiner: Combiner | None):
        use_threads(settings.resources.threads_of_worker)
        run = Run(settings, Corpus.open(settings.corpus_directory))
        self.ensemble = run.open_ensemble(None if combiner is None else lambda: combiner)
        self.directory, self.made_by = directory, {MADE_BY: run.predictions_key}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Predict one slice of a split's file and write it; returns how many rows it has."""
        table = pq.read_table(row["file"], columns=["id", "tokens", "labels"]).slice(row["start"], ROWS)
        of_members = self.ensemble.rank_members(Ragged.from_arrow(table["tokens"]))
        rankings = {ENSEMBLE: self.ensemble.combination.rank(of_members), **of_members}
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
        run: with all of its members fitted.
        split: of the corpus.
        directory: where to; by default the run's predictions of that split.
        combiner: of the members' scores; by default the run's.

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
        # Small blocks, so that every actor has something to do.
        blocks = max(1, min(len(numbered), 4 * resources.predictors))
        items = ray.data.from_items(numbered, override_num_blocks=blocks)
        actors = resources.predictors, resources.cpus_per_worker
        then = f"the {split} split is not predicted; the same command predicts it, and trains nothing again"
        predictor = EnsemblePredictor, (run.settings, work, combiner)
        with Heartbeat("predict", run.corpus.documents(split), f"{split} documents") as heartbeat:
            for row in _through(items, *predictor, *actors, then=then):
                heartbeat.add(int(row["rows"]))
        assert heartbeat.done == run.corpus.documents(split), (heartbeat.done, run.corpus.documents(split))
    return directory


def _through(
    dataset: ray.data.Dataset, predictor: type, given: tuple[Any, ...], actors: int, cpus: float, *, then: str
) -> Iterator[dict[str, Any]]:
    """What `actors` predictors, made with `given`, return for the rows of a dataset.

    Raises:
        RuntimeError: one failed; the message says why, and `then`.
    """
    predicted = dataset.map(
        predictor, fn_constructor_args=given, compute=ray.data.ActorPoolStrategy(size=actors), num_cpus=cpus
    )
    try:
        yield from predicted.iter_rows()
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"{root_cause(error)}; {then}") from error


def _lists(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), kind), values.shape[1])


# Files that the readers know


class Wanted(Settings):
    """What is written for each text."""

    form: Format = "parquet"
    """Of the files."""
    top_k: int = 5
    """Labels of a text, at most."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Labels with a lower probability are left out."""


class BundlePredictor:
    """An actor that holds a bundle."""

    def __init__(self, bundle: Path, output: Path, wanted: Wanted, threads: int):
        # The job has compared the checksums.
        self.tagger = Tagger.load(bundle, threads=threads, verify=False)
        self.output, self.wanted = output, wanted

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Predict one block and write its file."""
        records = json.loads(row["records"])
        ids, texts, errors = (list(column) for column in zip(*records, strict=True))
        good = [place for place, text in enumerate(texts) if text is not None]
        tags: list[list[Tag]] = [[] for _ in records]
        for place, found in zip(good, self._tagged([texts[place] for place in good]), strict=True):
            if isinstance(found, str):
                errors[place] = found
            else:
                tags[place] = found
        with whole_file(self.output / row["part"]) as temporary:
            _write(temporary, self.wanted.form, ids, tags, errors)
        return {"rows": len(records)}

    def _tagged(self, texts: list[str]) -> list[list[Tag] | str]:
        """Tags of each text, or why it has none: what one text breaks costs that text alone."""
        try:
            return list(self._tag(texts))
        except Exception as error:
            problem = error
        found = [self._alone(text) for text in texts]
        if all(isinstance(one, str) for one in found):
            raise problem  # it isn't the texts
        return found

    def _alone(self, text: str) -> list[Tag] | str:
        try:
            return self._tag([text])[0]
        except Exception as error:
            return f"cannot be tagged: {' '.join(str(error).split()) or type(error).__name__}"

    def _tag(self, texts: list[str]) -> list[list[Tag]]:
        return self.tagger.tag(texts, top_k=self.wanted.top_k, threshold=self.wanted.threshold)


def predict_files(
    bundle: Path,
    shards: Sequence[Shard],
    output: Path,
    wanted: Wanted,
    *,
    actors: int = 1,
    cpus_per_actor: float = 1.0,
) -> dict[str, Any]:
    """Predict the documents of some shards. Ray must be initialised, and every node must see the same files.

    Args:
        bundle: checked.
        shards: to read.
        output: a directory, in which `part-<shard>-<block>.parquet` or `.jsonl` appear and, when all do,
            `predictions.json`. Columns or keys: id; labels, names, scores and probabilities, lists, best first; and
            error, null unless the text could not be read or tagged.
        wanted: what is written.
        actors: that hold the bundle.
        cpus_per_actor: reserved for each; also its threads.

    Returns:
        What `predictions.json` says: documents, errors, files.

    Raises:
        SettingsError: `output` holds something else, or what another job wrote; a table lacks a column.
        RuntimeError: a reader or an actor failed.
    """
    _check_columns(shards)
    inputs = [[str(shard.path), *state_of_input(shard.path)] for shard in shards]
    # Which fields of a record are read.
    fields = sorted(
        {repr(getattr(shard, "fields", None)) + (getattr(shard, "delimiter", None) or "") for shard in shards}
    )
    job = {"version": JOB_VERSION, "bundle": sha256(bundle / MANIFEST), "rows": ROWS, **wanted.model_dump()}
    job |= {"inputs": inputs, "fields": fields}
    _claim(output, job)
    finished = _finished(output)
    if finished is not None:
        return finished
    quiet_data()
    ray.data.DataContext.get_current().target_max_block_size = READ_BYTES
    numbers = ray.data.from_items(
        [{"number": number} for number in range(len(shards))], override_num_blocks=len(shards)
    )
    blocks = numbers.map_batches(
        _read_blocks,
        batch_size=1,
        # What is there now: a reader that Ray starts again must give the same blocks in the same order.
        fn_kwargs={
            "shards": list(shards),
            "finished": frozenset(path.name for path in output.glob("part-*")),
            "form": wanted.form,
        },
        num_cpus=0,  # while actors hold all CPUs
        # Each is a process: of thousands of files not all at once, and yet no actor waits for one.
        compute=ray.data.TaskPoolStrategy(size=min(len(shards), actors + 1)),
    )
    given = bundle, output, wanted, max(1, int(cpus_per_actor))
    then = "the same job, started again, goes on from here"
    log.info("predict: starting %d actors, which open the bundle", actors)
    with Heartbeat("predict", unit="texts") as heartbeat:
        for row in _through(blocks, BundlePredictor, given, actors, cpus_per_actor, then=then):
            heartbeat.add(int(row["rows"]))
    result = _counted(output, wanted.form)
    write_json(output / RESULT, result)
    return result


def _read_blocks(
    batch: dict[str, np.ndarray], shards: list[Shard], finished: frozenset[str], form: Format
) -> Iterator[dict[str, list[str]]]:
    """The blocks of some shards that aren't finished, each as one row: the file's name, and its records as JSON."""
    for number in batch["number"].tolist():
        records = _records(shards[number])
        block = 0
        while some := list(islice(records, ROWS)):
            part = f"part-{number:05d}-{block:06d}.{form}"
            if part not in finished:
                yield {"part": [part], "records": [json.dumps(some)]}
            block += 1


def _records(shard: Shard) -> Iterator[tuple[str, str | None, str | None]]:
    """Of each text of a shard; a file that is broken from somewhere on ends in a row that says so.

    Raises:
        OSError: the file can't be reached: the same job, started again, goes on.
    """
    try:
        yield from map(_record, shard.read())
    except (OSError, ValueError) as error:
        if out_of_reach(error, shard.path):
            raise
        yield storable(PurePath(str(shard.path)).name), None, storable(f"the file cannot be read on from here: {error}")


def _record(read: Document | Rejection) -> tuple[str, str | None, str | None]:
    """Id, text, error."""
    if isinstance(read, Rejection):
        return f"{Path(read.file).name}:{read.line}", None, read.reason
    return read.id, read.text, None


def _write(path: Path, form: Format, ids: list[str], tags: list[list[Tag]], errors: list[str | None]) -> None:
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


def _check_columns(shards: Sequence[Shard]) -> None:
    """Before anything is claimed: of the first table of each kind. Others that are wrong end in a row that says so."""
    for shard in {type(shard): shard for shard in reversed(shards)}.values():
        try:
            next(iter(shard.read()), None)
        except MissingColumn as error:
            raise SettingsError(f"--input: {shard.path}: {error}; name it with --text-field or --title-field") from None
        except (OSError, ValueError):
            continue


def _claim(output: Path, job: dict[str, Any]) -> None:
    """Make a directory this job's, or find that it is."""
    path = output / JOB
    job = json.loads(json.dumps(job))
    if not path.exists():
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise SettingsError(f"--output: {output} exists and holds no predictions; choose a new directory")
        output.mkdir(parents=True, exist_ok=True)
        write_json(path, job)
        return
    try:
        before = read_json(path)
    except ValueError as error:
        raise SettingsError(f"{error}; remove {output} and start again") from None
    changed = [key for key in job if not isinstance(before, dict) or before.get(key) != job[key]]
    if changed:
        raise SettingsError(f"--output: {output} holds predictions made with another {', another '.join(changed)}; "
                            "choose a new directory")  # fmt: skip
    for left in output.glob(".part-*"):  # a killed job's
        left.unlink(missing_ok=True)


def _finished(output: Path) -> dict[str, Any] | None:
    """What an earlier start wrote of itself, if all of its files are there."""
    path = output / RESULT
    if not path.exists():
        return None
    result: dict[str, Any] = read_json(path)
    if all((output / name).exists() for name in result["files"]):
        return result
    path.unlink()
    return None


def _counted(output: Path, form: Format) -> dict[str, Any]:
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
