"""Run: pytest tests/inference/test_explain.py

Attention of labels and clusters against equation 2 word by word in float64; and how it is shown.
"""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from tiny_run import train_run

from axml_ray import Tagger
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.explain.highlight import as_ansi, as_html
from axml_ray.inference.tagger import Tag

TEXT = "Key3: noise1, <b>key0</b> [bold]ẞtrange İ unseen[/bold] & noise2"
WORDS = ("Key3", "noise1", "b", "key0", "b", "bold", "ẞtrange", "İ", "unseen", "bold", "noise2")


@pytest.fixture(scope="module")
def tagger(bundle_directory):
    return Tagger.load(bundle_directory)


@pytest.fixture(scope="module")
def mixed_tagger(mixed_bundle):
    return Tagger.load(mixed_bundle)


@pytest.fixture(scope="module")
def tags(tagger) -> list[Tag]:
    return tagger.tag([TEXT], top_k=3, explain=True)[0]


def shown_text(html: str) -> str:
    class Reader(HTMLParser):
        found = ""

        def handle_data(self, data: str) -> None:
            self.found += data

    reader = Reader()
    reader.feed(html)
    return reader.found


class TestExplain:
    def test_words_stand_where_the_text_has_them(self, tags):
        assert tags[0].explanation.words == WORDS
        assert all(TEXT[start:end] == word for (start, end), word in zip(tags[0].explanation.spans, WORDS, strict=True))

    def test_weights_are_the_attention_of_the_equation(self, tagger, tags):
        ids = tagger.codec.encode([TEXT])[0].tolist()
        for tag in tags:
            assert [member.name for member in tag.explanation.paths] == list(tagger.ensemble.members)
            for info, path in tag.explanation.paths.items():
                tree = tagger.ensemble.members[info.name]
                node = int(tree.tree.leaf_of_label[tagger.labels.index(tag.label)])
                for network, step in reversed(list(zip(tree.networks, path, strict=True))):
                    w = network.attention.vectors(torch.tensor(node), network.first_child)
                    states = network.encode(torch.tensor([ids]), torch.tensor([len(ids)]))[0]
                    scores = torch.stack([torch.exp(state @ w) for state in states])
                    expected = (scores / scores.sum()).numpy()
                    assert step.weights.dtype == np.float32
                    assert step.weights == pytest.approx(expected, rel=1e-4)
                    if step.level > 1:
                        node = int(np.searchsorted(tree.tree.first_child[step.level - 1], node, side="right") - 1)

    def test_the_path_gives_the_score(self, tagger, tags):
        [whole] = tagger.tag([TEXT], labels=[tag.label for tag in tags], explain=True)
        for tag in whole:
            found = 0.0
            for info, path in tag.explanation.paths.items():
                tree = tagger.ensemble.members[info.name]
                score = 1.0
                for network, step in zip(tree.networks, path, strict=True):
                    score = step.probability * score**network.parent_score_exponent
                found += info.weight * score
            assert found == pytest.approx(tag.score, rel=1e-4)

    def test_clusters_are_named_by_their_most_frequent_labels(self, tagger, tags):
        for tag in tags:
            assert [member.name for member in tag.explanation.paths] == list(tagger.ensemble.members)
            for info, path in tag.explanation.paths.items():
                tree = tagger.ensemble.members[info.name]
                cluster, leaf = path
                siblings = next(
                    tree.tree.label_order[start:end]
                    for start, end in zip(tree.tree.first_child[1], tree.tree.first_child[1][1:], strict=False)
                    if tagger.labels.index(tag.label) in tree.tree.label_order[start:end]
                )
                assert cluster.labels == tuple(tagger.labels[label] for label in sorted(siblings)[:3])
                beyond = len(siblings) - 3
                assert cluster.name == ", ".join(cluster.labels) + (f" and {beyond} more" if beyond > 0 else "")
                assert (leaf.name, leaf.size, leaf.labels) == (tag.name, 1, (tag.name,))

    def test_the_label_looks_at_its_word(self, tags):
        found = {tag.label: tag.explanation for tag in tags}
        assert np.argmax(found["label-0"].weights) == WORDS.index("key0")
        assert found["label-0"].weights.sum() == pytest.approx(1, rel=1e-4)

    def test_in_company_as_alone(self, tagger, tags):
        rows = tagger.tag(["key5 " * 50, TEXT, "x"], top_k=3, explain=True)
        assert [tag.explanation.words for tag in rows[1]] == [tag.explanation.words for tag in tags]
        assert rows[1][0] != rows[0][0]
        for tag, same in zip(rows[1], tags, strict=True):
            assert tag.explanation.weights == pytest.approx(same.explanation.weights, rel=1e-4)

    def test_a_text_that_is_cut(self, tagger):
        [row] = tagger.tag(["key1 " * 700], top_k=1, explain=True)
        assert len(row[0].explanation.words) == len(row[0].explanation.weights) == 500
        assert shown_text(row[0].html()).count("key1 ") >= 700

    @pytest.mark.parametrize("text", ["", "\0", "...", "\ud800", " /SEP/ "])
    def test_a_text_without_words(self, tagger, text):
        [row] = tagger.tag([text], labels=tagger.labels[:1], explain=True)
        assert row[0].explanation.words == () and not len(row[0].explanation.weights)
        assert {each.score for each in row[0].explanation.contributions} == {0}
        assert row[0].html() and row[0].ansi()

    def test_as_json(self, tags):
        content = tags[0].explanation.as_json()
        assert [word["word"] for word in content["words"]] == list(WORDS)
        assert [path["member"] for path in content["paths"]] == ["network tree 1", "network tree 2"]
        assert [step["level"] for step in content["paths"][0]["path"]] == [1, 2]
        assert sum(each["points"] for each in content["contributions"]) == pytest.approx(tags[0].score, rel=1e-5)

    @pytest.mark.parametrize("kind", ["bilstm", "xml_cnn"])
    def test_of_networks_without_attention(self, tmp_path, kind):
        run = train_run(tmp_path, trees=1, epochs=1, kind=kind)
        export_bundle(run, tmp_path / "bundle")
        [[tag, *_]] = Tagger.load(tmp_path / "bundle").tag(["key1 noise0"], explain=True)
        assert not tag.explanation.paths and tag.explanation.weights.tolist() == [0, 0]
        [contribution] = tag.explanation.contributions
        assert contribution.points == pytest.approx(tag.score, rel=1e-6)
        assert tag.html() and tag.ansi()


