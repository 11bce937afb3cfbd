"""The readable names of labels as training texts: a label of few texts is known by its name above all.

Not in the paper.
"""

import numpy as np

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.store import Split
from axml_ray.corpus.tokenizer import UNKNOWN, Tokenizer
from axml_ray.ragged import Ragged


def named_labels(index: LabelIndex) -> list[int]:
    """The trained labels that have a name. A label is its own name where the corpus was given no names."""
    trained = range(index.trained)
    return [label for label in trained if index.names[label] != index.labels[label]] or list(trained)


def name_texts(index: LabelIndex, tokenizer: Tokenizer, max_tokens: int) -> Split:
    """The names of the trained labels as documents, each of its own label; names without a word of the vocabulary are
    left out.

    Args:
        index: labels and their names, as of `named_labels`.
        tokenizer: of the corpus.
        max_tokens: words of a name that are read.
    """
    named = named_labels(index)
    labels = Ragged(np.array(named, dtype=np.int32), np.arange(len(named) + 1))
    texts = Split(tokenizer.encode([index.names[label] for label in named], max_tokens), labels)
    known = np.maximum.reduceat(texts.tokens.values, texts.tokens.offsets[:-1]) > UNKNOWN
    return texts.take(np.flatnonzero(known))
