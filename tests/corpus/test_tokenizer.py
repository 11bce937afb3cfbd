import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axml_ray.corpus.records.records import storable
from axml_ray.corpus.text import tokenizer as tokenizer_module
from axml_ray.corpus.text.tokenizer import (
    PADDING,
    SEPARATOR,
    UNKNOWN,
    Segmentation,
    Tokenizer,
    beginning,
    split_words,
    splitter,
)


def ids(tokenizer: Tokenizer, text: str, max_tokens: int = 500) -> list[int]:
    rows = tokenizer.encode([text], max_tokens)
    assert (rows.values.dtype, rows.offsets.dtype) == (np.int32, np.int64)
    return rows[0].tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The CAT, the cat!", ["the", "cat", "the", "cat"]),
        ("don't e-mail snake_case x2 42", ["don", "t", "e", "mail", "snake_case", "x2", "42"]),
        ("Ünïcode ΣΊΣΥΦΟΣ Ёлка", ["ünïcode", "σίσυφοσ", "ёлка"]),
        ("日本語、テスト 한국어 العربية हिन्दी", ["日本語", "テスト", "한국어", "العربية", "हिन्दी"]),
        ("e\u0301te\u0301 q\u0301", ["été", "q\u0301"]),  # marks are composed with their letter, or stay in their word
        ("... --- !? € ☃ <b>", ["b"]),
        ("❤\ufe0f \u0301 \u203f", []),  # marks and connectors alone are no words
        ("_ a", ["_", "a"]),
        ("\ufeffCo\xadop\xad\n erative می\u200cخواهم x\u2060y a\u200bb", ["cooperative", "میخواهم", "xy", "a", "b"]),
        ("Rah\xad Do; \xad, e\xad\u0301", ["rah", "do", "é"]),  # a capital letter begins a word
        ("A Title /SEP/ The BODY", ["a", "title", SEPARATOR, "the", "body"]),
        ("a/SEP/b /SEP//SEP/", ["a", SEPARATOR, "b", SEPARATOR, SEPARATOR]),
        ("/sep/ SEP", ["sep", "sep"]),
        ("<unknown> <padding>", ["unknown", "padding"]),
        ("", []),
        (" \n\t", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_the_first_two_ids_pad_and_stand_for_unknown_words() -> None:
    tokenizer = Tokenizer.from_words(["cat", "dog"])
    assert (PADDING, UNKNOWN) == (0, 1)
    assert tokenizer.words == ["<padding>", "<unknown>", "cat", "dog"]
    assert len(tokenizer) == 4
    assert ids(tokenizer, "Dog bird CAT <padding> <unknown>") == [3, 1, 2, 1, 1]


def test_an_empty_text_is_one_unknown_word() -> None:
    tokenizer = Tokenizer.from_words(["a"])
    rows = tokenizer.encode(["", "...", "a", " "], 10)
    assert [row.tolist() for row in map(rows.__getitem__, range(4))] == [[1], [1], [2], [1]]
    assert len(tokenizer.encode([], 10)) == 0


def test_texts_are_cut() -> None:
    tokenizer = Tokenizer.from_words(["a", "b"])
    assert ids(tokenizer, "a, b a b a", max_tokens=3) == [2, 3, 2]
    assert ids(tokenizer, "a, b a", max_tokens=3) == [2, 3, 2]


def test_the_separator_is_one_word_that_keeps_its_case() -> None:
    tokenizer = Tokenizer.from_words([SEPARATOR, "sep", "a"])
    assert tokenizer.words[2:] == [SEPARATOR, "sep", "a"]
    assert ids(tokenizer, "A /SEP/ a/SEP/sep /sep/") == [4, 2, 4, 2, 3, 3]


def test_the_separator_may_be_too_rare() -> None:
    tokenizer = Tokenizer.from_words(["a"])
    assert len(tokenizer) == 3
    assert ids(tokenizer, "a /SEP/ a") == [2, 1, 2]


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer.from_words([SEPARATOR, "cat", "日本語", "i̇x"])
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.words == tokenizer.words
    assert len(loaded) == len(tokenizer)
    for text in ("Cat /SEP/ 日本語 İx dog", "", "…"):
        assert ids(loaded, text) == ids(tokenizer, text)
    again = tmp_path / "again.json"
    Tokenizer.load(path).save(again)
    assert again.read_bytes() == path.read_bytes()


texts = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(["Cat", " ", "/SEP/", "sep", "/", "İstanbul", "ΟΔΟΣ", "e\u0301", "\xad", "\u200d"]),
    )
).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=texts, vocabulary=st.lists(texts, max_size=3), keep=st.integers(0, 7))
def test_splitting_and_encoding_agree(text: str, vocabulary: list[str], keep: int) -> None:
    all_words = sorted({word for each in (text, *vocabulary) for word in split_words(each)})
    tokenizer = Tokenizer.from_words([word for number, word in enumerate(all_words) if number % 8 <= keep])
    id_of = {word: i for i, word in enumerate(tokenizer.words)}
    words = split_words(text)
    encoded = ids(tokenizer, text, max_tokens=10_000)
    assert len(encoded) == max(1, len(words))
    # A separator that isn't in the vocabulary may be read as the word "sep".
    allowed = [
        {id_of.get(word, UNKNOWN)} | ({id_of.get("sep", UNKNOWN)} if word == SEPARATOR else set()) for word in words
    ]
    assert all(i in may for i, may in zip(encoded, allowed or [{UNKNOWN}], strict=True))
    for i, word in zip(encoded, words, strict=bool(words)):
        if word in id_of:
            assert i == id_of[word]


