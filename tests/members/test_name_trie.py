"""Names found in texts against their definition. Run: pytest tests/members/test_name_trie.py"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_indexes import index_of
from members.name_tries import TRAINED, Names, as_features, literal_pairs, names_of, texts_of, trie_of

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.tokenizer import Tokenizer
from axml_ray.members.name_trie import LEAD_WORDS, Pairs, build_trie, check_trie, numbered, stemmed


@given(names_of, texts_of)
def test_names_are_found(names: Names, texts: list[list[int]]) -> None:
    pairs = Pairs.of(trie_of(names), Ragged.from_rows(texts), TRAINED)
    found = as_features(pairs)
    assert found == literal_pairs(names, texts) and list(found) == sorted(found)


@given(names_of, texts_of, st.integers(0, 1 << 30))
def test_a_pair_is_true_where_the_document_has_the_label(names: Names, texts: list[list[int]], seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = [np.flatnonzero(random.random(TRAINED + 1) < 0.4).tolist() for _ in texts]
    pairs = Pairs.of(trie_of(names), Ragged.from_rows(texts), TRAINED)
    expected = [label in labels[row] for row, label in zip(pairs.documents, pairs.labels, strict=True)]
    assert pairs.true(Ragged.from_rows(labels)).tolist() == expected


def test_lead_and_whole() -> None:
    names = [(0, [1]), (1, [1, 4]), (2, [5])]
    text = [5] * LEAD_WORDS + [1, 4, 5, 2, 1]
    found = as_features(Pairs.of(trie_of(names), Ragged.from_rows([text[:-2], text]), TRAINED))
    assert found[0, 0] == (False, 1, False, False, LEAD_WORDS + 3)  # only inside the longer name
    assert found[1, 0] == (False, 2, False, True, LEAD_WORDS + 5)
    assert found[0, 1] == (False, 1, True, True, LEAD_WORDS + 3)
    assert found[0, 2] == (True, LEAD_WORDS + 1, False, True, LEAD_WORDS + 3)


@given(names_of)
def test_a_trie_passes_its_own_check(names: Names) -> None:
    trie = trie_of(names)
    check_trie(trie, 6, TRAINED)
    with pytest.raises(ValueError, match="stems of 5 words"):
        check_trie(trie, 5, TRAINED)


class TestNamesOfACorpus:
    WORDS = ("whale", "whales", "shark", "n2", "deep", "sea", "mathematics")
    TOKENIZER = Tokenizer.from_words(WORDS)

    def found(self, names: dict[str, str], text: str, stemmer: str | None = "english") -> list[int]:
        index = index_of({"n1": 3, "n2": 2, "n3": 1}, ["n4"], names)
        trie = build_trie(index, self.TOKENIZER, 20, stemmer)
        return Pairs.of(trie, self.TOKENIZER.encode([text], 20), index.trained).labels.tolist()

    def test_plurals_are_found_by_stems(self) -> None:
        names = {"n1": "Whales", "n3": "Deep sea"}
        assert self.found(names, "a whale of the deep sea") == [0, 2]
        assert self.found(names, "a whale of the deep sea", None) == [2]

    def test_a_name_in_another_inflection_than_the_texts_is_found(self) -> None:
        names = {"n1": "Sharks", "n3": "Seas of whale"}
        assert self.found(names, "a shark") == [0]
        assert self.found(names, "a shark", None) == []
        assert self.found({"n1": "Sharks deep", "n3": "Seas"}, "the shark deep in a sea of sharks") == [0, 2]

    def test_in_another_inflection_where_unknown_words_are_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "TOKENIZER", Tokenizer.from_words([*self.WORDS, "s", "##s", "##hark"], subwords=True))
        assert self.found({"n1": "Sharks"}, "a shark") == [0]

    def test_names_that_are_not_looked_for(self) -> None:
        names = {"n1": "Whale (Mathematics)", "n2": "Unheard-of shark", "n4": "Shark"}
        assert self.found(names, "whale shark unheard of shark") == [0]  # n2 has unknown words, n4 isn't trained

    def test_labels_are_their_own_names_where_none_are_given(self) -> None:
        assert self.found({}, "n2 deep") == [1]

    def test_stems(self) -> None:
        assert numbered(stemmed(["", "sea", "seas", "häuser"], "english")).tolist() == [0, 1, 1, 2]
        assert numbered(stemmed(["sea", "seas"], None)).tolist() == [0, 1]
