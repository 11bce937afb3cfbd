"""Conditions on labels: the best of those that are allowed, and the same labels as without conditions otherwise."""

import json
import shutil
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError
from tiny_run import texts_of

from axml_ray import LabelConditions, Tagger
from axml_ray.cli import predict
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import LABELS, MANIFEST
from axml_ray.inference.explain import conditions as module
from axml_ray.inference.explain.codec import Codec
from axml_ray.inference.explain.conditions import AllowedLabels
from axml_ray.inference.predict.predict_files import DOCUMENTS, BundlePredictor, PredictionOptions
from serve_app.edition import Edition
from serve_app.service import ServedBundle

TEENS = {"label-1", "label-10", "label-11", "label-12", "label-13"}


@pytest.fixture(scope="module", params=["bundle_directory", "mixed_bundle"])
def tagger(request):
    return Tagger.load(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def texts(tiny_run):
    return texts_of(tiny_run, "test")


@pytest.mark.parametrize(
    ("conditions", "left_out"),
    [
        (LabelConditions(excluded_labels=("label-3", "label-0")), {"label-3", "label-0"}),
        (LabelConditions(excluded_prefixes=("label-1",)), TEENS),
        (LabelConditions(excluded_labels=("label-3",), excluded_prefixes=("label-1",)), TEENS | {"label-3"}),
    ],
)
def test_excluded_labels_are_left_out_and_the_others_stay(tagger, texts, conditions, left_out):
    for tags, all_tags in zip(
        tagger.tag(texts, top_k=3, conditions=conditions), tagger.tag(texts, top_k=20), strict=True
    ):
        assert tags == [tag for tag in all_tags if tag.label not in left_out][:3]


@pytest.mark.parametrize(
    ("stored", "given"), [("NFC", "NFC"), ("NFC", "NFD"), ("NFD", "NFD")], ids=["as is", "apart", "an earlier version"]
)
def test_labels_are_found_however_their_letters_were_typed(bundle_directory, tmp_path, stored, given):
    shutil.copytree(bundle_directory, tmp_path / "bundle")
    known = LabelIndex.load(tmp_path / "bundle" / LABELS)
    labels = tuple(unicodedata.normalize(stored, f"ü-{label}") for label in known.labels)
    LabelIndex(labels, labels, known.counts).save(tmp_path / "bundle" / LABELS)
    manifest = read_json(tmp_path / "bundle" / MANIFEST)
    manifest["files"][LABELS]["bytes"] = (tmp_path / "bundle" / LABELS).stat().st_size
    write_json(tmp_path / "bundle" / MANIFEST, manifest)
    bundle = Bundle.open(tmp_path / "bundle", verify=False)
    codec = Codec(bundle)
    wanted = unicodedata.normalize(given, "ü-label-1")
    assert codec.ids([wanted, wanted]).tolist() == [known.labels.index("label-1")]
    assert len(codec.ids_of_prefixes([wanted], "allowed_prefixes")) == len(TEENS)
    served = ServedBundle(Edition(str(bundle.directory), "1"), bundle, codec)
    assert {each["label"] for each in served.search(wanted, 9)} == {labels[known.labels.index(one)] for one in TEENS}


@pytest.mark.parametrize(
    ("conditions", "allowed"),
    [
        (LabelConditions(allowed_labels=("label-5", "label-2", "label-9")), {"label-5", "label-2", "label-9"}),
        (LabelConditions(allowed_prefixes=("label-1",)), TEENS),
        (LabelConditions(allowed_labels=("label-2",), allowed_prefixes=("label-1",)), TEENS | {"label-2"}),
        (LabelConditions(allowed_prefixes=("label-1",), excluded_labels=("label-1",)), TEENS - {"label-1"}),
    ],
)
def test_the_best_allowed_labels_are_found_outside_the_beam_too(tagger, texts, conditions, allowed):
    scored = tagger.tag(texts, labels=sorted(allowed, key=tagger.labels.index))
    for tags, all_tags in zip(tagger.tag(texts, top_k=2, conditions=conditions), scored, strict=True):
        assert len(tags) == 2 and {tag.label for tag in tags} <= allowed
        assert [tag.score for tag in tags] == [tag.score for tag in all_tags[:2]]


def test_many_allowed_labels_are_chosen_from_the_rankings(tagger, texts, monkeypatch):
    monkeypatch.setattr(module, "SCORED_LABELS", len(TEENS) - 1)
    found = tagger.tag(texts, top_k=3, conditions=LabelConditions(allowed_prefixes=("label-1",)))
    for tags, all_tags in zip(found, tagger.tag(texts, top_k=20), strict=True):
        assert tags == [tag for tag in all_tags if tag.label in TEENS][:3]


def test_labels_are_removed_before_the_best_are_chosen(tagger, texts):
    allowed = AllowedLabels.of(LabelConditions(excluded_prefixes=("label-1",)), tagger.codec)
    assert allowed.scored is None and allowed.mask.sum() == len(tagger.labels) - len(TEENS)
    tokens = tagger.codec.encode(texts)
    few = tagger.ensemble.combination.__class__(
        tagger.ensemble.combination.members, tagger.ensemble.combination.combiner, top_labels=4
    )
    labels, scores = few.rank(tagger.ensemble.rank_members(tokens), allowed.mask)
    assert labels.shape == (len(texts), 4)
    assert allowed.mask[labels[labels >= 0]].all() and (labels >= 0).sum(axis=1).min() == 4
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("conditions", [LabelConditions(allowed_labels=("label-4",)), LabelConditions()])
def test_a_text_without_a_word_has_no_labels(tagger, conditions):
    with_words, without = tagger.tag(["key4", "…"], conditions=conditions)
    assert with_words[0].label == "label-4" and without == []


def test_explanations_have_the_scores_that_were_combined(tagger):
    for conditions in (
        LabelConditions(allowed_labels=("label-4", "label-7")),
        LabelConditions(excluded_labels=("label-3",)),
    ):
        [tags] = tagger.tag(["key4 key3"], top_k=2, explain=True, conditions=conditions)
        for tag in tags:
            assert sum(each.points for each in tag.explanation.contributions) == pytest.approx(tag.score, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"allowed_labels": ("label-1", "lable-3")}, "allowed_labels: .*'lable-3'; did you mean 'label-3'"),
        ({"excluded_labels": ("lable-3",)}, "excluded_labels: .*'lable-3'; did you mean 'label-3'"),
        ({"allowed_prefixes": ("lable-",)}, "allowed_prefixes: .*'lable-'; did you mean 'label-'"),
        ({"excluded_prefixes": ("q" * 999,)}, "excluded_prefixes: .*'q{100}…'; tagger.labels"),
        ({"excluded_prefixes": ("label",)}, "excluded_labels: every label is excluded"),
        ({"allowed_labels": ("label-1",), "excluded_labels": ("label-1",)}, "every label is excluded"),
    ],
)
def test_mistakes_name_the_label_and_one_like_it(tagger, given, message):
    with pytest.raises(SettingsError, match=message):
        tagger.tag(["key4"], conditions=LabelConditions(**given))


