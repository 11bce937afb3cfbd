"""Presets: values of settings that a config starts from, and then contains only what differs.

- `paper` is exactly the paper: the product of probabilities along the path (equation 1), no departure in
  initialisation, three label trees and their mean. It is the default of every setting.
- `recommended` measured best on the validation documents of the corpora in `docs/LOG.md`, on few CPU cores.
- `auto` is `recommended`, adapted to the prepared corpus by the rules of `choose` wherever the user gave no value.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

Preset = Literal["paper", "recommended", "auto"]
Values = dict[str, Any]

RECOMMENDED: Values = {
    "corpus": {"valid_documents": 1_000, "min_document_frequency": 2},
    "tree": {"height": 1, "cluster_size": 16, "beam": 32},
    "network": {
        "hidden": 128,
        "fully_connected": [128],
        "embedding_dropout": 0.0,
        "encoder_dropout": 0.2,
        "evidence": True,
        "label_vector_init": "features",
        "output_bias": "positive_rate",
        "parent_score_exponent": 0.25,
    },
    "training": {
        "epochs": [4, 3],
        "average_after": [2, 1],
        "learning_rate": 0.0067,
        "include_true_parents": False,
    },
    "members": {
        "network_tree": {"weight": 0.5},
        "linear_tree": {"weight": 0.35, "cost": 4.0},
        "knn": {"weight": 0.15, "neighbours": 20},
    },
    "ensemble": {"trees": 3, "combiner": "weighted"},
    # Three trees train concurrently on two cores.
    "resources": {"cpus_per_worker": 0.66},
}
PRESETS: dict[str, Values] = {"paper": {}, "recommended": RECOMMENDED, "auto": RECOMMENDED}

TRIED: dict[str, dict[str, tuple[Any, ...]]] = {
    "linear_tree": {"members.linear_tree.flat": (False, True), "members.linear_tree.cost": (1.0, 4.0)},
    "knn": {"members.knn.neighbours": (10, 20, 50)},
}
"""Values that `auto` compares on held-out training documents of a small corpus, by kind of member and setting."""
TRIED_TOGETHER: dict[str, tuple[Any, ...]] = {"features.names_as_texts": (False, True)}
"""Values that are compared before, by the members of all these kinds, if labels have readable names.

