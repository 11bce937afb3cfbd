"""Texts, labels and names in which a letter and its mark are two characters (NFD) are read as if they were one."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from corpus.preparing import Prepare, lines, many, written
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer

from axml_ray.corpus.records.in_memory import label_of, labelled_texts
from axml_ray.corpus.text.composition import composed, composed_in_linear_time
from axml_ray.corpus.text.tokenizer import Tokenizer, split_words
from axml_ray.corpus.text.vector_files import load_known_vectors


def apart(text: str) -> str:
    return unicodedata.normalize("NFD", text)


TEXTS = [(f"Müller prüft Größe {i} von 한국 w{i % 5}", ["Ökologie", f"Maß {i % 3}", "all"]) for i in range(30)]
APART = [(apart(text), [apart(label) for label in labels]) for text, labels in TEXTS]


@pytest.mark.parametrize("fields", [{}, {"title_field": "id"}], ids=["text", "title"])
def test_a_corpus_is_the_same_however_its_letters_were_typed(run: Prepare, fields: dict[str, Any]) -> None:
    half = [*TEXTS[:15], *APART[15:]]
    one, other = (
        run(train=records, test=records[:3], directory=name, **fields) for name, records in (("a", TEXTS), ("b", half))
    )
    assert set(one.labels.labels) == {"Ökologie", "Maß 0", "Maß 1", "Maß 2", "all"}
    assert {"müller", "prüft", "größe", "한국"} <= set(one.tokenizer.words)
    assert written(one) == written(other)


def test_names_belong_to_labels_however_they_were_typed(run: Prepare, tmp_path: Path) -> None:
    (tmp_path / "names.tsv").write_text(apart("Ökologie\tÖko\nMaß 0\tnull\nMaß 1\teins\n"), encoding="utf-8")
    corpus = run(train=TEXTS, test_share=0, label_names=tmp_path / "names.tsv")
    label = corpus.labels.labels.index("Ökologie")
    assert corpus.labels.names[label] == "Öko"


def test_a_tokenizer_reads_composed_letters_and_places_words_in_the_text_as_given() -> None:
    tokenizer = Tokenizer.from_words(["müller", "한국", "ệ", "x"])
    for text in ("Müller, 한국 ệ x", apart("Müller, 한국 ệ x"), apart("Müller x 한국")):
        assert tokenizer.encode([text], 9)[0].tolist() == tokenizer.encode([composed(text)], 9)[0].tolist()
        found, spans = tokenizer.encode_with_spans(text, 9)
        assert [composed(text[start:end]).lower() for start, end in spans] == [tokenizer.words[i] for i in found]
    assert split_words(apart("Größe")) == ["größe"]


def test_a_tokenizer_of_an_earlier_version_reads_as_it_did(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer.from_words([apart("müller"), "größe"]).save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(content), encoding="utf-8")
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode([apart("Müller") + " Größe"], 9)[0].tolist() == [2, 3]
    tokenizer.save(path)
    assert FastTokenizer.from_file(str(path)).normalizer.normalize_str("U\u0308") == "u\u0308"


def test_word_vectors_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text(apart("größe 1 2\nmaß 3 4\n"), encoding="utf-8")
    assert load_known_vectors(path, ["größe", "x"])[0].tolist() == [True, False]


def test_texts_in_memory() -> None:
    assert labelled_texts(["t"], [[apart("Maß ü"), "Maß ü"]]) == [("t", ("Maß ü",))]
    assert label_of(apart("Ökologie")) == "Ökologie"


def test_labels_of_a_continued_corpus_keep_their_ids(run: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # as the version before this one prepared it
        patch.setattr("axml_ray.corpus.preparation.staging.composed", lambda string: string)
        old = run(train=APART, test_share=0, directory="old")
    assert apart("Ökologie") in old.labels.labels
    more = [*TEXTS, *many(30)]
    grown = run(train=lines(more), test_share=0, directory="grown", continues=old.directory)
    kept = [composed(label) for label in old.labels.labels]
    assert list(grown.labels.labels[: len(kept)]) == kept


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_both_ways_of_composing_agree(text: str) -> None:
    assert composed_in_linear_time(text) == composed(text)


def test_many_marks_take_no_minutes() -> None:
    """Python's own function would: its time is quadratic in a sequence of marks in the wrong order."""
    marks = "a" + 100_000 * "\u0315" + 100_000 * "\u0323"
    assert composed_in_linear_time(marks).count("\u0315") == 100_000
    _, spans = Tokenizer.from_words(["a"]).encode_with_spans(marks[:100_000] + " a", 9)
    assert spans[-1] == (100_001, 100_002)
