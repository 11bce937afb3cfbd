"""Speed of tree prediction compared with the literal implementation (`literal_inference`), on this machine's CPU.

    python benchmarks/inference.py [--quick] [--only NAME] [--threads N] [--json PATH]

- `docstrings`, `eurlex57k`: one tree in the paper's shape (`SHAPES`), with random weights, which don't
  affect the speed. Both sides predict the same test documents by beam search, in alternating rounds: the literal
  implementation in batches of 64 documents in their order; ours in batches of 64 sorted by length within the round
  (`speedup`), or in the tagger's batches (`speedup_of_tagger`). A speedup is the median over the rounds. Ours also
  computes the evidence that `configs/docstrings.yaml` sets, the literal implementation does not.
- `single_text`: milliseconds for one text of docstrings at a time, tokenised, through three trees, one call after the
  other: median and 99th percentile. Rows also have the milliseconds per text of one and three trees in batches.
- `equality`: the networks of the first tree of a trained run (`--run`) on its test documents, by both in float32: P@5
  of each, in percent, and `equal_labels_share`, the share of our five best labels that are also its five best.
  If it is below `LEAST_EQUAL_LABELS`, the exit status is 1.

All parts measure network trees only, without a run's other members and its combiner.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import results_file
import torch
from literal_inference import LiteralTree
from rich import box
from rich.table import Table
from rich.text import Text

from axml_ray.core.limits import available_cpus
from axml_ray.core.paths import absolute
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.corpus.store import Corpus, Split
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.ensemble.combiner import Mean
from axml_ray.ensemble.ensemble import Combination, Ensemble
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.members.member import MemberInfo
from axml_ray.members.network_tree import NetworkTree
from axml_ray.members.text_batch import length_batches, map_in_threads
from axml_ray.network.backends.precision import use_threads
from axml_ray.network.fast.frozen import WORDS, frozen
from axml_ray.network.kinds import build_network
from axml_ray.network.tree_level import Level
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.tree.label_tree import LabelTree, level_depths

CPU = torch.device("cpu")
BATCH = 64
TOP = 100
SEED = 7
ROUND = {"docstrings": (512, 512), "eurlex57k": (128, 512)}
"""Documents per round, with and without --quick."""
SINGLE = (100, 500)
"""Texts that are predicted one by one, with and without --quick."""
EQUAL = (1_000, 1_000_000)
"""Largest number of test documents for the comparison of labels, with and without --quick."""
RUN = absolute("runs/quickstart")
"""Default run, whose networks the two are compared on."""
LEAST_EQUAL_LABELS = 0.999
"""Least share of the best five labels; both sides round float32 differently, which can reorder near ties."""

Result = results_file.Result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts, print their rows, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer documents: under 10 minutes on 2 cores")
    parser.add_argument("--only", choices=PARTS, help="run this part alone")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default: all usable cores")
    parser.add_argument("--rounds", type=int, help="default: 3 if quick, else 7")
    parser.add_argument("--documents", type=int, help="of a round, or in all; by default what a part takes")
    parser.add_argument("--run", type=absolute, default=RUN, help="for the part equality")
    parser.add_argument(
        "--json", type=Path, help="default: benchmarks/results/inference.json, with --only NAME inference-NAME.json"
    )
    options = parser.parse_args(arguments)
    rounds = options.rounds or (3 if options.quick else 7)
    if options.threads < 1 or rounds < 1 or (options.documents or 1) < 1:
        parser.error("--threads, --rounds and --documents: at least 1")
    use_threads(options.threads)

    def measure(name: str) -> results_file.Result:
        part, sizes = PARTS[name]
        if name == "equality":
            part = partial(equality, directory=options.run)
        return part(options.documents or sizes[not options.quick], rounds)

    names = [options.only] if options.only else list(PARTS)
    part = f"-{options.only}" if options.only else ""
    path = options.json or results_file.RESULTS / f"inference{part}.json"
    figures = results_file.measure_parts(names, measure, table, path, threads=options.threads)
    if failed := failures(figures):
        print(f"error: {failed}", file=sys.stderr)
        raise SystemExit(1)


def failures(figures: Mapping[str, float]) -> str | None:
    """Return a message if the two implementations predict different labels, else None."""
    share = figures.get("equal_labels_share", 1.0)
    if share >= LEAST_EQUAL_LABELS:
        return None
    return (
        f"equal_labels_share is {share:.4f}, below {LEAST_EQUAL_LABELS}: our networks and the literal implementation "
        "predict different labels from the same weights"
    )


# Trees


WIDE = {"hidden": 256, "fully_connected": [256]}
SHAPES: dict[str, dict[str, Any]] = {
    "docstrings": {"tree": {"beam": 48}, "network": WIDE},
    "eurlex57k": {
        "tree": {"height": 0},
        "network": {**WIDE, "max_tokens": None, "evidence": False, "label_vector_init": "random"},
    },
}
"""Changes of `configs/`, which are tuned for accuracy on few cores."""


def settings_and_corpus(name: str) -> tuple[Experiment, Corpus]:
    """Return a shipped configuration and its prepared corpus.

    Raises:
        SettingsError: the corpus isn't prepared.
    """
    settings = load(results_file.ROOT / "configs" / f"{name}.yaml", corpora=absolute("corpora"), **SHAPES[name])
    return settings, Corpus.open(settings.corpus_directory)


def random_tree(
    settings: Experiment, labels: int, vectors: torch.Tensor, number: int, device: torch.device = CPU
) -> NetworkTree:
    """Return a tree of the settings' shape with random labels and weights, which are drawn on the device.

    Args:
        settings: settings of the tree and its networks.
        labels: number of labels.
        vectors: word vectors, float32 [words, E], on the device.
        number: number of the tree; another one has other labels and weights.
        device: device of the networks.
    """
    torch.manual_seed(SEED + number)
    order = np.random.default_rng(SEED + number).permutation(labels).astype(np.int32)
    depths = level_depths(labels, settings.tree.height, settings.tree.cluster_size)
    cuts = [np.linspace(0, labels, 2**depth + 1).astype(np.int64) for depth in depths]
    tree = LabelTree.from_cuts(order, cuts)
    networks = []
    for level in (Level.from_tree(tree, depth) for depth in range(1, len(tree.level_sizes) + 1)):
        with torch.device("meta"):
            shapes = build_network(level, torch.empty(vectors.shape), settings.network).state_dict()
        state = {name: torch.empty(of.shape, device=device).uniform_(-0.05, 0.05) for name, of in shapes.items()}
        state[WORDS] = vectors
        networks.append(frozen(level, state, settings.network, settings.training.precision, device))
    return NetworkTree(tree, networks, settings.tree.beam, precision=settings.training.precision)


def some_tests(corpus: Corpus, documents: int) -> Ragged:
    """Draw test documents at random."""
    tokens = corpus.split("test").tokens
    return tokens.take(np.random.default_rng(SEED).permutation(len(tokens))[:documents])


def predict(member: NetworkTree, tokens: Ragged, k: int, batches: Iterable[np.ndarray] | None = None) -> TopK:
    """Return a member's best k labels of each text, [texts, k].

    Args:
        member: a member of a run.
        tokens: word ids of the texts.
        k: number of labels per text.
        batches: row numbers of each batch; by default the tagger's batches.
    """
    top = TopK.empty(len(tokens), k)

    def of_batch(rows: np.ndarray) -> tuple[np.ndarray, TopK]:
        return rows, member.rank(TextViews(tokens.take(rows)), k)

    for rows, ranking in map_in_threads(of_batch, batches or length_batches(tokens)):
        top.labels[rows], top.scores[rows] = ranking
    return top


def ensemble_of(trees: Sequence[NetworkTree]) -> Ensemble:
    """Return the paper's ensemble of some trees: the mean of their scores."""
    members = [MemberInfo(f"network_tree-{n}", "network_tree", n, 1 / len(trees)) for n in range(len(trees))]
    combination = Combination(tuple(members), Mean(), TOP)
    return Ensemble(combination, {info.name: tree for info, tree in zip(members, trees, strict=True)})


