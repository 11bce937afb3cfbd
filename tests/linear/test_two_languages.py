"""What classifiers make of texts in two languages. Run: pytest tests/linear/test_two_languages.py"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from axml_ray.linear.classifiers import LinearTree
from axml_ray.linear.fitting import fit_linear
from axml_ray.linear.name_matches import NameMatches, Trie
from test_linear import FLAT, LABELS

from axml_ray.corpus.translation import Translation
from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings

VOCABULARY = ["<padding>", "<unknown>", "und", "wal", "hai", "haus", "and", "whale", "shark", "house"]
TWO_SIDES = np.array([0, 0, 1, 1, 1, 1, -1, -1, -1, -1], np.int8)


@pytest.fixture(scope="module")
def texts() -> tuple[Ragged, Ragged]:
    """Label 0 is of whales, and has German texts alone; 1 of sharks, in both; 2 of houses, in English."""
    tokens = [[2, 3], [2, 3, 2], [3, 2], [2, 4], [6, 8], [6, 9], [9, 6, 6]]
    return Ragged.from_rows(tokens), Ragged.from_rows([[0], [0], [0], [1], [1], [2], [2]])


def test_a_label_is_found_in_the_language_that_it_has_no_text_in(texts: tuple[Ragged, Ragged], tmp_path: Path) -> None:
    translation = Translation(Ragged.from_rows([[], [], [], [7], [8], [9], [], [], [], []]), TWO_SIDES)
    with_it, without = (
        fit_linear(FLAT, *texts, VOCABULARY, LinearSettings(weight=0.5), 0, one) for one in (translation, None)
    )
    asked = Ragged.from_rows([[6, 7], [2, 5]])  # "and whale", "und haus"
    best = with_it.find(with_it.see(asked), 1)[0][:, 0].tolist()
    assert best == [0, 2] and without.find(without.see(asked), 1)[0][:, 0].tolist() != best
    assert not with_it.sees_like(without) and not without.sees_like(with_it) and with_it.sees_like(with_it)
    with_it.save(tmp_path / "linear.safetensors", "mark")
    again = LinearTree.load(tmp_path / "linear.safetensors", LABELS, translation)
    assert again.sees_like(with_it)
    assert np.array_equal(again.score(again.see(asked), np.arange(3)), with_it.score(with_it.see(asked), np.arange(3)))
    names = Trie.of(Ragged.from_rows([[8]]), np.array([1], np.int32), np.arange(10, dtype=np.int32))
    matches = NameMatches.fit(names, translation.translated(texts[0]), texts[1], LABELS, 1.0)
    assert matches.named[1] == 2  # a German text and an English one
    beside = replace(with_it, names=matches)
    assert beside.find(beside.see(Ragged.from_rows([[2, 4]])), 1)[0].tolist() == [[1]]  # "und hai" names the shark


def test_classifiers_without_what_they_were_fitted_with(texts: tuple[Ragged, Ragged], tmp_path: Path) -> None:
    translation, path = Translation(Ragged.from_rows([[]] * 10), TWO_SIDES), tmp_path / "linear.safetensors"
    fit_linear(FLAT, *texts, VOCABULARY, LinearSettings(weight=0.5), 0, translation).save(path, "mark")
    with pytest.raises(ValueError, match="fitted with a dictionary"):
        LinearTree.load(path, LABELS)
    fit_linear(FLAT, *texts, VOCABULARY, LinearSettings(weight=0.5)).save(path, "mark")
    with pytest.raises(ValueError, match="fitted without a dictionary"):
        LinearTree.load(path, LABELS, translation)