Features belong here: the members of all kinds read them, so their rankings change with them.
"""
TRIED_IF_LARGE: dict[str, dict[str, tuple[Any, ...]]] = {
    "linear_tree": {
        "members.linear_tree.flat": (False, True),
        "members.linear_tree.cost": (0.25, 1.0, 4.0),
        "features.prefix_letters": (None, 5),
        "features.lead_words": (0, 12),
        "features.lead_letters": (None, 4),
    },
}
"""Likewise of a larger corpus."""
MOST_FLAT_LABELS = 20_000
"""Number of labels up to which linear classifiers without a tree are tried; their fitting time grows with it."""


def preset_values(preset: str, given: Values) -> Values:
    """Return the values of a preset; weights that the user gave are not fitted again, unless a combiner is given.

    The weight 0 only leaves a kind out.
    """
    values, members = PRESETS.get(preset, {}), given.get("members")
    weights = (
        [own.get("weight") for own in members.values() if isinstance(own, dict)] if isinstance(members, dict) else []
    )
    # The command line gives numbers as text, which pydantic reads later.
    is_positive = any(weight and str(weight).strip("0.") for weight in weights)
    if is_positive and values.get("ensemble", {}).get("combiner") == "weighted":
        return {**values, "ensemble": {**values["ensemble"], "combiner": "calibrated"}}
    return values


SMALL_DOCUMENTS, LARGE_DOCUMENTS, HUGE_DOCUMENTS = 1_000, 20_000, 200_000
FLAT_LABELS, FIRST_LEVEL_NODES = 512, 8_192
KNN_DOCUMENTS, KNN_WORDS = 100_000, 128
"""Number of training texts, and of words of each, among which kNN finds the nearest in about three milliseconds
(`benchmarks/results/knn-scale.json`). Among shorter texts the search is faster in proportion."""


@dataclass(frozen=True)
class CorpusSize:
    """Properties of a prepared corpus that the rules of `auto` use."""

    documents: int
    """Number of training documents."""
    labels: int
    """Number of labels with training documents."""
    words: float
    """Mean number of words of a training document."""
    has_names: bool
    """Whether the labels have readable names."""
    cluster_size: int
    """Most labels of a cluster."""


@dataclass(frozen=True)
class Choice:
    """One setting that `auto` chose."""

    key: str
    """Path of the setting, such as `tree.height`."""
    value: Any
    reason: str
    """One sentence for `axml-ray plan` to print."""


def choose(size: CorpusSize, given: Collection[str]) -> list[Choice]:
    """Choose settings for a corpus by the rules that `docs/presets.md` lists with their evidence.

    `given` are keys of settings or groups that the user gave; they are left alone.
    """
    choices = [*_tree(size), *_training(size), *_members(size)]
    return [choice for choice in choices if not is_given(choice.key, given)]


def knn_refusal(documents: int, words: float) -> str | None:
    """Return why a corpus has too many training texts of `words` words for the member `knn`; None if it has not."""
    relative = documents / KNN_DOCUMENTS * min(1.0, words / KNN_WORDS)
    if relative <= 1:
        return None
    return f"{documents:,} training texts: kNN would take about {3 * relative:,.0f} ms for each text that is tagged"


def tree_share(cpus: int, workers: int = 3) -> float:
    """Return the CPUs of a worker with which a number of workers train side by side."""
    return math.floor(cpus / workers) or math.floor(100 * cpus / workers) / 100


def is_given(key: str, given: Collection[str]) -> bool:
    """Return whether the user gave a setting or a group that it is in."""
    return any(key == each or key.startswith(f"{each}.") for each in given)


def _tree(size: CorpusSize) -> list[Choice]:
    labels = f"{size.labels:,} labels"
    if size.labels <= FLAT_LABELS or size.documents < SMALL_DOCUMENTS:
        few = labels if size.labels <= FLAT_LABELS else f"{size.documents:,} training texts"
        return [Choice("tree.height", 0, f"{few}: one network scores all labels, without a tree")]
    # All nodes of the first level are scored for each text; the paper's configurations have this number of them.
    height, nodes = 1, size.labels / size.cluster_size
    while nodes > FIRST_LEVEL_NODES:
        height, nodes = height + 1, nodes / size.cluster_size
    reason = f"clusters of at most {size.cluster_size}, the first level below about {FIRST_LEVEL_NODES:,} nodes"
    return [Choice("tree.height", height, f"{labels}: {reason}")]


def _training(size: CorpusSize) -> list[Choice]:
    texts = f"{size.documents:,} training texts"
    choices = []
    if size.documents <= LARGE_DOCUMENTS:
        choices.append(Choice("training.batch_size", 20, f"{texts}: small batches give more steps per epoch"))
    elif size.documents <= HUGE_DOCUMENTS:
        choices.append(Choice("training.epochs", (3, 2), f"{texts}: fewer epochs suffice"))
        choices.append(Choice("training.average_after", (1, 1), "weights are averaged from the second epoch on"))
    else:
        choices.append(Choice("training.epochs", (2, 2), f"{texts}: fewer epochs suffice"))
        choices.append(
            Choice("training.average_after", (1, 0), "weights are averaged early, since there are few epochs")
        )
        choices.append(Choice("training.batch_size", 200, f"{texts}: the paper's batch size of its large corpora"))
    if size.documents < SMALL_DOCUMENTS:
        choices.append(Choice("training.eval_every_steps", 20, f"{texts}: an epoch has few steps"))
        choices.append(Choice("ensemble.trees", 1, "networks without a tree differ only by their initial weights"))
    return choices


def _members(size: CorpusSize) -> list[Choice]:
    choices = []
    if size.has_names:
        choices.append(Choice("network.label_vector_init", "names", "labels have readable names to start attention at"))
    if (refusal := knn_refusal(size.documents, size.words)) is not None:
        choices.append(Choice("members.knn.weight", 0.0, refusal))
    return choices
