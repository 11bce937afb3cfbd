"""Uses the readable names of labels as additional training texts, which helps labels with few documents.

Not in the paper.
"""

import numpy as np

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.store import Split
from axml_ray.corpus.text.tokenizer import UNKNOWN, Tokenizer


def named_labels(index: LabelIndex) -> list[int]:
    """Return the trained labels that have a name; without any names, all of them, as each label is its own name."""
    trained = range(index.trained)
    return [label for label in trained if index.names[label] != index.labels[label]] or list(trained)


def name_texts(index: LabelIndex, tokenizer: Tokenizer, max_tokens: int) -> Split:
    """Return the names of the trained labels, cut to `max_tokens` words, as documents, each with its label.

    Names without a word of the vocabulary are omitted.
    """
    named = named_labels(index)
    labels = Ragged(np.array(named, dtype=np.int32), np.arange(len(named) + 1))
    texts = Split(tokenizer.encode([index.names[label] for label in named], max_tokens), labels)
    has_known_word = np.maximum.reduceat(texts.tokens.values, texts.tokens.offsets[:-1]) > UNKNOWN
    return texts.take(np.flatnonzero(has_known_word))
