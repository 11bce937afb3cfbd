"""Run: pytest tests/inference/test_translated_texts.py

Networks of a corpus with a dictionary learn from, predict from and look at texts as they are translated; people see the
words that stand in the text.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from axml_ray.inference.beam import TreePredictor
from test_bundle import sign
from tiny_corpus import write_corpus
from tiny_run import Run, train_run

from axml_ray import Tagger
from axml_ray.corpus.store import MANIFEST, TRANSLATION, Corpus
from axml_ray.corpus.translation import Translation
from axml_ray.files import read_json, write_json
from axml_ray.inference.bundle import Bundle, BundleError
from axml_ray.inference.explain import paths
from axml_ray.inference.export import export_bundle
from axml_ray.ragged import Ragged

MEANT = {"key1": ["key2", "noise7"], "noise0": ["noise8"], "noise1": ["noise9", "key3", "noise6"]}
"""Of a language that "noise0" to "noise4" tell, and "noise5" to "noise9" the other."""
TEXT = "noise1, key1 - noise2: key0, unseen noise1 noise0"
READ = 6


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
        return train_run(tmp_path_factory.mktemp("home"), trees=2, epochs=1, linear=0.5, max_tokens=READ)


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory) -> Path:
    return export_bundle(run.settings, tmp_path_factory.mktemp("bundle") / "bundle").directory


def networks_of(tree: TreePredictor, *, translate: bool) -> TreePredictor:
    translation = tree.translation if translate else None
    return TreePredictor(tree.tree, tree.networks, tree.beam, tree.precision, None, tree.max_tokens, translation)


class TranslatedCorpus(Corpus):
    """The corpus whose texts were written in one language."""

    translation = None

    def split(self, name):
        return super().split(name).translated(Corpus.open(self.directory).translation)


def test_networks_learn_from_translations(run, tmp_path, monkeypatch):
    monkeypatch.setattr("tiny_run.write_corpus", lambda directory: TranslatedCorpus.open(run.corpus.directory))
    other = train_run(tmp_path, trees=1, epochs=1, max_tokens=READ)
    pairs = zip(run.ensemble().trees[0].networks, other.ensemble().trees[0].networks, strict=True)
    for one, network in pairs:
        for name, value in one.state_dict().items():
            torch.testing.assert_close(value, network.state_dict()[name], rtol=0, atol=0)


def test_networks_predict_from_translations(run):
    tokens, labels = run.corpus.split("valid").tokens, np.array([3, 0, 11])
    translated = run.corpus.translation.translated(tokens)
    assert (translated.lengths > tokens.lengths).any()
    tree = run.ensemble().trees[0]
    own, given = networks_of(tree, translate=True), networks_of(tree, translate=False)
    for mine, right in zip(own.predict(tokens, 6), given.predict(translated, 6), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5)
    right = given.score(translated, labels)
    np.testing.assert_allclose(own.score(tokens, labels), right, rtol=1e-5)
    assert not np.allclose(given.score(tokens, labels), right, rtol=1e-3)
    linear, join = tree.linear
    expected = join.scores(right, linear.score(linear.see(tokens), labels))
    np.testing.assert_allclose(tree.score(tokens, labels), expected, rtol=1e-5)


def test_a_bundle_reads_as_the_run_does(run, bundle):
    tokens = run.corpus.split("test").tokens
    (labels, scores), _ = run.ensemble().predict(tokens)
    (same_labels, same_scores), _ = Bundle.open(bundle).ensemble().predict(tokens)
    assert np.array_equal(labels, same_labels) and np.array_equal(scores, same_scores)


@pytest.mark.parametrize("text", [TEXT, "noise7 key1 key4 noise6 noise8", "noise0", "noise1 noise1 noise1", ""])
def test_explanations_weigh_the_words_of_the_text(run, bundle, text):
    tagger = Tagger.load(bundle)
    [tags] = tagger.tag([text], top_k=2, explain=True)
    words = tagger.codec.encode([text])
    translated = run.corpus.translation.translated(words)
    read = translated.values[:READ]
    lengths = run.corpus.translation.words.lengths[words.values]
    if not run.corpus.translation.foreign(words)[0]:
        lengths[:] = 0
    ids = [tagger.codec.id_of[tag.label] for tag in tags]
    for number, tree in enumerate(tagger.ensemble.trees):
        plain = networks_of(tree, translate=False)
        for tag, path in zip(tags, paths(plain, read, len(read), ids, tagger.codec.index), strict=True):
            for step, right in zip(tag.explanation.paths[number], path, strict=True):
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
    with pytest.raises(BundleError, match=r"translation\.safetensors: cannot be used \(it doesn't say what"):
        Bundle.open(copy).tree(0)
    (copy / TRANSLATION).unlink()
    sign(copy)
    with pytest.raises(BundleError, match=r"linear\.safetensors: cannot be used .*fitted with a dictionary"):
        Bundle.open(copy).tree(0)
