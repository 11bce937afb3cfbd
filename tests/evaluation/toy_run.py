"""A finished run without members: a corpus, random predictions, training journals, and settings."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from label_indexes import index_of

from axml_ray.core.files import write_json
from axml_ray.core.ragged import Ragged
from axml_ray.core.run_manifest import write_run_manifest
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.store import FORMAT, VERSION
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.runs.run import Run

LABELS, DOCUMENTS, TREES, WIDTH = 40, 60, 2, 12
MEMBERS = [f"network_tree-{tree}" for tree in range(TREES)]
EVIL = "<script>alert('x')</script> & \"label\""


def write_corpus(home: Path, name: str = "toy", seed: int = 0, text: bool = True) -> LabelIndex:
    """Write a corpus of three splits below `home`/corpora; two labels have no training document."""
    random = np.random.default_rng(seed)
    counts = {f"label{n}": max(1, 300 // (n + 1)) for n in range(LABELS - 2)}
    index = index_of(counts, ["unseen1", "unseen2"], {"label0": EVIL})
    directory = home / "corpora" / name
    for split, documents in (("train", 300), ("valid", 20), ("test", DOCUMENTS)):
        (directory / split).mkdir(parents=True)
        rows = [np.sort(random.choice(LABELS, random.integers(0, 5), replace=False)) for _ in range(documents)]
        for number, part in enumerate(np.array_split(np.arange(documents), 2)):
            columns = {
                "id": [f"{split}-{i}" for i in part],
                "tokens": pa.array([[2, 3]] * len(part), pa.list_(pa.int32())),
                "labels": Ragged.from_rows([rows[i] for i in part]).to_arrow(),
            }
            if text:
                columns["text"] = [f"text {i} of <b>bold</b> words" for i in part]
            pq.write_table(pa.table(columns), directory / split / f"{number}.parquet")
    index.save(directory / "labels.parquet")
    files = {path.relative_to(directory).as_posix(): path.stat().st_size for path in directory.rglob("*.parquet")}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": f"seed {seed}",
        "seconds": 1.5,
        "files": dict(sorted(files.items())),
        "counts": {
            "documents": {"train": 300, "valid": 20, "test": DOCUMENTS},
            "labels": LABELS,
            "trained_labels": LABELS - 2,
            "words": 4,
        },
        "word_vector_dimension": 3,
    }
    write_json(directory / "corpus.json", manifest)
    return index


def write_run(home: Path, name: str = "run", *, corpus: str = "toy", skill: float = 0.6, seed: int = 1) -> Path:
    """Write a run below `home`/runs; the larger `skill`, the more often are true labels ranked above false ones."""
    directory = home / "runs" / name
    directory.mkdir(parents=True)
    settings = {
        "name": name,
        "runs": str(home / "runs"),
        "corpora": str(home / "corpora"),
        "corpus": {"name": corpus, "source": "installed_packages"},
        "ensemble": {"trees": TREES},
    }
    (directory / "settings.yaml").write_text(yaml.safe_dump(settings))
    write_run_manifest(directory)
    write_predictions(directory, home / "corpora" / corpus, "test", skill=skill, seed=seed)
    for tree in range(TREES):
        (directory / f"tree-{tree}").mkdir()
        records = [
            {"tree": tree, "level": level, "levels": 2, "step": step, "loss": 0.1 / step, "valid_nDCG@5": 10.0 + step}
            for level in (1, 2)
            for step in (10, 20)
        ]
        lines = [*map(json.dumps, [*records, {"tree": tree, "level": 1, "scored": 60}]), '{"tree": 0, "lev']
        (directory / f"tree-{tree}" / "training.jsonl").write_text("\n".join(lines))
    return directory


def write_predictions(run: Path, corpus: Path, split: str, *, skill: float, seed: int) -> None:
    """Write predictions of a split by the ensemble and each member."""
    random = np.random.default_rng(seed)
    directory = run / "predictions" / split
    directory.mkdir(parents=True)
    for number, file in enumerate(sorted((corpus / split).glob("*.parquet"))):
        table = pq.read_table(file)
        columns = {"id": table["id"], "labels": table["labels"]}
        for name in ("ensemble", *MEMBERS):
            value = random.random((len(table), LABELS - 2)) * (1 - skill)
            for row, true in enumerate(table["labels"].to_pylist()):
                value[row, [label for label in true if label < LABELS - 2]] += skill * random.random()
            top = np.argsort(-value, axis=1)[:, :WIDTH]
            score = np.take_along_axis(value, top, 1)
            for what, flat, kind in (("labels", top, pa.int32()), ("scores", score, pa.float32())):
                columns[f"{name}.{what}"] = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel(), kind), WIDTH)
        pq.write_table(pa.table(columns), directory / f"{number:06d}.parquet")
    Predictions.complete(directory, Run.open(run).predictions_key if (run / "settings.yaml").exists() else "key")
