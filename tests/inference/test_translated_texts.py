"""Run: pytest tests/inference/test_translated_texts.py

Networks of a corpus with a dictionary learn from, predict from and look at texts as they are translated; people see the
words that are in the text.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_bundle import sign
from tiny_corpus import write_corpus
from tiny_run import train_run

from axml_ray import Tagger
from axml_ray.core.files import read_json, write_json
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import MANIFEST, TRANSLATION, Corpus
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.corpus.text.translation import Translation
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.bundle.manifest import BundleError
from axml_ray.members.explanation import ExplainedText
from axml_ray.members.network_tree import NetworkTree
from axml_ray.runs.run import Run

MEANT = {"key1": ["key2", "noise7"], "noise0": ["noise8"], "noise1": ["noise9", "key3", "noise6"]}
"""Of a language that "noise0" to "noise4" tell, and "noise5" to "noise9" the other."""
TEXT = "noise1, key1 - noise2: key0, unseen noise1 noise0"
READ = 6
BOTH = {"network_tree": {"weight": 0.5}, "linear_tree": {"weight": 0.5}}


def with_translation(directory: Path) -> Corpus:
    """The tiny corpus, with a translation."""
    words = write_corpus(directory).tokenizer.words
    rows = [[words.index(other) for other in MEANT.get(word, [])] for word in words]
    sides = [(word in "noise0 noise1 noise2 noise3 noise4") - (word in "noise5 noise6 noise7 noise8") for word in words]
    Translation(Ragged.from_rows(rows), np.array(sides, np.int8)).save(directory / TRANSLATION)
    manifest = read_json(directory / MANIFEST)
    manifest["files"][TRANSLATION] = (directory / TRANSLATION).stat().st_size
    write_json(directory / MANIFEST, manifest)
    return Corpus.open(directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiny_run.write_corpus", with_translation)
        return train_run(tmp_path_factory.mktemp("home"), trees=2, epochs=1, members=BOTH, max_tokens=READ)


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory) -> Path:
    return export_bundle(run, tmp_path_factory.mktemp("bundle") / "bundle").directory


def networks_of(run: Run) -> NetworkTree:
    return run.open_member(run.spec("network_tree-0"), None)


class TranslatedCorpus(Corpus):
    """The corpus whose texts were written in one language."""

    translation = None

    def split(self, name):
        return super().split(name).translated(Corpus.open(self.directory).translation)


def test_networks_learn_from_translations(run, tmp_path, monkeypatch):
    monkeypatch.setattr("tiny_run.write_corpus", lambda directory: TranslatedCorpus.open(run.corpus.directory))
    other = train_run(tmp_path, trees=1, epochs=1, max_tokens=READ)
    for one, network in zip(networks_of(run).networks, networks_of(other).networks, strict=True):
        for name, value in one.state_dict().items():
            torch.testing.assert_close(value, network.state_dict()[name], rtol=0, atol=0)


def test_networks_predict_from_translations(run):
    tokens, labels = run.corpus.split("valid").tokens, np.array([3, 0, 11])
    translated = run.corpus.translation.translated(tokens)
    assert (translated.lengths > tokens.lengths).any()
    member = networks_of(run)
    read, plain = TextViews(tokens, run.corpus.translation), TextViews(translated)
    for mine, right in zip(member.rank(read, 6), member.rank(plain, 6), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5)
    right = member.score(plain, labels)
    np.testing.assert_allclose(member.score(read, labels), right, rtol=1e-5)
    assert not np.allclose(member.score(TextViews(tokens), labels), right, rtol=1e-3)
    ensemble = run.open_ensemble()
    of_members = ensemble.score_members(tokens, labels)
    np.testing.assert_allclose(of_members["network_tree-0"], right, rtol=1e-5)
    np.testing.assert_allclose(ensemble.score(tokens, labels), sum(of_members.values()) / 4, rtol=1e-5)


def test_a_bundle_reads_as_the_run_does(run, bundle):
    tokens = run.corpus.split("test").tokens
    labels, scores = run.open_ensemble().rank(tokens)
    same_labels, same_scores = Bundle.open(bundle).ensemble().rank(tokens)
    assert np.array_equal(labels, same_labels) and np.array_equal(scores, same_scores)


@pytest.mark.parametrize("text", [TEXT, "noise7 key1 key4 noise6 noise8", "noise0", "noise1 noise1 noise1", ""])
def test_explanations_weigh_the_words_of_the_text(run, bundle, text):
    tagger = Tagger.load(bundle)
    [tags] = tagger.tag([text], labels=tagger.labels[:2], explain=True)
    words = tagger.codec.encode([text])
    translated = run.corpus.translation.translated(words)
    read = ExplainedText.of(translated.values[:READ], len(translated.values[:READ]), None)
    lengths = run.corpus.translation.words.lengths[words.values]
    if not run.corpus.translation.in_first_language(words)[0]:
        lengths[:] = 0
    ids = [tagger.codec.id_of[tag.label] for tag in tags]
    networks = [info for info in tagger.ensemble.combination.members if info.kind == "network_tree"]
    assert len(networks) == 2
    for info in networks:
        paths = tagger.ensemble.members[info.name].explain(read, ids, tagger.codec.index)
        for tag, path in zip(tags, paths, strict=True):
            for step, right in zip(tag.explanation.paths[info], path, strict=True):
                expected, at = [], 0
                for length in np.maximum(lengths, 1):
                    expected.append(right.weights[at : at + length].sum())
                    at += length
                assert step.probability == pytest.approx(right.probability, rel=1e-4)
                assert step.weights == pytest.approx(expected if text else [], abs=1e-6)
    assert tags[0].explanation.words == tuple(re.findall(r"\w+", text))


def test_a_damaged_translation(bundle, tmp_path):
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    whole = Bundle.open(bundle).translation
    replace(whole, sides=whole.sides[:-1]).save(copy / TRANSLATION)
    sign(copy)
    with pytest.raises(BundleError, match=r"translation\.safetensors: cannot be used"):
        Bundle.open(copy).ensemble()
    (copy / TRANSLATION).unlink()
    sign(copy)
    with pytest.raises(BundleError, match=r"features\.safetensors: cannot be used .*fitted with a dictionary"):
        Bundle.open(copy).ensemble()
