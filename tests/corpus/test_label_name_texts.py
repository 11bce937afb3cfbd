"""The names of labels as training texts. Run: pytest tests/corpus/test_label_name_texts.py"""

import numpy as np
from label_indexes import index_of

from axml_ray.corpus.labels.label_name_texts import name_texts, named_labels
from axml_ray.corpus.store import Split
from axml_ray.corpus.text.tokenizer import Tokenizer

COUNTS = {"n1": 3, "n2": 2, "n3": 1}
TOKENIZER = Tokenizer.from_words(["whale", "shark", "fish", "n2", "deep", "sea"])


def words(split: Split) -> list[list[str]]:
    return [[TOKENIZER.words[i] for i in split.tokens[row]] for row in range(len(split))]


def test_each_trained_label_that_has_a_name() -> None:
    index = index_of(COUNTS, ["n4"], {"n1": "Whale", "n3": "Shark fish, deep sea", "n4": "Fish"})
    found = name_texts(index, TOKENIZER, max_tokens=3)
    assert words(found) == [["whale"], ["shark", "fish", "deep"]]
    assert found.labels.padded().tolist() == [[0], [2]]
    assert (found.labels.values.dtype, found.labels.offsets.dtype) == (np.int32, np.int64)


def test_labels_are_their_own_names_where_none_are_given() -> None:
    found = name_texts(index_of(COUNTS), TOKENIZER, 9)
    assert words(found) == [["n2"]]  # nothing is known of the others
    assert found.labels.padded().tolist() == [[1]]


def test_no_label_is_named_in_words_of_the_vocabulary() -> None:
    found = name_texts(index_of({"n1": 3}), TOKENIZER, 9)
    assert (len(found.tokens), len(found.labels)) == (0, 0)


def test_where_some_labels_have_names_the_others_have_none() -> None:
    assert named_labels(index_of(COUNTS, ["n4"], {"n2": "Fish", "n4": "Shark"})) == [1]
    assert named_labels(index_of(COUNTS, ["n4"], {"n4": "Shark"})) == [0, 1, 2]