# Parts


def against_literal(name: str, documents: int, rounds: int) -> Result:
    """Predict the same documents with both, round by round."""
    settings, corpus = settings_and_corpus(name)
    ours = random_tree(settings, corpus.trained, torch.from_numpy(corpus.word_vectors()), 0)
    literal = LiteralTree.like(ours, evidence=False)
    tokens = some_tests(corpus, documents * rounds)
    rounds = max(1, len(tokens) // documents)
    top = min(TOP, corpus.trained)

    def by_64(some: Ragged) -> None:
        batches = length_batches(some, documents=BATCH, places=BATCH * int(some.lengths.max() + 8))
        predict(ours, some, top, batches)

    systems: dict[str, Callable[[Ragged], Any]] = {
        "ours, 64 a batch": by_64,
        "ours, as the tagger": lambda some: predict(ours, some, top),
        "literal, 64 a batch": lambda some: literal.predict(some, top, BATCH),
    }
    seconds: dict[str, list[float]] = {system: [] for system in systems}
    first = tokens.take(np.arange(min(documents, len(tokens))))
    for system, work in systems.items():  # the first calls compile kernels and allocate memory
        work(first if system.startswith("ours") else first.take(np.arange(min(len(first), BATCH))))
    for number in range(rounds):
        some = tokens.take(np.arange(number * documents, min((number + 1) * documents, len(tokens))))
        for system, work in systems.items():
            seconds[system].append(timed(work, some))
    ratios = {
        system: [slow / fast for slow, fast in zip(seconds["literal, 64 a batch"], seconds[system], strict=True)]
        for system in list(systems)[:2]
    }
    about = {"corpus": name, "level_sizes": ours.tree.level_sizes, "beam": ours.beam, "rounds": rounds}
    rows: list[dict[str, Any]] = [
        {"system": system, "ms_per_text": 1_000 * sum(all_seconds) / min(len(tokens), rounds * documents), **about}
        for system, all_seconds in seconds.items()
    ]
    for system, of_rounds in ratios.items():
        rows.append({"system": system, "speedup": statistics.median(of_rounds), "speedups_of_rounds": of_rounds})
    return {
        f"{name}_speedup": statistics.median(ratios["ours, 64 a batch"]),
        f"{name}_speedup_of_tagger": statistics.median(ratios["ours, as the tagger"]),
    }, rows


def docstrings(documents: int, rounds: int) -> Result:
    """Measure a tree with one level of clusters."""
    return against_literal("docstrings", documents, rounds)


def eurlex57k(documents: int, rounds: int) -> Result:
    """Measure a flat tree on long texts."""
    return against_literal("eurlex57k", documents, rounds)


def single_text(documents: int, rounds: int) -> Result:
    """Measure one text at a time, and batches, with one tree and with three."""
    settings, corpus = settings_and_corpus("docstrings")
    texts = corpus.table("test", ["text"])["text"].to_pylist()
    texts = [texts[i] for i in np.random.default_rng(SEED).permutation(len(texts))[:documents]]
    vectors = torch.from_numpy(corpus.word_vectors())
    trees = [random_tree(settings, corpus.trained, vectors, number) for number in range(3)]
    rows, figures = [], {}
    for count in (1, 3):
        ensemble = ensemble_of(trees[:count])

        def tag(some: list[str], ensemble: Ensemble = ensemble) -> None:
            ensemble.rank(corpus.tokenizer.encode(some, settings.corpus.max_tokens))

        for text in texts[: documents // 4]:
            tag([text])
        milliseconds = [1_000 * timed(tag, [text]) for text in texts]
        whole = [1_000 * timed(tag, texts) / len(texts) for _ in range(rounds + 1)][1:]
        p50, p99 = (float(value) for value in np.percentile(milliseconds, [50, 99]))
        rows.append({"trees": count, "single_text_ms_p50": p50, "single_text_ms_p99": p99, "texts": len(texts),
                     "ms_per_text": statistics.median(whole)})  # fmt: skip
        figures = {"single_text_ms_p50": p50, "single_text_ms_p99": p99}
        figures["ms_per_text"] = statistics.median(whole)
    return figures, rows


def equality(documents: int, rounds: int, directory: Path) -> Result:
    """Compare the labels that both implementations predict with the networks of a run's first tree."""
    run = Run.open(directory)
    split = run.corpus.split("test")
    split = split.take(np.random.default_rng(SEED).permutation(len(split))[:documents])
    ours = networks_of(run, 0)
    literal = LiteralTree.like(ours, evidence=True)
    return equality_of(ours, literal, split, len(run.corpus.labels))


def networks_of(run: Run, number: int) -> NetworkTree:
    """Load the networks of a finished run's label tree, in float32.

    Raises:
        SettingsError: the tree or a level is missing, cut short, or was trained with other settings.
    """
    training = run.settings.training.model_copy(update={"precision": "float32"})
    exact = Run(run.settings.model_copy(update={"training": training}), run.corpus)
    member = exact.open_member(run.spec(f"network_tree-{number}"), None)
    assert isinstance(member, NetworkTree)
    return member


def equality_of(ours: NetworkTree, literal: LiteralTree, split: Split, labels: int) -> Result:
    """Return P@5 of both on some documents, and the share of our five best labels that are also its five best.

    Args:
        ours: the networks of a tree.
        literal: the literal implementation of the same tree.
        split: documents and their true labels.
        labels: number of labels.
    """
    predicted = {"ours": predict(ours, split.tokens, 5).labels, "literal": literal.predict(split.tokens, 5)[0]}
    figures = {}
    for system, best in predicted.items():
        scores = Scores(np.ones(labels))
        scores.add(best.astype(np.int32), split.labels.values, split.labels.offsets)
        figures[f"P@5_{system}"] = scores.result()["P@5"]
    there = predicted["ours"] >= 0
    in_both = (predicted["ours"][:, :, None] == predicted["literal"][:, None, :]).any(axis=2)
    figures["equal_labels_share"] = float(in_both[there].mean())
    return figures, [{**figures, "documents": len(split)}]


def timed(work: Callable[[Any], Any], options: Any) -> float:
    """Return the seconds that `work` takes."""
    began = time.perf_counter()
    work(options)
    return time.perf_counter() - began


PARTS: dict[str, tuple[Callable[[int, int], Result], tuple[int, int]]] = {
    "docstrings": (docstrings, ROUND["docstrings"]),
    "eurlex57k": (eurlex57k, ROUND["eurlex57k"]),
    "single_text": (single_text, SINGLE),
    "equality": (partial(equality, directory=RUN), EQUAL),
}


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the main columns of the rows as a table for a rich console."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("part", "system", "trees", "ms a text", "one by one, p99", "speedup"):
        shown.add_column(name)
    for row in rows:
        cells = [row["part"], row.get("system", ""), row.get("trees", "")]
        for name in ("ms_per_text", "single_text_ms_p99", "speedup"):
            cells.append(f"{row[name]:.2f}" if name in row else "")
        shown.add_row(*(Text(str(cell)) for cell in cells))
    return shown


if __name__ == "__main__":
    results_file.run(main)
