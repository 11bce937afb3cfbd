import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from axml_ray.corpus.text import words
from axml_ray.corpus.text.composition import composed
from axml_ray.corpus.text.tokenizer import SEPARATOR, UNKNOWN, Segmentation, Tokenizer, split_words, splitter
from axml_ray.corpus.text.words import split_texts


def split(texts: list[str], max_tokens: int = 500, segmentation: Segmentation = "words") -> list[list[str]]:
    """The words of each text, put together from what a block keeps."""
    found = split_texts(texts, max_tokens, segmentation)
    names, rows, begin = found.vocabulary.to_pylist(), [], 0
    assert len(set(names)) == len(names)
    for length in found.lengths.tolist():
        rows.append([names[i] for i in found.ids[begin : begin + length]])
        begin += length
    assert begin == len(found.ids)
    return rows


def test_words_of_a_block() -> None:
    texts = ["The CAT, the", "", "don't /SEP/ x_2", "½²a b", "naïve İx 日本", "a\1b", "in\xadfor\xad\nma\u200btion"]
    assert split(texts) == [
        ["the", "cat", "the"],
        [],
        ["don", "t", SEPARATOR, "x_2"],
        ["½²a", "b"],
        ["naïve", "i̇x", "日本"],
        ["a", "b"],
        ["informa", "tion"],
    ]


def test_it_is_known_which_texts_were_cut() -> None:
    found = split_texts(["a b c d", "e", "é f g"], 2)
    assert found.vocabulary.to_pylist() == ["a", "b", "e", "é", "f"]
    assert (found.lengths.tolist(), found.is_cut.tolist()) == ([2, 1, 2], [True, False, True])


def test_nothing() -> None:
    assert split([]) == []
    assert split(["", "."]) == [[], []]


# Parts of texts: adjacent ones may form one word, and a text may contain the letter that represents the separator.
PIECES = [
    "Cat",
    " ",
    "/SEP/",
    "/SEP",
    "sep",
    "/",
    "İ",
    "ΟΔΟΣ",
    "e\u0301",
    "\u0301",
    "‿",
    "_",
    "²",
    "Ⅷ",
    "日本",
    "\1",
    "\n",
    "\xad",
    "\u200d",
    "\u200b",
    "t",
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(st.characters(exclude_categories=["Cs"]), max_size=3)))


@settings(max_examples=300)
@example(texts=["T\xad\nİ", "İ\xad\u0301"], chunk=40, most=5)  # what is invisible goes before a letter becomes two
@given(texts=st.lists(TEXTS.map("".join), max_size=6), chunk=st.integers(1, 40), most=st.integers(1, 5))
def test_a_block_and_a_text_are_split_alike(texts: list[str], chunk: int, most: int) -> None:
    texts = [composed(text.replace("\0", " ")) for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "CHUNK_CHARACTERS", chunk)
        assert split(texts, most) == [split_words(text)[:most] for text in texts]
        assert split(texts, most, "characters") == [split_words(text, "characters")[:most] for text in texts]


def test_one_character_alone_becomes_two() -> None:
    points = [chr(point) for point in range(1, 0x110000) if not 0xD800 <= point < 0xE000]
    points = [letter for letter in points if composed(letter) == letter]
    lowered = splitter("words").lower(points)
    assert [letter for letter, lower in zip(points, lowered, strict=True) if len(lower) > 1] == ["İ"]


@settings(max_examples=300)
@given(
    texts=st.lists(TEXTS.map("".join), min_size=1, max_size=4),
    segmentation=st.sampled_from(["words", "characters"]),
    keep=st.integers(0, 3),
)
def test_serving_writes_each_word_as_preparation_does(texts: list[str], segmentation: Segmentation, keep: int) -> None:
    """`encode_words` of words that preparation has, and `encode` of whole texts, whatever the vocabulary lacks."""
    texts = [composed(text.replace("\0", " ")) for text in texts]
    rows = split(texts, 500, segmentation)
    known = sorted({word for row in rows for word in row})[:: keep + 1]
    letters = sorted({letter for row in rows for word in row if word != SEPARATOR for letter in word} - set(known))
    tokenizer = Tokenizer.from_words([*known, *letters], segmentation, subwords=True)
    encoded = tokenizer.encode(texts, 5_000)
    for text, row in enumerate(rows):
        assert encoded[text].tolist() == (tokenizer.encode_words(row).values.tolist() or [UNKNOWN])


@given(
    texts=st.lists(TEXTS.map("".join), min_size=1, max_size=4), segmentation=st.sampled_from(["words", "characters"])
)
def test_serving_gives_the_words_of_preparation(texts: list[str], segmentation: Segmentation) -> None:
    texts = [composed(text.replace("\0", " ")) for text in texts]
    rows = split(texts, 500, segmentation)
    vocabulary = sorted({word for row in rows for word in row})
    tokenizer = Tokenizer.from_words(vocabulary, segmentation)
    encoded = tokenizer.encode(texts, 500)
    assert [[tokenizer.words[i] for i in encoded[row]] for row in range(len(texts))] == [
        row or ["<unknown>"] for row in rows
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Die Universitätsbibliothek Köln", ["die", "universitätsbibliothek", "köln"]),
        ("Väestörekisterikeskuksen työntekijöille", ["väestörekisterikeskuksen", "työntekijöille"]),
        ("机器学习 and GPU并行", ["机", "器", "学", "习", "and", "gpu", "并", "行"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー"]),
        ("ภาษา", ["ภ", "า", "ษ", "า"]),
        ("題名 /SEP/ 本文", ["題", "名", SEPARATOR, "本", "文"]),
    ],
)
def test_segmentation_by_characters(text: str, expected: list[str]) -> None:
    assert split_words(text, "characters") == expected
    assert split([text], 500, "characters") == [expected]
