"""Dictionaries as they are written, and in a vocabulary's words. Run: pytest tests/corpus/test_dictionary.py"""

from pathlib import Path

import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.text.dictionary import MAX_CANDIDATES, Dictionary, read_dictionary, restrict_to_vocabulary

DING = """\
# Version of today
Haus {n}; Heim {n} [geh.] | Häuser {pl} :: house; home (dwelling) | houses
häuslich {adj}; Haus...  :: domestic
gehen {vi} /zu Fuß/ | er geht | ging :: to go; to walk | he goes
guten Tag! :: hello there
Ausland {n} :: places that are far away; abroad
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_dings_format(tmp_path: Path) -> None:
    found = read_dictionary(written(tmp_path / "de-en", DING))
    assert found == {
        "haus": [("house",), ("domestic",), ("home",)],  # first in one line or another, then second
        "heim": [("house",), ("home",)],
        "häuser": [("houses",)],
        "häuslich": [("domestic",)],
        "gehen": [("go",), ("walk",)],
        "ausland": [
            ("abroad",)
        ],  # the other is too long; "er geht" and "guten Tag" are two words, "ging" has no partner
    }


def test_tabs(tmp_path: Path) -> None:
    text = "\ufeffTalo\thouse\tbuilding\n\n# a comment\nkoira\tdog\ntalo\tbuilding\ntwo words\tx\nhyvä\t\n"
    assert read_dictionary(written(tmp_path / "fi.tsv", text)) == {
        "talo": [("building",), ("house",)],
        "koira": [("dog",)],
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"talo\thouse\nkoira dog\n", r"fi\.tsv:2: no entry of a dictionary; write a word, a tab"),
        (b"# nothing\n", "has no entry of a single word"),
        (b"talo\tb\xe4r\n", "cannot be read.*decode"),
        (None, "cannot be read.*No such file"),
    ],
)
def test_what_is_no_dictionary(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "fi.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=said):
        read_dictionary(path)


WORDS = [
    *("<padding>", "<unknown>", "strömung", "strömungen", "mechanik", "strömungsmechanik", "gift", "haus", "xmechanik"),
    *("fluid", "flow", "mechanics", "poison", "house", "the", "strömungs8mechanik"),
]
ENTRIES = {
    "strömung": [("flow",), ("unheard", "of"), ("fluid",), ("fluid", "flow")],
    "mechanik": [("mechanics",)],
    "gift": [("poison",)],
    "haus": [("mansion",)],
    "flow": [("the", "gift")],
}


def meanings(dictionary: Dictionary, word: str) -> list[str]:
    at = WORDS.index(word)
    rows = range(dictionary.of_word[at], dictionary.of_word[at + 1])
    return [" ".join(WORDS[i] for i in dictionary.candidates[row]) for row in rows]


def test_in_a_vocabulary() -> None:
    found = restrict_to_vocabulary(ENTRIES, WORDS, "german")
    assert meanings(found, "strömung") == ["flow", "fluid", "fluid flow"]
    assert meanings(found, "strömungen") == ["flow", "fluid", "fluid flow"]  # by its stem
    assert meanings(found, "strömungsmechanik") == ["flow mechanics", "fluid mechanics"]  # but for an s between
    for nothing in ("haus", "xmechanik", "strömungs8mechanik", "the", "<unknown>"):
        assert meanings(found, nothing) == []
    plain = restrict_to_vocabulary(ENTRIES, WORDS, None)
    assert meanings(plain, "strömungen") == [] and meanings(plain, "strömungsmechanik") == meanings(
        found, "strömungsmechanik"
    )
    sides = dict(zip(WORDS, found.sides.tolist(), strict=True))
    assert [sides[w] for w in ("strömung", "haus", "gift", "flow", "mechanics", "the")] == [1, 1, 0, 0, -1, -1]
    assert sides["<padding>"] == sides["strömungen"] == 0


def test_so_many_candidates_are_kept() -> None:
    words = ["<padding>", "<unknown>", "viel", *(f"w{number}" for number in range(20))]
    found = restrict_to_vocabulary({"viel": [(word,) for word in words[3:]]}, words, "german")
    assert found.of_word.tolist() == [0, 0, 0, *[MAX_CANDIDATES] * 21]
    assert found.candidates.values.tolist() == list(range(3, 3 + MAX_CANDIDATES))
