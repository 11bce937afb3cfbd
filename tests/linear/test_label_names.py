import numpy as np
from axml_ray.linear.fitting import fit_linear
from axml_ray.linear.label_names import name_texts

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.store import Split
from axml_ray.corpus.tokenizer import Tokenizer
from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings
from axml_ray.tree.label_tree import LabelTree

COUNTS = {"n1": 3, "n2": 2, "n3": 1}
TOKENIZER = Tokenizer.of_words(["whale", "shark", "fish", "n2", "deep", "sea"])


def words(split: Split) -> list[list[str]]:
    return [[TOKENIZER.words[i] for i in split.tokens[row]] for row in range(len(split))]


def test_each_trained_label_that_has_a_name() -> None:
    index = LabelIndex.build(COUNTS, ["n4"], {"n1": "Whale", "n3": "Shark fish, deep sea", "n4": "Fish"})
    found = name_texts(index, TOKENIZER, max_tokens=3)
    assert words(found) == [["whale"], ["shark", "fish", "deep"]]
    assert found.labels.padded().tolist() == [[0], [2]]
    assert (found.labels.values.dtype, found.labels.offsets.dtype) == (np.int32, np.int64)


def test_labels_are_their_own_names_where_none_are_given() -> None:
    found = name_texts(LabelIndex.build(COUNTS), TOKENIZER, 9)
    assert words(found) == [["n2"]]  # nothing is known of the others
    assert found.labels.padded().tolist() == [[1]]


def test_a_label_is_found_by_its_name_though_no_text_holds_it() -> None:
    index = LabelIndex.build(COUNTS, names={"n1": "whale", "n2": "fish", "n3": "shark"})
    rows = [[2 + 4], [2 + 4], [2 + 4, 2 + 5], [2 + 5], [2 + 5], [2 + 5]]  # "deep" and "sea" tell nothing of "shark"
    train = Split(Ragged.from_rows(rows), Ragged.from_rows([[0], [0], [0], [1], [1], [2]]))
    flat = LabelTree(label_order=np.arange(3, dtype=np.int32), first_child=(np.array([0, 3]),))
    best = []
    for documents in (train, train.and_also(name_texts(index, TOKENIZER, 9))):
        linear = fit_linear(flat, documents.tokens, documents.labels, TOKENIZER.words, LinearSettings(weight=0.5))
        labels, _ = linear.find(linear.see(TOKENIZER.encode(["the shark"], 9)), 1)
        best.append(labels[0, 0])
    assert best[1] == 2 != best[0]
