"""TF-IDF features against their formula. Run: pytest tests/members/test_featurizer.py"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from members.small_texts import (
    DOCUMENTS,
    EVERYTHING,
    VOCABULARY,
    WORDS,
    WORDS_ALONE,
    literal_rows,
    read_arrays,
    small_texts,
)
from pydantic import ValidationError
from safetensors.numpy import save_file
from tiny_corpus import LABELS, write_corpus

from axml_ray.core.array_file import key_of
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.featurizer import ABOUT, Featurizer, feature_texts
from axml_ray.settings.members import FeatureSettings

TOKENS, _ = small_texts()
EACH_SETTING = pytest.mark.parametrize("settings", [WORDS_ALONE, EVERYTHING], ids=["words", "everything"])
some_texts = st.lists(st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=6), max_size=5).map(Ragged.from_rows)


@EACH_SETTING
@given(texts=some_texts)
def test_rows_are_the_formula(settings: FeatureSettings, texts: Ragged) -> None:
    featurizer = Featurizer.fit(TOKENS, VOCABULARY, settings)
    rows, expected = featurizer.matrix(texts), literal_rows(texts, TOKENS, settings)
    assert rows.dtype == np.float32 and rows.shape == expected.shape == (len(texts), len(featurizer) + 1)
    np.testing.assert_allclose(rows.toarray(), expected, rtol=1e-5, atol=1e-7)
    assert rows.has_sorted_indices


def test_documents_of_each_feature_are_counted() -> None:
    featurizer = Featurizer.fit(TOKENS, VOCABULARY, EVERYTHING)
    assert (featurizer.documents, len(featurizer.prefixes)) == (DOCUMENTS, WORDS) and len(featurizer) > WORDS
    expected = (literal_rows(TOKENS, TOKENS, EVERYTHING)[:, :-1] > 0).sum(axis=0)
    assert featurizer.frequency.tolist() == expected.tolist()


def test_a_batch_is_featurized_once() -> None:
    one, other = (Featurizer.fit(TOKENS, VOCABULARY, settings) for settings in (WORDS_ALONE, EVERYTHING))
    texts = TextViews(TOKENS)
    assert one.of(texts) is one.of(texts)
    assert one.of(texts).shape != other.of(texts).shape


@EACH_SETTING
def test_a_file_keeps_everything(settings: FeatureSettings, tmp_path: Path) -> None:
    path = tmp_path / "features.safetensors"
    assert key_of(path, ABOUT) is None
    featurizer = Featurizer.fit(TOKENS, VOCABULARY, settings)
    featurizer.save(path, "its key")
    assert key_of(path, ABOUT) == "its key"
    opened = Featurizer.load(path, WORDS)
    assert (opened.matrix(TOKENS) != featurizer.matrix(TOKENS)).nnz == 0
    with pytest.raises(FileNotFoundError):
        Featurizer.load(path.with_name("none"), WORDS)


def test_damage_to_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "features.safetensors"
    Featurizer.fit(TOKENS, VOCABULARY, EVERYTHING).save(path, "its key")
    with pytest.raises(ValueError, match=f"made for {WORDS} words, not {WORDS - 1}"):
        Featurizer.load(path, WORDS - 1)
    arrays, metadata = read_arrays(path)

    def refused(arrays: dict[str, np.ndarray], metadata: dict[str, str], said: str) -> None:
        save_file(arrays, path, metadata)
        with pytest.raises(ValueError, match=rf"features\.safetensors holds no features of these words: .*{said}"):
            Featurizer.load(path, WORDS)

    for name, array, said in (
        ("prefixes", np.append(arrays["prefixes"], np.int32(0)), "parts of words"),
        ("prefixes", arrays["prefixes"].astype(np.int64), "parts of words"),
        ("prefixes.offsets", arrays["prefixes.offsets"][::-1].copy() + 1, "parts of words"),
        ("runs", arrays["runs"] + np.int32(1), "parts of words"),
        ("runs.offsets", arrays["runs.offsets"][:-1], "parts of words"),
        ("frequency", arrays["frequency"][:-1], "parts of words"),
        ("frequency", arrays["frequency"] * DOCUMENTS * 2, "document frequencies"),
        ("frequency", arrays["frequency"] - 1, "document frequencies"),
        ("frequency", arrays["frequency"].astype(np.int32), "document frequencies"),
    ):
        refused({**arrays, name: array}, metadata, said)
    for change, said in (
        ({"documents": "0"}, "document frequencies"),
        ({"documents": "many"}, "many"),
        ({"lead_weight": "2.5"}, "count 2.5 times"),
        ({"lead_words": "-1"}, "first -1 words"),
        ({"format": "else"}, "its format is 'else'"),
        ({"version": "0"}, "its version is '0'"),
    ):
        refused(arrays, {**metadata, **change}, said)
    refused({name: array for name, array in arrays.items() if name != "runs"}, metadata, "runs")
    save_file(arrays, path, metadata)
    path.write_bytes(path.read_bytes()[:-8])
    assert key_of(path, ABOUT) is None
    with pytest.raises(ValueError, match="holds no features"):
        Featurizer.load(path, WORDS)


def test_names_are_texts_where_asked_for(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "tiny")
    names = tuple(name.replace("label-", "Key") for name in corpus.labels.names)  # "Key3" of label-3 is a known word
    replace(corpus.labels, names=names).save(corpus.directory / "labels.parquet")
    corpus = replace(corpus)  # nothing read is kept
    train = corpus.split("train")
    assert feature_texts(corpus, train, WORDS_ALONE, 9) is train
    texts = feature_texts(corpus, train, FeatureSettings(names_as_texts=True), 9)
    assert len(texts) == len(train) + LABELS
    for row in range(LABELS):
        (word,), (label,) = texts.tokens[len(train) + row], texts.labels[len(train) + row]
        assert corpus.tokenizer.words[word] == names[label].lower()


def test_runs_need_lead_words() -> None:
    with pytest.raises(ValidationError, match=r"features\.lead_words"):
        FeatureSettings(lead_letters=3)
