"""Run: pytest tests/inference/test_words_read.py

`network.max_tokens`: networks learn from, and look at, the first words of a text; linear trees read all of it.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_run import texts_of, train_run

from axml_ray import Tagger
from axml_ray.corpus.counts import count_corpus
from axml_ray.corpus.store import Corpus
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.members.network_tree import NetworkTree

READ = 3
BOTH = {"network_tree": {"weight": 0.5}, "linear_tree": {"weight": 0.5}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    return train_run(tmp_path_factory.mktemp("home"), trees=1, epochs=1, members=BOTH, max_tokens=READ)


@pytest.fixture(scope="module")
def by_networks(run) -> NetworkTree:
    return run.open_member(run.spec("network_tree-0"), None)


class CutCorpus(Corpus):
    """The corpus of whose texts nobody sees more."""

    def split(self, name):
        whole = super().split(name)
        return replace(whole, tokens=whole.tokens.cut(READ))


def test_networks_learn_from_the_first_words(run, by_networks, tmp_path, monkeypatch):
    monkeypatch.setattr("tiny_run.write_corpus", lambda directory: CutCorpus.open(run.corpus.directory))
    cut = train_run(tmp_path, trees=1, epochs=1)
    expected = cut.open_member(cut.spec("network_tree-0"), None)
    for one, other in zip(by_networks.networks, expected.networks, strict=True):
        states = one.state_dict(), other.state_dict()
        for name in states[0]:
            torch.testing.assert_close(states[0][name], states[1][name], rtol=0, atol=0)


def test_networks_predict_from_the_first_words(run, by_networks):
    tokens, labels = run.corpus.split("valid").tokens, np.array([3, 0, 11])
    assert (tokens.lengths > READ).any()
    whole, first = TextViews(tokens), TextViews(tokens.cut(READ))
    for of_all, of_first in zip(by_networks.rank(whole, 6), by_networks.rank(first, 6), strict=True):
        np.testing.assert_allclose(of_all, of_first, rtol=1e-5)
    np.testing.assert_allclose(by_networks.score(whole, labels), by_networks.score(first, labels), rtol=1e-5)


def test_linear_trees_read_all(run, by_networks):
    tokens, labels = run.corpus.split("valid").tokens, np.array([3, 0, 11])
    both = run.open_ensemble()
    linear = both.members["linear_tree-0"]
    of_all, of_first = (linear.score(TextViews(some), labels) for some in (tokens, tokens.cut(READ)))
    assert not np.allclose(of_all, of_first)
    expected = (by_networks.score(TextViews(tokens.cut(READ)), labels) + of_all) / 2
    np.testing.assert_allclose(both.score(tokens, labels), expected, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 40])
def test_padded_texts_are_cut(run, width):
    tokens = run.corpus.split("valid").tokens
    padded, lengths = TextViews(tokens).padded(width)
    assert padded.dtype == lengths.dtype == np.int64
    assert lengths.tolist() == np.minimum(tokens.lengths, width).tolist()
    assert padded.shape == (len(tokens), -(-lengths.max() // 8) * 8)
    for row, words in enumerate(padded):
        assert words[: lengths[row]].tolist() == tokens[row][:width].tolist() and not words[lengths[row] :].any()


def test_explanations_of_a_bundle_weigh_the_first_words(run, tmp_path):
    bundle = export_bundle(run, tmp_path / "bundle").directory
    text = max(texts_of(run, "valid"), key=len)
    [tags] = Tagger.load(bundle).tag([text], top_k=2, explain=True)
    for tag in tags:
        weights = tag.explanation.weights
        assert len(weights) == len(tag.explanation.words) > READ
        assert weights[:READ].sum() == pytest.approx(1, abs=1e-3) and not weights[READ:].any()
        assert tag.explanation.as_json()["paths"][0]["path"][0]["weights"][READ:] == [0] * (len(weights) - READ)


def test_an_empty_text_has_no_words_to_weigh(run, tmp_path):
    bundle = export_bundle(run, tmp_path / "bundle").directory
    tagger = Tagger.load(bundle)
    [tags] = tagger.tag([""], labels=tagger.labels[:2], explain=True)
    assert tags[0].explanation.words == () and not len(tags[0].explanation.weights)


def test_a_plan_counts_what_is_read(run):
    lengths = run.corpus.split("train").tokens.lengths
    counts = count_corpus(run.settings)
    assert counts.longest == READ and counts.network_tokens == pytest.approx(np.minimum(lengths, READ).mean())
