"""Accuracy of our training compared with the literal implementation: a first level, scored on validation.

    python benchmarks/training_accuracy.py [--quick] [--corpus NAME] [--seeds N] [--epochs N] [--longest N]
                                           [--json PATH]

Both train the first level of the same label tree on the same documents of docstrings and of eurlex57k with the same
settings, and are scored by nDCG@5 of the level's nodes on the same validation documents, three seeds each. Ours has
the default settings (bfloat16 if the machine has it, batches of similar length, clipped gradients); the literal one
trains in float32, on random batches, unclipped. Both initialise the output bias from the positive rate.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import literal_training
import numpy as np
import results_file
import torch
from rich.console import Console
from rich.table import Table

from axml_ray.core.limits import available_cpus
from axml_ray.core.paths import absolute
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import Corpus
from axml_ray.network.backends.precision import use_threads
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings, TrainingSettings
from axml_ray.training.batches import LevelData
from axml_ray.training.level import LevelTraining
from axml_ray.tree.label_tree import LabelTree

CORPORA = ("docstrings", "eurlex57k")
HIDDEN, LEARNING_RATE, CLUSTER_SIZE, AVERAGE_AFTER, SCORE_EVERY = 128, 3e-3, 16, 2, 50


@dataclass
class Task:
    """A level to train: its texts, its true nodes, its validation documents."""

    level: Level
    vectors: torch.Tensor
    train: tuple[Ragged, Ragged]
    valid: tuple[Ragged, Ragged]

    @property
    def rate(self) -> float:
        """Return the positive rate: the share of true nodes."""
        positives = self.train[1]
        return len(positives.values) / (len(positives) * self.level.nodes)


def task_of(name: str, documents: int, longest: int) -> Task:
    """Return the first level of a prepared corpus, its texts cut to `longest` words."""
    corpus = Corpus.open(absolute("corpora") / name)
    tree = LabelTree.build(corpus.label_features(), height=1, cluster_size=CLUSTER_SIZE, seed=0)
    parts = []
    for split, most in (("train", documents), ("valid", 1_000)):
        whole = corpus.split(split)
        rows = np.random.default_rng(0).permutation(len(whole.tokens))[:most]
        labels = whole.labels.take(rows)
        nodes = Ragged(*tree.node_labels(1, labels.values, labels.offsets))
        parts.append((whole.tokens.take(rows).cut(longest), nodes))
    return Task(Level.from_tree(tree, 1), torch.from_numpy(corpus.word_vectors()), *parts)


def ours(task: Task, epochs: int, seed: int) -> float:
    """Train ours; return nDCG@5 on validation, in percent."""
    torch.manual_seed(seed)
    network = FusedAttentionXML(task.level, task.vectors, NetworkSettings(hidden=HIDDEN, fully_connected=(HIDDEN,)))
    network.initialise_output_bias(task.rate)
    settings = TrainingSettings(
        epochs=(epochs,), average_after=(AVERAGE_AFTER,), learning_rate=LEARNING_RATE, eval_every_steps=SCORE_EVERY
    )
    return LevelTraining(network, LevelData(*task.train), LevelData(*task.valid), settings, seed).run()


def literal(task: Task, epochs: int, seed: int) -> float:
    """Train the literal implementation; return nDCG@5 on validation, in percent."""
    torch.manual_seed(seed)
    network = literal_training.LiteralLevel(
        task.level.nodes, deep=False, vectors=task.vectors, hidden=HIDDEN, fully_connected=(HIDDEN,)
    )
    with torch.no_grad():
        network.output.bias.fill_(float(np.log(task.rate / (1 - task.rate))))
    return literal_training.train_first_level(
        network, task.train, task.valid, epochs=epochs, average_after=AVERAGE_AFTER,
        learning_rate=LEARNING_RATE, eval_every_steps=SCORE_EVERY, seed=seed,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 documents of 100 words, one seed")
    parser.add_argument("--corpus", choices=CORPORA, help="this one alone")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--longest", type=int, default=200, help="words at which texts are cut")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default: all usable cores")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/training-accuracy.json")
    options = parser.parse_args(arguments)
    documents, longest, epochs, seeds = 5_000, options.longest, options.epochs, options.seeds
    if options.quick:
        documents, longest, epochs, seeds = 1_000, 100, 3, 1
    use_threads(options.threads)
    rows: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    shown = Table("corpus", "system", "valid nDCG@5, seed by seed", "mean", "spread")
    for corpus in [options.corpus] if options.corpus else CORPORA:
        task = task_of(corpus, documents, longest)
        for name, train in (("ours", ours), ("literal", literal)):
            scores = []
            for seed in range(seeds):
                scores.append(train(task, epochs, seed))
                rows.append({
                    "corpus": corpus, "system": name, "seed": seed, "valid_nDCG@5": round(scores[-1], 3),
                    "documents": documents, "longest": longest, "epochs": epochs, "nodes": task.level.nodes,
                    "hidden": HIDDEN, "learning_rate": LEARNING_RATE,
                })  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
            spread = max(scores) - min(scores)
            figures |= {f"{corpus}_{name}_nDCG@5": statistics.mean(scores), f"{corpus}_{name}_spread": spread}
            listed = " ".join(f"{score:.2f}" for score in scores)
            shown.add_row(corpus, name, listed, f"{statistics.mean(scores):.2f}", f"{spread:.2f}")
    Console().print(shown)
    results_file.write(options.json or results_file.RESULTS / "training-accuracy.json", figures, rows)


if __name__ == "__main__":
    results_file.run(main)
