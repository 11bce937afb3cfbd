"""Prediction of a split of a run's prepared corpus with all of the run's members.

A split of several blocks is predicted by a pool of Ray Data actors. Starting an actor takes longer than predicting one
block, which this process does itself, unless predictors use GPUs: this machine may have none. Finished blocks survive a
kill, in a directory whose name has the key of the members that make them.
"""

import glob
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
import torch

from axml_ray.cluster.connection import connect, max_processes, quiet_data
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import whole_directory, whole_file
from axml_ray.core.ragged import Ragged
from axml_ray.ensemble.combiner import Combiner
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, MADE_BY
from axml_ray.inference.predict.actor_pool import ROWS, map_with_actors
from axml_ray.network.backends.devices import reserved_device
from axml_ray.network.backends.precision import use_threads
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.training.distributed import DistributedContext

BLOCKS_HERE = 1
"""Largest number of blocks of a split that this process predicts itself."""


class EnsemblePredictor:
    """All members of a run, open for prediction, which writes to a directory; the class of the Ray Data actors.

    Without a `combiner` of the members' scores, the run's is taken.
    """

    def __init__(self, settings: Experiment, directory: Path, combiner: Combiner | None):
        use_threads(settings.resources.threads_of_worker)
        device = reserved_device(settings.resources.gpus_per_predictor)
        run = Run.open(settings)
        self.ensemble = run.open_ensemble(None if combiner is None else lambda: combiner, device)
        self.directory, self.made_by = directory, {MADE_BY: run.predictions_key}
        self.file, self.table = "", pa.table({})  # the file that was read last: the next block is often of the same

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Predict `ROWS` rows of a split's file from row `start` on, write them, and return their number."""
        if row["file"] != self.file:
            self.file, self.table = row["file"], pq.read_table(row["file"], columns=["id", "tokens", "labels"])
        table = self.table.slice(row["start"], ROWS)
        member_rankings = self.ensemble.rank_members(Ragged.from_arrow(table["tokens"]))
        rankings = {ENSEMBLE: self.ensemble.combination.rank(member_rankings), **member_rankings}
        columns = {"id": table["id"], "labels": table["labels"]}
        for name, (labels, scores) in rankings.items():
            for column, values, kind in (("labels", labels, pa.int32()), ("scores", scores, pa.float32())):
                flat = pa.array(values.ravel(), kind)
                columns[f"{name}.{column}"] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        with whole_file(self.directory / row["name"]) as temporary:
            pq.write_table(pa.table(columns, metadata=self.made_by), temporary)
        return {"rows": len(table)}


def predict_split(run: Run, split: str, directory: Path | None = None, combiner: Combiner | None = None) -> Path:
    """Predict a split of the corpus with the run's members. Ray is started or joined if several blocks are missing.

    Args:
        run: the run, with all of its members fitted.
        split: name of the split.
        directory: where to write; by default the run's predictions of that split.
        combiner: combiner of the members' scores; by default the run's.

    Returns:
        A directory of Parquet files with the columns id, labels (the true ones), and for the ensemble and each member
        `<name>.labels` and `<name>.scores`, fixed-size lists, best first.

    Raises:
        SettingsError: no node of the cluster has the CPUs or GPUs of an actor.
        RuntimeError: an actor failed.
    """
    directory = directory or run.layout.predictions(split)
    unfinished = directory.with_name(f".{directory.name}-{run.predictions_key}-{ROWS}")
    unfinished.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    blocks: list[dict[str, Any]] = []  # that are missing
    finished = 0
    for file in run.corpus.files(split):
        documents = pq.read_metadata(file).num_rows
        for start in range(0, documents, ROWS):
            names.append(f"{len(names):06d}.parquet")
            if (unfinished / names[-1]).exists():
                finished += min(ROWS, documents - start)
            else:
                blocks.append({"name": names[-1], "file": str(file), "start": start})
    resources = run.settings.resources
    if not resources.gpus_per_predictor and any(spec.implementation.trained_by_workers for spec in run.members):
        # On a CPU each predictor would measure which format is fastest, if the networks were trained on GPUs.
        run.decide_precision(DistributedContext())
    rows_written: Iterator[dict[str, Any]]
    with ExitStack() as stack:
        arguments = run.settings, unfinished, combiner
        heartbeat = stack.enter_context(Heartbeat("predict", run.corpus.documents(split), f"{split} documents"))
        heartbeat.add(finished)
        if not blocks:  # a kill came between the last block and the end
            rows_written = iter(())
        elif len(blocks) <= BLOCKS_HERE and not resources.gpus_per_predictor:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            rows_written = map(EnsemblePredictor(*arguments), blocks)
        else:
            connect()
            if not max_processes({"CPU": resources.cpus_per_worker}):
                cpus = f"{resources.cpus_per_worker:g} CPUs"
                raise SettingsError(f"resources.cpus_per_worker: no node of the cluster has {cpus}. Lower it")
            quiet_data()
            # Several blocks per actor, so that all actors are busy until the end.
            parallel = max(1, min(len(blocks), 4 * resources.predictors))
            rows_written = map_with_actors(
                ray.data.from_items(blocks, override_num_blocks=parallel),
                EnsemblePredictor,
                arguments,
                resources.predictors,
                resources.of_a_predictor,
                then=f"the {split} split is not predicted; run the command again, which does not repeat the training",
            )
        for row in rows_written:
            heartbeat.add(int(row["rows"]))
        assert heartbeat.done == run.corpus.documents(split), (heartbeat.done, run.corpus.documents(split))
    with whole_directory(directory) as work:
        for name in names:
            (unfinished / name).rename(work / name)
    for left in directory.parent.glob(f".{glob.escape(directory.name)}-*"):  # also of members of earlier settings
        shutil.rmtree(left, ignore_errors=True)
    return directory
