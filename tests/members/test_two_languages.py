"""Members on texts in two languages. Run: pytest tests/members/test_two_languages.py"""

import numpy as np
import pytest

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.corpus.text.translation import Translation
from axml_ray.members.featurizer import Featurizer
from axml_ray.members.knn import NearestNeighbours
from axml_ray.members.label_names import LabelNames
from axml_ray.members.linear_fit import fit_classifiers
from axml_ray.members.linear_tree import LinearTree
from axml_ray.members.name_trie import Trie
from axml_ray.settings.members import FeatureSettings, LinearTreeSettings
from axml_ray.tree.label_tree import LabelTree

VOCABULARY = ["<padding>", "<unknown>", "und", "wal", "hai", "haus", "and", "whale", "shark", "house"]
TRANSLATION = Translation(
    Ragged.from_rows([[], [], [], [7], [8], [9], [], [], [], []]), np.array([0, 0, 1, 1, 1, 1, -1, -1, -1, -1], np.int8)
)
FLAT = LabelTree(label_order=np.arange(3, dtype=np.int32), first_child=(np.array([0, 3]),))
TOKENS = Ragged.from_rows([[2, 3], [2, 3, 2], [3, 2], [2, 4], [6, 8], [6, 9], [9, 6, 6]])
TRUTH = Ragged.from_rows([[0], [0], [0], [1], [1], [2], [2]])
"""Label 0 is of whales, and has German texts alone; 1 of sharks, in both; 2 of houses, in English."""
NEW = Ragged.from_rows([[6, 7], [2, 5]])
"""and whale; und haus"""


def featurizer_with(translation: Translation | None) -> Featurizer:
    return Featurizer.fit(TOKENS, VOCABULARY, FeatureSettings(), translation)


@pytest.mark.parametrize(("translation", "is_found"), [(TRANSLATION, True), (None, False)])
def test_linear_trees_find_a_label_in_the_language_that_it_has_no_text_in(translation, is_found) -> None:
    featurizer = featurizer_with(translation)
    weights = fit_classifiers(FLAT, featurizer.matrix(TOKENS), TRUTH, LinearTreeSettings())
    best = LinearTree(FLAT, weights, featurizer).rank(TextViews(NEW, translation), 1).labels[:, 0].tolist()
    assert (best == [0, 2]) == is_found


@pytest.mark.parametrize(("translation", "is_found"), [(TRANSLATION, True), (None, False)])
def test_similar_texts_are_found_in_the_other_language(translation, is_found) -> None:
    featurizer = featurizer_with(translation)
    member = NearestNeighbours.of(featurizer.matrix(TOKENS), TRUTH, 3, len(TOKENS), featurizer)
    scores = member.score(TextViews(NEW, translation), np.array([0, 2]))
    assert (scores[0, 0] > 0, scores[1, 1] > 0) == (is_found, is_found)


def test_names_are_found_in_translated_texts() -> None:
    trie = Trie.of(Ragged.from_rows([[8]]), np.array([1], np.int32), np.arange(10, dtype=np.int32))
    names = LabelNames.of(trie, TRANSLATION.translated(TOKENS), TRUTH, 3)
    assert names.named[1] == 2  # a German text and an English one
    shark = Ragged.from_rows([[2, 4]])  # "und hai"
    assert names.rank(TextViews(shark, TRANSLATION), 1).labels.tolist() == [[1]]
    assert names.rank(TextViews(shark), 1).labels.tolist() == [[-1]]
