"""Translations chosen by labels against their formula. Run: pytest tests/corpus/test_translation.py"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.core.files import save_tensors
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text import translation as module
from axml_ray.corpus.text.dictionary import Dictionary
from axml_ray.corpus.text.tokenizer import UNKNOWN
from axml_ray.corpus.text.translation import Translation
from axml_ray.members.featurizer import Featurizer
from axml_ray.settings import FeatureSettings

WORDS, TRAINED = 12, 4
SIDES = np.array([0, 0, 1, 1, 1, 0, 0, -1, -1, -1, -1, 0], np.int8)


def dictionary(candidates: dict[int, list[list[int]]], sides: np.ndarray = SIDES) -> Dictionary:
    rows = [candidates.get(word, []) for word in range(len(sides))]
    of_word = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    return Dictionary(Ragged.from_rows([one for row in rows for one in row]), of_word, sides)


def is_foreign(text: list[int]) -> bool:
    return sum(int(SIDES[word]) for word in text) > 0


def literal_choice(
    candidates: dict[int, list[list[int]]], texts: list[list[int]], labels: list[list[int]]
) -> dict[int, float]:
    """The best score of each word, float64, by the module's formulas."""
    every = [label for row in labels for label in row if label < TRAINED]

    def profile(word: int, foreign: bool) -> tuple[np.ndarray, int]:
        held = [row for text, row in zip(texts, labels, strict=True) if is_foreign(text) == foreign and word in text]
        n = np.array([sum(label in row for row in held) for label in range(TRAINED)], dtype=np.float64)
        v = np.zeros(TRAINED)
        for label in np.flatnonzero(n):
            share = every.count(int(label)) / len(every)
            v[label] = math.sqrt(n[label]) * max(0, math.log(n[label] / (n.sum() * share)))
        return v / (np.linalg.norm(v) or 1), len(held)

    best = {}
    for word, rows in candidates.items():
        own, documents = profile(word, True)
        scores = [
            np.mean([float(own @ profile(other, False)[0]) if other > UNKNOWN else 0.0 for other in row])
            * min(1, documents / 10)
            + 0.03 / (1 + rank)
            for rank, row in enumerate(rows)
        ]
        best[word] = [float(score) for score in scores]
    return best


texts_of = st.lists(st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=8), min_size=1, max_size=30)
candidates_of = st.dictionaries(
    st.integers(2, 6),
    st.lists(st.lists(st.integers(2, WORDS - 1), min_size=1, max_size=3), min_size=1, max_size=3, unique_by=tuple),
    max_size=5,
)


@given(candidates_of, texts_of, st.integers(0, 1 << 30), st.sampled_from([1, 3, 1 << 13]), st.integers(0, 30))
def test_choice(
    candidates: dict[int, list[list[int]]], texts: list[list[int]], seed: int, at_a_time: int, rare: int
) -> None:
    random = np.random.default_rng(seed)
    labels = [np.flatnonzero(random.random(TRAINED + 1) < 0.4).tolist() for _ in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_ROWS", at_a_time)
        patch.setattr(module, "COMMON_DOCUMENTS", rare)
        found = Translation.fit(dictionary(candidates), Ragged.from_rows(texts), Ragged.from_rows(labels), TRAINED)
    assert len(found.words) == WORDS
    foreign = [text for text in texts if is_foreign(text)]
    for word, scores in literal_choice(candidates, texts, labels).items():
        holding = sum(word in text for text in foreign)
        if holding > max(rare, 0.15 * len(foreign)):
            assert not len(found.words[word])
            continue
        chosen = candidates[word].index(found.words[word].tolist())
        assert scores[chosen] == pytest.approx(max(scores), abs=1e-5)
    assert found.words.lengths[[word for word in range(WORDS) if word not in candidates]].sum() == 0


@given(candidates_of, texts_of)
def test_documents_translated_and_counted(candidates: dict[int, list[list[int]]], texts: list[list[int]]) -> None:
    first = {word: rows[0] for word, rows in candidates.items()}
    translation = Translation(Ragged.from_rows([first.get(word, []) for word in range(WORDS)]), SIDES)
    tokens = Ragged.from_rows(texts)
    assert translation.in_first_language(tokens).tolist() == [is_foreign(text) for text in texts]
    expected = [
        [other for word in text for other in (first.get(word, [word]) if is_foreign(text) else [word])]
        for text in texts
    ]
    assert [row.tolist() for row in translation.translated(tokens)] == expected
    translated, places = translation.translated_with_positions(tokens)
    assert translated.values.tolist() == [word for row in expected for word in row]
    assert [np.count_nonzero(places == place) for place in range(len(tokens.values))] == [
        len(first.get(word, [word]) if is_foreign(text) else [word]) for text in texts for word in text
    ]
    assert (np.diff(places) >= 0).all()
    nothing = translation.translated(tokens.take(np.array([], np.int64)))
    assert len(nothing) == 0
    settings = FeatureSettings(lead_words=2, lead_weight=3.0)
    names = [f"w{word}" for word in range(WORDS)]
    counts = Featurizer.fit(tokens, names, settings, translation).counts(tokens).toarray()
    for row, text in zip(counts, texts, strict=True):
        literal = np.zeros(WORDS)
        for place, word in enumerate(text):
            times = 3 if place < 2 else 1
            if word > UNKNOWN:
                literal[word] += times
                for other in first.get(word, []) if is_foreign(text) else []:
                    literal[other] += times
        np.testing.assert_array_equal(row, literal)


TWO_SIDES = np.array([0, 0, 1, 1, 1, 1, -1, -1, -1, -1], np.int8)


def test_labels_choose_among_meanings() -> None:
    """The dictionary says first that a shark (word 4) is a house (9); ten texts know better."""
    tokens = Ragged.from_rows([[2, 3], [6, 8], [6, 9], [9, 6, 6], *[[2, 4]] * 10])
    labels = Ragged.from_rows([[0], [1], [2], [2], *[[1]] * 10])
    chosen = Translation.fit(dictionary({4: [[9], [8]]}, TWO_SIDES), tokens, labels, 3)
    assert chosen.words[4].tolist() == [8]


def test_a_file(tmp_path: Path) -> None:
    translation = Translation(Ragged.from_rows([[], [], [7], [8, 9], *[[]] * 6]), TWO_SIDES)
    path = tmp_path / "translation.safetensors"
    translation.save(path)
    again = Translation.load(path, 10)
    assert [row.tolist() for row in again.words] == [row.tolist() for row in translation.words]
    assert np.array_equal(again.sides, TWO_SIDES) and again.sides.dtype == np.int8
    whole = {"values": translation.words.values, "offsets": translation.words.offsets, "sides": TWO_SIDES}
    for changed in (
        {"values": whole["values"] + np.int32(3)},
        {"values": whole["values"].astype(np.int64)},
        {"offsets": whole["offsets"][:-1]},
        {"sides": TWO_SIDES[:-1]},
        {"sides": TWO_SIDES.astype(np.int32)},
        {"more": TWO_SIDES.copy()},
    ):
        save_tensors({name: torch.from_numpy(array) for name, array in {**whole, **changed}.items()}, path)
        with pytest.raises(ValueError, match=r"no translation|translation of"):
            Translation.load(path, 10)