def in_pieces(word: str, known: dict[str, int]) -> list[int]:
    """The longest known words that a word is made of, taken from its beginning, by definition."""
    found = []
    while word:
        begin = next((word[:end] for end in range(len(word), 0, -1) if word[:end] in known), None)
        if begin is None:
            return [UNKNOWN]
        found.append(known[begin])
        word = word[len(begin) :]
    return found


@settings(max_examples=200)
@given(
    vocabulary=st.sets(st.text("abcß日", min_size=1, max_size=4), max_size=8),
    words=st.lists(st.text("abcß日", min_size=1, max_size=9), max_size=5),
    most=st.integers(1, 12),
)
def test_subwords_are_the_longest_that_a_word_begins_with(vocabulary: set[str], words: list[str], most: int) -> None:
    tokenizer = Tokenizer.from_words(sorted(vocabulary), subwords=True)
    known = {word: i for i, word in enumerate(tokenizer.words) if i > UNKNOWN}
    expected = [i for word in words for i in in_pieces(word, known)][:most] or [UNKNOWN]
    text = " ".join(words)
    assert ids(tokenizer, text, most) == expected
    found, spans = tokenizer.encode_with_spans(text, most)
    assert found.tolist() == expected
    for number, (start, end) in zip(expected, spans, strict=bool(words)):
        assert number == UNKNOWN or known[text[start:end]] == number


def test_pieces_of_one_character_stand_there_once() -> None:
    tokenizer = Tokenizer.from_words(["i", "\u0307", "stan", "x"], subwords=True)
    found, spans = tokenizer.encode_with_spans("İstan x", 9)
    assert [tokenizer.words[i] for i in found] == ["i", "\u0307", "stan", "x"]
    assert spans == [(0, 1), (1, 1), (1, 5), (6, 7)]


def test_compounds_share_the_words_that_they_are_made_of(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_words(["gestaltungs", "zugewinn", "zu", SEPARATOR], subwords=True)
    tokenizer.save(tmp_path / "t.json")
    for one in (tokenizer, Tokenizer.load(tmp_path / "t.json")):
        (row,) = one.encode(["Gestaltungszugewinn /SEP/ x"], 9).padded()
        assert [one.words[i] for i in row] == ["gestaltungs", "zugewinn", SEPARATOR, "<unknown>"]


@given(st.text(max_size=60), st.integers(1, 8))
def test_spans_are_where_the_words_of_encode_stand(text, most):
    text = storable(text + " İstanbul ẞ " + SEPARATOR + " cat")
    tokenizer = Tokenizer.from_words(["cat", "i̇stanbul", SEPARATOR])
    found, spans = tokenizer.encode_with_spans(text, most)
    assert found.dtype == np.int32 and found.tolist() == tokenizer.encode([text], most)[0].tolist()
    assert len(spans) == len(found)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert spans == sorted(spans)
    known = {"cat": "cat", "i̇stanbul": "İstanbul", SEPARATOR: SEPARATOR}
    for number, (start, end) in zip(found.tolist(), spans, strict=True):
        word = tokenizer.words[number]
        assert number < 2 or text[start:end].lower() == known[word].lower()


def test_a_text_without_words_has_no_spans():
    found, spans = Tokenizer.from_words(["cat"]).encode_with_spans("...", 5)
    assert (found.tolist(), spans) == ([UNKNOWN], [])


# Long texts


def test_characters_that_are_counted_as_words_are_words() -> None:
    is_counted = re.compile(f"[{tokenizer_module._LETTERS}]")
    letters = [chr(point) for point in range(0x10FFFF) if is_counted.match(chr(point))]
    split = splitter("characters").split
    assert len(letters) > 70_000 and all(split(f"a{letter}b") == ["a", letter, "b"] for letter in letters)


LONG = [
    *"a .,;/_-é²Ⅷ日学กิ่ບກ်ក្ぁア本\u0301\u0338\u3099\n",
    "/SEP/",
    "İ",
    "word",
    "한국",
    "।",
    "हिन्दी",
    "\u3000",
    "‿",
    "\xad",
    "\u200d",
]


@settings(max_examples=300)
@given(
    text=st.lists(st.one_of(st.sampled_from(LONG), st.text(max_size=2)), max_size=40).map("".join),
    most=st.integers(1, 6),
    segmentation=st.sampled_from(["words", "characters"]),
)
def test_the_beginning_of_a_long_text_has_its_first_words(text: str, most: int, segmentation: Segmentation) -> None:
    text = storable(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "LONG_TEXT", 0)
        for cut in (beginning(text, most), beginning(text, most, segmentation)):
            assert text.startswith(cut)
            assert split_words(cut, segmentation)[:most] == split_words(text, segmentation)[:most]


@pytest.mark.parametrize("segmentation", ["words", "characters"])
def test_of_a_long_text_little_is_read(segmentation: Segmentation) -> None:
    assert len(beginning("some words, of a text " * 60_000, 500, segmentation)) < 5_000
    assert len(beginning("機械学習は、人工知能における研究課題の一つで。" * 60_000, 500, segmentation)) < 8_000
    assert beginning("short " * 500, 500, segmentation) == "short " * 500
    assert len(beginning("学習" * 60_000, 500, "characters")) == 500


@pytest.mark.processes
def test_memory_does_not_grow_with_texts() -> None:
    """Of 250 MB of texts, in which each has one object, encoding keeps the words that are read."""
    program = """
import resource
from axml_ray.corpus.text.tokenizer import Tokenizer
tokenizer = Tokenizer.from_words(["words"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = tokenizer.encode(["some words of a text, " * 60_000] * 190, 500)
assert len(rows.values) == 190 * 500
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 200
