"""Run: pytest tests/inference/test_words_read.py

`network.max_tokens`: networks learn from, and look at, the first words of a text; linear classifiers read all of it.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from axml_ray.inference.beam import TreePredictor
from axml_ray.inference.texts import length_batches
from tiny_run import train_run

from axml_ray import Tagger
from axml_ray.corpus.store import Corpus
from axml_ray.inference.export import export_bundle
from axml_ray.planning.shapes import counts_of
from axml_ray.settings import LinearSettings

READ = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    return train_run(tmp_path_factory.mktemp("home"), trees=1, epochs=1, linear=0.5, max_tokens=READ)


@pytest.fixture(scope="module")
def by_networks(run) -> TreePredictor:
    return TreePredictor.open(run.settings.model_copy(update={"linear": LinearSettings()}), run.corpus, 0)


class CutCorpus(Corpus):
    """The corpus of whose texts nobody sees more."""

    def split(self, name):
        whole = super().split(name)
        return replace(whole, tokens=whole.tokens.cut(READ))


def test_networks_learn_from_the_first_words(run, by_networks, tmp_path, monkeypatch):
    monkeypatch.setattr("tiny_run.write_corpus", lambda directory: CutCorpus.open(run.corpus.directory))
    cut = train_run(tmp_path, trees=1, epochs=1)
    expected = TreePredictor.open(cut.settings, cut.corpus, 0)
    for one, other in zip(by_networks.networks, expected.networks, strict=True):
        states = one.state_dict(), other.state_dict()
        for name in states[0]:
            torch.testing.assert_close(states[0][name], states[1][name], rtol=0, atol=0)


def test_networks_predict_from_the_first_words(run, by_networks):
    tokens, labels = run.corpus.split("valid").tokens, np.array([3, 0, 11])
    assert (tokens.lengths > READ).any()
    for of_all, of_first in zip(by_networks.predict(tokens, 6), by_networks.predict(tokens.cut(READ), 6), strict=True):
        np.testing.assert_allclose(of_all, of_first, rtol=1e-5)
    np.testing.assert_allclose(
        by_networks.score(tokens, labels), by_networks.score(tokens.cut(READ), labels), rtol=1e-5
    )


def test_linear_classifiers_read_all(run, by_networks):
    tokens, labels = run.corpus.split("valid").tokens, np.array([3, 0, 11])
    both = TreePredictor.open(run.settings, run.corpus, 0)
    linear, join = both.linear
    of_all, of_first = (linear.score(linear.see(some), labels) for some in (tokens, tokens.cut(READ)))
    assert not np.allclose(of_all, of_first)
    expected = join.scores(by_networks.score(tokens.cut(READ), labels), of_all)
    np.testing.assert_allclose(both.score(tokens, labels), expected, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 40])
def test_a_cut_batch_is_a_batch_of_cut_texts(run, width):
    tokens = run.corpus.split("valid").tokens
    for batch in length_batches(tokens):
        [expected] = length_batches(tokens.take(batch.rows).cut(width), documents=len(batch.rows), places=1 << 20)
        cut = batch.cut(width)
        back = np.argsort(expected.rows)
        assert cut.lengths.tolist() == expected.lengths[back].tolist()
        assert cut.ragged().values.tolist() == tokens.take(batch.rows).cut(width).values.tolist()
        assert cut.tokens.shape == expected.tokens.shape
        assert cut.tokens.tolist() == expected.tokens[back].tolist()


def test_explanations_of_a_bundle_weigh_the_first_words(run, tmp_path):
    bundle = export_bundle(run.settings, tmp_path / "bundle").directory
    text = max(run.texts("valid"), key=len)
    [tags] = Tagger.load(bundle).tag([text], top_k=2, explain=True)
    for tag in tags:
        weights = tag.explanation.weights
        assert len(weights) == len(tag.explanation.words) > READ
        assert weights[:READ].sum() == pytest.approx(1, abs=1e-3) and not weights[READ:].any()
        assert tag.explanation.as_json()["trees"][0][0]["weights"][READ:] == [0] * (len(weights) - READ)


def test_an_empty_text_has_no_words_to_weigh(run, tmp_path):
    bundle = export_bundle(run.settings, tmp_path / "bundle").directory
    [tags] = Tagger.load(bundle).tag([""], top_k=2, explain=True)
    assert tags[0].explanation.words == () and not len(tags[0].explanation.weights)


def test_a_plan_counts_what_is_read(run):
    lengths = run.corpus.split("train").tokens.lengths
    counts = counts_of(run.settings)
    assert counts.longest == READ and counts.tokens == pytest.approx(np.minimum(lengths, READ).mean())
