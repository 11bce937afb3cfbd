"""A prepared corpus that is learned in seconds, written as `corpus/prepare.py` would, without Ray; and single levels.

A document's labels are those whose word it contains: "key3 noise1 key0" is of label-3 and label-0. One validation
document has a label that no training document has.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file
from scipy import sparse

from axml_ray.core.files import write_json
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import FORMAT, MANIFEST, VERSION, Corpus
from axml_ray.corpus.text.tokenizer import Tokenizer, split_words
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import Beam, LevelNetwork
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment, NetworkSettings, TrainingSettings
from axml_ray.settings.configuration import load
from axml_ray.training.batches import LevelData
from axml_ray.training.beam_search import choose_parents
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import LevelTraining, Report
from axml_ray.tree.kinds import build_tree

LABELS = 14
DIMENSION = 12
DOCUMENTS = {"train": 300, "valid": 24, "test": 12}


def write_corpus(directory: Path) -> Corpus:
    """Write the corpus and open it."""
    from label_centroids import label_centroids  # spawned workers, which do not write, may not see these
    from label_indexes import encode, index_of

    random = np.random.default_rng(5)
    texts: dict[str, list[str]] = {}
    labels: dict[str, list[list[str]]] = {}
    for split, documents in DOCUMENTS.items():
        keys = [random.permutation(LABELS)[: random.integers(1, 4)] for _ in range(documents)]
        noise = [random.integers(0, 10, random.integers(1, 8)) for _ in range(documents)]
        words = [[*(f"key{i}" for i in k), *(f"noise{i}" for i in n)] for k, n in zip(keys, noise, strict=True)]
        texts[split] = [" ".join(random.permutation(row)) for row in words]
        labels[split] = [[f"label-{i}" for i in row] for row in keys]
    labels["valid"][0].append("never seen in training")
    directory.mkdir(parents=True)
    frequency = Counter(word for text in texts["train"] for word in set(split_words(text)))
    tokenizer = Tokenizer.from_words(sorted(frequency, key=lambda word: (-frequency[word], word)))
    tokenizer.save(directory / "tokenizer.json")
    counts = Counter(label for row in labels["train"] for label in row)
    index = index_of(counts, ["never seen in training"])
    assert index.trained == LABELS
    index.save(directory / "labels.parquet")
    tokens = {split: tokenizer.encode(rows, 500) for split, rows in texts.items()}
    for split, rows in tokens.items():
        (directory / split).mkdir()
        columns = {
            "id": pa.array([f"{split}-{i}" for i in range(len(rows))]),
            "tokens": rows.to_arrow(),
            "labels": encode(index, labels[split]).to_arrow(),
            "text": pa.array(texts[split]),
        }
        pq.write_table(pa.table(columns), directory / split / "0.parquet")
    features = label_centroids(tokens["train"], encode(index, labels["train"]), len(tokenizer), index.trained)
    sparse.save_npz(directory / "label_features.npz", features)
    vectors = random.uniform(-1, 1, (len(tokenizer), DIMENSION)).astype(np.float32)
    vectors[0] = 0
    save_file({"word_vectors": vectors}, directory / "word_vectors.safetensors")
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": "tiny",
        "counts": {"documents": DOCUMENTS, "labels": len(index), "trained_labels": LABELS, "words": len(tokenizer)},
        "summary": {"words": {split: len(rows.values) for split, rows in tokens.items()}},
        "word_vector_dimension": DIMENSION,
        "files": {path.relative_to(directory).as_posix(): path.stat().st_size for path in files},
    }
    write_json(directory / MANIFEST, manifest)
    return Corpus.open(directory)


def experiment(home: Path, *, tree: dict[str, Any] | None = None, **training: Any) -> Experiment:
    """Settings under which the corpus is learned; `training` and `tree` change theirs."""
    return load(
        name="tiny",
        seed=3,
        runs=home / "runs",
        corpora=home / "corpora",
        corpus={"name": "tiny", "source": "installed_packages"},
        tree={"height": 1, "cluster_size": 4, "beam": 3, **(tree or {})},
        network={
            "hidden": 10,
            "fully_connected": (12,),
            "embedding_dropout": 0,
            "encoder_dropout": 0,
            "output_bias": "positive_rate",
            "parent_score_exponent": 0.25,
        },
        training={
            "epochs": (6,),
            "average_after": (4,),
            "batch_size": 20,
            "learning_rate": 0.05,
            "eval_every_steps": 15,
            "precision": "float32",
            **training,
        },
    )


def train_tree(
    settings: Experiment, corpus: Corpus, workers: DistributedContext | None = None, build: bool = True
) -> list[dict[str, Any]]:
    """Build tree 0 of the run and train its networks; returns what was reported."""
    run = Run(settings, corpus)
    if build:
        run.keep_tree(0, build_tree(corpus, settings.tree, settings.seed))
    records: list[dict[str, Any]] = []
    spec = run.members[0]
    spec.implementation.fit(spec, run.prepare_fit(spec, workers, records.append))
    return records


def key_documents(documents: int, labels: int, seed: int = 0) -> tuple[Ragged, Ragged]:
    """Word ids and labels of documents of which label i is true where word i + 2 occurs."""
    random = np.random.default_rng(seed)
    truth = [np.sort(random.permutation(labels)[: random.integers(1, 4)]) for _ in range(documents)]
    tokens = [random.permutation([*(row + 2), *random.integers(labels + 2, labels + 12, 4)]) for row in truth]
    return Ragged.from_rows(tokens), Ragged.from_rows(truth)


FLAT = Level(1, 10, None)
DEEP = Level(2, 10, np.array([0, 3, 4, 8, 10]))
WIDE = Level(2, 41, np.cumsum([0, *[1, 3, 2, 4] * 4, 1]))
"""17 parents: a batch of a few documents leaves most of them alone."""
VALID = 40


def small_network(
    level: Level, dropout: float = 0.0, shard: Shard = WHOLE, seed: int = 4, **settings: Any
) -> LevelNetwork:
    """A network of a level that `small_training` trains."""
    torch.manual_seed(seed)
    vectors = torch.randn(level.nodes + 12, 12)
    vectors[0] = 0
    sizes = {"hidden": 10, "fully_connected": (12,), "embedding_dropout": dropout, "encoder_dropout": dropout}
    return build_network(level, vectors, NetworkSettings(**{**sizes, **settings}), shard)


def small_training(
    network: LevelNetwork,
    documents: int = 200,
    seed: int = 1,
    *,
    keep: int = 3,
    workers: DistributedContext | None = None,
    report: Report = lambda record: None,
    checkpoints: Checkpoints | None = None,
    **changes: Any,
) -> LevelTraining:
    """Training of a level on key documents; at a deep level, `keep` of a document's parents are candidates."""
    settings = TrainingSettings(**{"batch_size": 20, "learning_rate": 0.01, "precision": "float32", **changes})
    level = network.level
    tokens, positives = key_documents(documents, level.nodes)
    valid_tokens, valid_positives = key_documents(VALID, level.nodes, seed=9)
    parents = beam = None
    if level.first_child is not None:
        random = np.random.default_rng(2)
        count = len(level.first_child) - 1
        above = [np.unique(np.searchsorted(level.first_child, row, "right") - 1) for row in positives]
        predicted = np.stack([random.permutation(count)[:keep] for _ in range(documents)])
        parents = choose_parents(predicted, Ragged.from_rows(above), keep)
        beam = Beam(torch.arange(count).expand(VALID, count), torch.zeros(VALID, count))
    return LevelTraining(
        network,
        LevelData(tokens, positives, parents),
        LevelData(valid_tokens, valid_positives, beam=beam),
        settings,
        seed,
        workers or DistributedContext(),
        report,
        checkpoints,
    )


def curve_of(training: LevelTraining) -> list[float]:
    """A list that fills with the loss of each step of `run`."""
    losses: list[float] = []
    step = training.step

    def followed(batch: Any) -> None:
        step(batch)
        losses.append(training.state.recent[-1])

    training.step = followed  # type: ignore[method-assign]
    return losses
