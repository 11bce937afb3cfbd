"""What each departure from the paper's recipe is worth: nDCG@5 on validation of one tree's first level.

    python benchmarks/beyond_paper.py --config configs/quickstart.yaml [--epochs 4] [--quick] [--json PATH]

The corpus must be prepared. Each row trains the first level of tree 1 with the config's settings but for what the row
names; nothing is chosen on the test split. One seed: differences of a point or two say nothing.
"""

import argparse
from pathlib import Path

import results_file
import torch
from rich.console import Console
from rich.table import Table

from axml_ray.configuration import load
from axml_ray.corpus.store import Corpus
from axml_ray.network.attention_xml import AttentionXML, Level
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment
from axml_ray.training.attention_start import start_attention
from axml_ray.training.batches import LevelData
from axml_ray.training.level import LevelTraining, Validation
from axml_ray.training.workers import Workers
from axml_ray.tree.label_tree import LabelTree

ROWS = {
    "paper": {"base_rate": False, "learning_rate": 1e-3, "evidence": False, "start": False},
    "learning rate": {"base_rate": False, "learning_rate": 5e-3, "evidence": False, "start": False},
    "+ base rate": {"base_rate": True, "learning_rate": 5e-3, "evidence": False, "start": False},
    "+ evidence": {"base_rate": True, "learning_rate": 5e-3, "evidence": True, "start": False},
    "+ start": {"base_rate": True, "learning_rate": 5e-3, "evidence": True, "start": True},
}


def first_level(config: str, epochs: int, documents: int | None, row: dict[str, bool | float]) -> float:
    """Train one row's first level; its best nDCG@5 on validation, in percent."""
    network_settings = {
        "evidence": row["evidence"],
        "attention_start": "features" if row["start"] else "random",
    }
    training = {"learning_rate": row["learning_rate"], "epochs": [epochs], "average_after": [1]}
    settings: Experiment = load(config, network=network_settings, training=training)
    corpus = Corpus.open(settings.corpus_directory)
    features, shape = corpus.label_features(), settings.tree
    tree = LabelTree.build(features, height=shape.height, cluster_size=shape.cluster_size, seed=settings.seed)
    train, valid = corpus.split("train"), corpus.split("valid")
    train = train.take(torch.arange(min(documents or len(train), len(train))).numpy())

    def nodes(labels: Ragged) -> Ragged:
        return Ragged(*tree.node_labels(1, labels.values, labels.offsets))

    torch.manual_seed(settings.seed)
    network = AttentionXML(Level.of(tree, 1), torch.from_numpy(corpus.word_vectors()), settings.network)
    data = LevelData(train.tokens, nodes(train.labels))
    if row["base_rate"]:
        network.head.expect(len(data.positives.values) / (len(data.positives) * network.level.nodes))
    if row["start"]:
        start_attention(network, tree, train.tokens, features, settings.training.precision, Workers())
    validation = Validation(valid.tokens, nodes(valid.labels))
    return LevelTraining(network, data, validation, settings.training, settings.seed).run()


def main() -> None:
    """Train every row and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="2,000 documents and 2 epochs: under 10 minutes")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    epochs, documents = (2, 2_000) if arguments.quick else (arguments.epochs, None)
    rows = []
    for name, row in ROWS.items():
        score = first_level(arguments.config, epochs, documents, row)
        rows.append({"row": name, "valid_nDCG@5": round(score, 2), "epochs": epochs, "documents": documents, **row})
        print(rows[-1], flush=True)
    table = Table("first level", "valid nDCG@5", title=f"{arguments.config}, {epochs} epochs")
    for each in rows:
        table.add_row(str(each["row"]), f"{each['valid_nDCG@5']:.2f}")
    Console().print(table)
    figures = {f"{each['row']}_nDCG@5": float(str(each["valid_nDCG@5"])) for each in rows}
    path = arguments.json or Path(f"benchmarks/results/beyond-paper-{Path(arguments.config).stem}.json")
    results_file.write(path, figures, rows)


if __name__ == "__main__":
    main()
