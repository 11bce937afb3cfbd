"""A label's name as one more training text of it: a label of few texts is known by its name above all.

Not in the paper.
"""

import numpy as np

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.store import Split
from axml_ray.corpus.tokenizer import UNKNOWN, Tokenizer
from axml_ray.ragged import Ragged


def name_texts(index: LabelIndex, tokenizer: Tokenizer, max_tokens: int) -> Split:
    """The names of the trained labels as documents, each of its own label.

    A label is its own name where the corpus was given no names; where it was, labels without one are left out, as are
    names without a word of the vocabulary.

    Args:
        index: labels and their names.
        tokenizer: of the corpus.
        max_tokens: words of a name that are read.
    """
    trained = range(index.trained)
    named = [label for label in trained if index.names[label] != index.labels[label]] or list(trained)
    labels = Ragged(np.array(named, dtype=np.int32), np.arange(len(named) + 1))
    texts = Split(tokenizer.encode([index.names[label] for label in named], max_tokens), labels)
    known = np.maximum.reduceat(texts.tokens.values, texts.tokens.offsets[:-1]) > UNKNOWN
    return texts.take(np.flatnonzero(known))
