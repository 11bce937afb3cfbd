"""Texts whose words tell their labels, two label trees over them, and their TF-IDF features by the formula.

The arrays are small, so that members can be compared with literal float64 versions.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.tokenizer import UNKNOWN
from axml_ray.members.featurizer import Featurizer
from axml_ray.members.member import LoadInputs
from axml_ray.settings.members import FeatureSettings
from axml_ray.tree.label_tree import LabelTree

WORDS, LABELS, DOCUMENTS = 60, 24, 90
VOCABULARY = ["<padding>", "<unknown>", *(f"{('to', 'ant', 'beetle')[word % 3]}{word:02d}" for word in range(2, WORDS))]
WORDS_ALONE = FeatureSettings()
EVERYTHING = FeatureSettings(lead_words=2, lead_weight=2.5, prefix_letters=4, lead_letters=3)
"""Words that begin with "beet" have one more feature, those with "ant0" another; "to02" and the like have none. In the
lead they also have "bee", "eet" and so on, "ant", "nt0" and so on, or "to0" and "o02"."""
FLAT = LabelTree(label_order=np.arange(LABELS, dtype=np.int32), first_child=(np.array([0, LABELS]),))
DEEP = LabelTree.from_cuts(
    np.random.default_rng(5).permutation(LABELS), [np.array([0, 8, 16, 24]), np.array([0, 2, 8, 12, 16, 20, 23, 24])]
)


def small_texts() -> tuple[Ragged, Ragged]:
    """Word ids and label ids of the documents; some labels are beyond the trained ones."""
    random = np.random.default_rng(0)
    labels = [np.unique(random.integers(0, LABELS + 2, random.integers(1, 4))) for _ in range(DOCUMENTS)]
    texts = [np.concatenate([2 + 2 * row % 50, random.integers(1, WORDS, random.integers(0, 9))]) for row in labels]
    return Ragged.from_rows(texts), Ragged.from_rows(labels)


def inputs(featurizer: Featurizer | None = None, labels: int = LABELS, words: int = WORDS) -> LoadInputs:
    """What a member is loaded with."""
    return LoadInputs(labels=labels, words=words, featurizer=featurizer)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """All arrays of a safetensors file and its metadata, to be damaged and written again."""
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def literal_counts(text: Any, settings: FeatureSettings) -> Counter[str]:
    """How often a text has each word, each prefix ("^" before it) and each run of letters ("~")."""
    counts: Counter[str] = Counter()
    for place, token in enumerate(text):
        if token <= UNKNOWN:
            continue
        word, times = VOCABULARY[token], settings.lead_weight if place < settings.lead_words else 1
        counts[word] += times
        if settings.prefix_letters is not None and len(word) > settings.prefix_letters:
            counts[f"^{word[: settings.prefix_letters]}"] += times
        if settings.lead_letters is not None and place < settings.lead_words and len(word) > settings.lead_letters:
            for begin in range(len(word) - settings.lead_letters + 1):
                counts[f"~{word[begin : begin + settings.lead_letters]}"] += 1
    return counts


def literal_rows(tokens: Ragged, training: Ragged, settings: FeatureSettings) -> np.ndarray:
    """float64 [N, F + 1], TF-IDF by its formula: words, prefixes and runs by the alphabet, and the bias's column."""
    known = [literal_counts(text, settings) for text in training]
    prefixes = {f"^{word[:4]}" for word in VOCABULARY[2:] if settings.prefix_letters and len(word) > 4}
    runs = {f"~{word[i : i + 3]}" for word in VOCABULARY[2:] if settings.lead_letters for i in range(len(word) - 2)}
    columns = {name: column for column, name in enumerate([*VOCABULARY, *sorted(prefixes), *sorted(runs)])}
    frequency = Counter(name for counts in known for name in counts)
    rows = np.zeros((len(tokens), len(columns) + 1))
    for row, text in zip(rows, tokens, strict=True):
        for name, times in literal_counts(text, settings).items():
            row[columns[name]] = (1 + np.log(times)) * (1 + np.log((len(training) + 1) / (frequency[name] + 1)))
        row /= np.linalg.norm(row) or 1
        row[-1] = 1
    return rows
