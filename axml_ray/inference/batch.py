"""A split of a corpus through the ensemble, with Ray Data: model actors, one Parquet file a block."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data

from axml_ray.cluster import quiet_data
from axml_ray.corpus.store import Corpus
from axml_ray.files import whole_directory
from axml_ray.inference.beam import TreePredictor
from axml_ray.inference.ensemble import combine
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment

ROWS = 1_024


class EnsemblePredictor:
    """An actor that holds every tree of a run."""

    def __init__(self, settings: Experiment, directory: Path):
        use_threads(settings.resources.threads_of_worker)
        corpus = Corpus.open(settings.corpus_directory)
        self.trees = [TreePredictor.open(settings, corpus, number) for number in range(settings.ensemble.trees)]
        self.corpus, self.top, self.directory = corpus, settings.ensemble.top_labels, directory

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Predict one slice of a split's file and write it; returns where it lies and how many rows it has."""
        table = pq.read_table(row["file"], columns=["id", "tokens", "labels"]).slice(row["start"], ROWS)
        tokens = Ragged.from_arrow(table["tokens"])
        found = [tree.predict(tokens, self.top) for tree in self.trees]
        labels, scores = combine([one for one, _ in found], [one for _, one in found], self.top)
        columns = {"id": table["id"], "labels": table["labels"], **_columns("ensemble", labels, scores)}
        for number, (tree_labels, tree_scores) in enumerate(found):
            columns |= _columns(f"tree-{number}", tree_labels, tree_scores)
        path = self.directory / f"{row['number']:06d}.parquet"
        pq.write_table(pa.table(columns), path)
        return {"rows": len(table)}


def predict_split(settings: Experiment, corpus: Corpus, split: str) -> Path:
    """Predict a split of the corpus with the run's trees. Ray must be initialised.

    Returns:
        A directory of Parquet files with the columns id, labels (the true ones), and for the ensemble and each tree
        `<who>.labels` and `<who>.scores`, fixed-size lists, best first.
    """
    directory = settings.run_directory / "predictions" / split
    slices = []
    for file in corpus.files(split):
        rows = pq.read_metadata(file).num_rows
        slices += [{"file": str(file), "start": start} for start in range(0, rows, ROWS)]
    numbered = [{"number": number, **one} for number, one in enumerate(slices)]
    shutil.rmtree(directory, ignore_errors=True)
    with whole_directory(directory) as work:
        quiet_data()
        # Small blocks, so that every actor has something to do.
        blocks = max(1, min(len(numbered), 4 * settings.resources.predictors))
        predicted = ray.data.from_items(numbered, override_num_blocks=blocks).map(
            EnsemblePredictor,
            fn_constructor_args=(settings, work),
            compute=ray.data.ActorPoolStrategy(size=settings.resources.predictors),
            num_cpus=settings.resources.cpus_per_worker,
        )
        written = sum(int(row["rows"]) for row in predicted.iter_rows())
        assert written == corpus.documents(split), (written, corpus.documents(split))
    return directory


def _columns(who: str, labels: np.ndarray, scores: np.ndarray) -> dict[str, pa.Array]:
    width = labels.shape[1]
    return {
        f"{who}.labels": pa.FixedSizeListArray.from_arrays(pa.array(labels.ravel(), pa.int32()), width),
        f"{who}.scores": pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel(), pa.float32()), width),
    }
