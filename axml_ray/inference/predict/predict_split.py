"""Prediction of a split of a run's prepared corpus with all of the run's members.

Finished shards stay under the cache key of the ensemble: a split that is predicted again repeats none of them, and
predictions that are complete are not made again.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from axml_ray.core import storage
from axml_ray.core.files import file_bytes, remove_directory
from axml_ray.core.ragged import Ragged
from axml_ray.ensemble.combiner import Combiner
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.inference.predict.shards import ROWS, OtherJobError, claim_directory, predict_shards
from axml_ray.network.backends.devices import reserved_device
from axml_ray.network.backends.precision import use_threads
from axml_ray.planning.phases import predictor_bytes
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment, fingerprint
from axml_ray.training.distributed import DistributedContext

MOST_BYTES_HERE = 1 << 30
"""Bytes of the members' files up to which the job's own process, for which no memory is reserved, opens them."""


@dataclass(frozen=True)
class SplitFile:
    """A Parquet file of a split, as the documents that a task reads."""

    path: Path

    def shards(self) -> Iterator[pa.Table]:
        """Yield ids, word ids, true labels and texts of one word of `ROWS` documents at a time."""
        storage.fetch(self.path.parents[1], [f"{self.path.parent.name}/{self.path.name}"])
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(ROWS, columns=["id", "tokens", "labels", "text"]):
                documents = pa.Table.from_batches([batch])
                is_short = pc.equal(pc.list_value_length(documents["tokens"]), 1)
                texts = pc.if_else(is_short, documents["text"], pa.scalar(None, documents["text"].type))
                yield documents.drop_columns("text").append_column("text", texts)


class EnsemblePredictor:
    """All members of a run, open for prediction. Without a `combiner` of their scores, the run's is taken."""

    def __init__(self, settings: Experiment, combiner: Combiner | None):
        use_threads(settings.resources.threads_of_worker)
        device = reserved_device(settings.resources.gpus_per_predictor)
        run = Run.open(settings)
        self.corpus = run.corpus
        self.ensemble = run.open_ensemble(None if combiner is None else lambda: combiner, device)

    def __call__(self, documents: pa.Table, path: Path) -> None:
        """Write the rankings of the ensemble and of each member; a text without a word has no labels, as in use."""
        has_words = self.corpus.have_words(documents)
        of_members = self.ensemble.rank_members(Ragged.from_arrow(documents["tokens"]))
        member_rankings = {name: ranking.of_documents(has_words) for name, ranking in of_members.items()}
        rankings = {ENSEMBLE: self.ensemble.combination.rank(member_rankings), **member_rankings}
        columns = {"id": documents["id"], "labels": documents["labels"]}
        for name, ranking in rankings.items():
            for column, values in ranking._asdict().items():
                flat = pa.array(values.ravel())
                columns[f"{name}.{column}"] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        pq.write_table(pa.table(columns), path)


def predict_split(run: Run, split: str, directory: Path | None = None, combiner: Combiner | None = None) -> Predictions:
    """Return the predictions of a split by the run's members, after predicting the shards that are missing.

    This process predicts a split of one shard by small members, as actors take longer to start; unless GPUs are
    reserved, which this machine may not have. Otherwise, Ray is started or joined.

    Args:
        run: the run, with all of its members fitted.
        split: name of the split.
        directory: where to write; by default the run's predictions of that split.
        combiner: combiner of the members' scores; by default the run's.

    Raises:
        SettingsError: a member or the combiner is not fitted, or no node of the cluster has room for an actor.
        RuntimeError: an actor failed.
    """
    directory = directory or run.layout.predictions(split)
    key = run.predictions_key if combiner is None else fingerprint(run.members_key, type(combiner).__name__)
    stored = Predictions.open(directory)
    if stored is not None and stored.made_by == key:
        return stored
    run.check_fitted()  # here it is one line, in an actor a traceback of Ray
    if combiner is None:
        run.open_combiner()
    resources = run.settings.resources
    if not resources.gpus_per_predictor and any(spec.implementation.trained_by_workers for spec in run.members):
        # On a CPU each predictor would measure which format is fastest, if the networks were trained on GPUs.
        run.decide_precision(DistributedContext())
    try:
        claim_directory(directory, {"key": key})
    except OtherJobError:  # it holds predictions of another ensemble
        remove_directory(directory)
        claim_directory(directory, {"key": key})
    sources = [SplitFile(path) for path in run.corpus.files(split)]
    open_predictor, documents = partial(EnsemblePredictor, run.settings, combiner), run.corpus.documents(split)
    files = sum(file_bytes(spec.directory) for spec in run.members)
    reserved: dict[str, float] | None = {**resources.of_a_predictor, "memory": predictor_bytes(files)}
    is_one_shard = documents <= ROWS and len(sources) == 1
    if is_one_shard and not resources.gpus_per_predictor and files <= MOST_BYTES_HERE:
        reserved = None
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        heartbeat = stack.enter_context(Heartbeat("predict", documents, f"{split} documents"))
        heartbeat.done_before = sum(pq.read_metadata(path).num_rows for path in directory.glob("part-*.parquet"))
        heartbeat.add(heartbeat.done_before)
        if heartbeat.done < documents:
            for rows in predict_shards(sources, open_predictor, directory, "parquet", reserved):
                heartbeat.add(rows)
        assert heartbeat.done == documents, (heartbeat.done, documents)
    return Predictions.complete(directory, key)