class TestContributions:
    """Of members of all kinds, combined by the mean."""

    def test_points_of_given_labels_sum_to_the_score(self, mixed_tagger):
        [tags] = mixed_tagger.tag([TEXT], labels=mixed_tagger.labels, explain=True)
        assert len(tags) == 14  # some of which no beam reaches
        for tag in tags:
            assert sum(each.points for each in tag.explanation.contributions) == pytest.approx(tag.score, rel=1e-5)

    def test_points_sum_to_the_score(self, mixed_tagger):
        infos = mixed_tagger.ensemble.combination.members
        tokens = mixed_tagger.codec.encode([TEXT])
        scores = mixed_tagger.ensemble.score_members(tokens, np.arange(len(mixed_tagger.labels)))
        rankings = mixed_tagger.ensemble.rank_members(tokens)
        for tag in mixed_tagger.tag([TEXT], top_k=5, explain=True)[0]:
            contributions, label = tag.explanation.contributions, int(mixed_tagger.codec.ids([tag.label])[0])
            assert [each.member for each in contributions] == list(infos)
            assert sum(each.share for each in contributions) == pytest.approx(1)
            assert sum(each.points for each in contributions) == pytest.approx(tag.score, rel=1e-5)
            for each in contributions:
                ranked = label in rankings[each.member.name].labels[0]
                expected = scores[each.member.name][0, label] if ranked else 0
                assert each.share == pytest.approx(each.member.weight)
                assert each.score == pytest.approx(expected, rel=1e-4, abs=1e-7)

    def test_only_members_with_attention_have_paths(self, mixed_tagger):
        for tag in mixed_tagger.tag([TEXT], explain=True)[0]:
            explanation = tag.explanation
            assert [member.name for member in explanation.paths] == ["network_tree-0", "network_tree-1"]
            mean = np.mean([path[-1].weights for path in explanation.paths.values()], axis=0)
            assert explanation.weights == pytest.approx(mean, rel=1e-6)
            content = explanation.as_json()
            assert [each["member"] for each in content["contributions"]] == [
                "network tree 1", "network tree 2", "linear tree 1", "linear tree 2", "knn", "label names"]  # fmt: skip
            assert len(content["paths"]) == 2

    def test_are_shown(self, mixed_tagger):
        [tag] = mixed_tagger.tag([TEXT], top_k=1, explain=True)[0]
        shown = re.sub(r"\x1b\[[0-9;]*m", "", tag.ansi())
        for each in tag.explanation.contributions:
            assert f"<td>{each.member.title}</td><td>{each.score:.3f}</td>" in tag.html()
            assert f"{each.points:.3f} by {each.member.title}" in shown


class TestShown:
    def test_html_is_escaped_and_needs_nothing_else(self, tags):
        html = as_html(tags[0].explanation)
        assert "<b>key0" not in html and "&lt;" in html and "&amp;" in html
        assert shown_text(html).count(TEXT) == 1 + 2 * 2  # the mean, and two levels of two trees
        assert not re.search(r"<script|src=|href=|url\(|@import", html)
        assert re.findall(r"<summary>network tree (\d+)</summary>", html) == ["1", "2"]

    def test_html_shades_the_word_with_most_weight_fully(self, tags):
        explanation = next(tag.explanation for tag in tags if tag.label == "label-0")
        mean = as_html(explanation).partition("<table>")[0]
        full = re.findall(r'<mark style="background:rgba\(255,176,0,1\.00\);color:inherit">([^<]*)</mark>', mean)
        assert full == ["key0"]

    def test_ansi_shows_the_text_as_it_is(self, tags):
        shown = as_ansi(tags[0].explanation, width=200)
        assert "\x1b[" in shown
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        assert plain.count(TEXT) == 1 + 2 * 2 and re.findall(r"^network tree (\d+)$", plain, re.MULTILINE) == ["1", "2"]

    def test_a_text_cannot_move_the_cursor(self, tagger):
        [row] = tagger.tag(["key1 \x1b[2J key2 \r\x07"], top_k=1, explain=True)
        assert "\x1b[2J" not in row[0].ansi() and "\r" not in row[0].ansi() and "\x07" not in row[0].ansi()

    def test_a_name_cannot_either(self, tags):
        """Bundles come from others, too."""
        shown = as_ansi(replace(tags[0].explanation, name="a\x1b]0;b\x07\x1b[2Jc"))
        assert "\x1b]" not in shown and "\x07" not in shown and "\x1b[2J" not in shown
