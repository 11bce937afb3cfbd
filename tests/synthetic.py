"""A small corpus that can be learned: each label has a word of its own, and families of labels share one."""

import json
from pathlib import Path

import numpy as np

LABELS = 40


def write(directory: Path, *, train: int = 240, test: int = 60, seed: int = 0) -> dict[str, object]:
    """JSON-lines files in `directory`; returns the corpus settings that read them."""
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    for name, documents in (("train", train), ("test", test)):
        with (directory / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(documents):
                # every label has a training document
                labels = {number % LABELS, *random.integers(0, LABELS, random.integers(0, 3)).tolist()}
                words = [f"filler{i}" for i in random.integers(0, 30, random.integers(3, 12))]
                words += [f"own{label}" for label in labels] + [f"family{label // 8}" for label in labels]
                random.shuffle(words)
                record = {"text": " ".join(words), "labels": [f"label {label}" for label in sorted(labels)]}
                file.write(json.dumps(record) + "\n")
    return {
        "name": "synthetic",
        "source": "json_lines",
        "train": [str(directory / "train.jsonl")],
        "test": [str(directory / "test.jsonl")],
        "valid_documents": 20,
        "word_vectors": "random",
        "word_dimension": 16,
    }


def experiment(directory: Path, **groups: dict[str, object]) -> dict[str, object]:
    """Settings of a small experiment over that corpus, below `directory`, as `configuration.load` takes them."""
    defaults: dict[str, dict[str, object]] = {
        "tree": {"height": 1, "cluster_size": 8, "beam": 4},
        "network": {"hidden": 16, "fully_connected": [16], "embedding_dropout": 0.0, "encoder_dropout": 0.0},
        "training": {"epochs": [2], "average_after": [1], "batch_size": 16, "learning_rate": 0.01},
        "ensemble": {"trees": 2, "top_labels": 10},
        "resources": {"cpus_per_worker": 0.5},
    }
    merged = {name: {**default, **groups.pop(name, {})} for name, default in defaults.items()}
    return {
        "name": "small",
        "runs": str(directory / "runs"),
        "corpora": str(directory / "corpora"),
        "corpus": write(directory / "texts"),
        **merged,
        **groups,
    }