def test_labels_and_conditions(tagger):
    with pytest.raises(SettingsError, match="conditions: "):
        tagger.tag(["key4"], labels=["label-4"], conditions=LabelConditions(excluded_labels=("label-3",)))


def test_predictors_of_files_keep_to_conditions(bundle_directory, tmp_path):
    options = PredictionOptions(form="jsonl", conditions=LabelConditions(allowed_prefixes=("label-1",)))
    predictor = BundlePredictor(bundle_directory, options, 1)
    predictor(pa.table([["a"], ["key12 key3"], [None]], schema=DOCUMENTS), tmp_path / "part-0.jsonl")
    row = json.loads((tmp_path / "part-0.jsonl").read_text())
    assert row["labels"][0] == "label-12" and set(row["labels"]) == TEENS


@pytest.mark.parametrize("name", list(LabelConditions.model_fields))
def test_an_empty_list_allows_neither_nothing_nor_all(name):
    with pytest.raises(ValidationError, match=name):
        LabelConditions(**{name: []})


def test_flags_of_the_job():
    words = ["--bundle", "b", "--input", "i", "--output", "o"]
    [given] = predict.main.parse(words)
    assert predict.label_conditions(given) is None
    [given] = predict.main.parse([*words, "--excluded-labels", "a", "b", "--allowed-prefixes", "c"])
    assert predict.label_conditions(given) == LabelConditions(excluded_labels=("a", "b"), allowed_prefixes=("c",))
