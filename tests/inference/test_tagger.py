"""Run: pytest tests/inference/test_tagger.py

The Python API over a real bundle: any text, from any thread, the same tags as its parts give one by one.
"""

import doctest
import math
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_run import texts_of

import axml_ray
from axml_ray import Tagger
from axml_ray.core.errors import SettingsError
from axml_ray.core.topk import TopK
from axml_ray.corpus.records.records import storable
from axml_ray.corpus.text.tokenizer import SEPARATOR
from axml_ray.inference import tagger as module
from axml_ray.network.backends.backend import replaced_backend
from axml_ray.network.backends.cpu_backend import CpuBackend
from axml_ray.network.backends.cuda_backend import CudaBackend


@pytest.fixture(scope="module")
def tagger(bundle_directory):
    return Tagger.load(bundle_directory)


def scores_of(row) -> dict[str, float]:
    return {tag.label: tag.score for tag in row}


class TestTag:
    def test_is_what_the_run_predicts(self, tiny_run, tagger):
        labels, scores = tiny_run.open_ensemble().rank(tiny_run.corpus.split("test").tokens)
        names = tiny_run.corpus.labels.labels
        for row, tags in enumerate(tagger.tag(texts_of(tiny_run, "test"), top_k=20)):
            kept = labels[row] >= 0
            assert [tag.label for tag in tags] == [names[label] for label in labels[row][kept]]
            assert [tag.score for tag in tags] == scores[row][kept].tolist()

    @pytest.mark.parametrize(("precision", "close"), [("float32", 1e-4), ("bfloat16", 0.1)])
    def test_by_the_gpus_code(self, tiny_run, bundle_directory, precision, close):
        texts, found = texts_of(tiny_run, "test"), []
        for backend in (CpuBackend(), CudaBackend("cpu")):
            with replaced_backend(torch.device("cpu"), backend):
                tagger = Tagger.load(bundle_directory, precision=precision)
                found.append((tagger.tag(texts, top_k=3), tagger.tag(texts, labels=tagger.labels)))
        for tags, expected in zip(found[1][0], found[0][0], strict=True):
            assert [tag.score for tag in tags] == pytest.approx([tag.score for tag in expected], rel=close)
        for tags, expected in zip(found[1][1], found[0][1], strict=True):
            assert scores_of(tags) == pytest.approx(scores_of(expected), rel=close, abs=close / 10)

    def test_on_a_gpu_that_is_not_there(self, bundle_directory, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        with pytest.raises(SettingsError, match="cuda"):
            Tagger.load(bundle_directory, device="cuda")

    def test_of_a_wide_beam_is_exhaustive(self, tiny_run, bundle_directory, tagger):
        """The same as scoring every label along its path."""
        wide = Tagger.load(bundle_directory)
        for member in wide.ensemble.members.values():
            member.beam = 4
        texts = texts_of(tiny_run, "test")
        every = tagger.tag(texts, labels=tagger.labels)
        for found, expected in zip(wide.tag(texts, top_k=20), every, strict=True):
            assert len(found) == tiny_run.corpus.trained
            assert scores_of(found) == pytest.approx(scores_of(expected), rel=1e-4)
            assert [tag.score for tag in expected] == sorted((tag.score for tag in expected), reverse=True)

    def test_given_labels_and_a_beam_agree_on_what_every_member_ranks(self, tiny_run, tagger):
        texts = texts_of(tiny_run, "test")
        expected = tagger.tag(texts, labels=tagger.labels)
        rankings = tagger.ensemble.rank_members(tagger.codec.encode(texts))
        labels, scores = tagger.ensemble.combination.rank(rankings)
        for row, wanted in enumerate(map(scores_of, expected)):
            reached = set.intersection(*(set(one.labels[row].tolist()) for one in rankings.values())) - {-1}
            assert reached
            for label, score in zip(labels[row].tolist(), scores[row].tolist(), strict=True):
                if label in reached:
                    assert score == pytest.approx(wanted[tagger.labels[label]], rel=1e-4)

    def test_top_k_and_threshold(self, tiny_run, tagger):
        texts = texts_of(tiny_run, "test")
        whole = tagger.tag(texts, top_k=20)
        least = whole[0][1].probability
        for row, few, above in zip(whole, tagger.tag(texts, 2), tagger.tag(texts, 20, threshold=least), strict=True):
            assert few == row[:2]
            assert above == [tag for tag in row if tag.probability >= least]

    @pytest.mark.parametrize("asked", [{"precision": 0.9}, {"precision": 0.5}, {"count": 2}, {"count": 4}])
    def test_a_threshold_gives_on_validation_what_was_asked_for(self, tiny_run, tagger, asked):
        threshold = tagger.threshold(**asked)
        assert 0 <= threshold <= 1
        top, names = tagger.bundle.settings.top_labels, tagger.labels
        rows = tagger.tag(texts_of(tiny_run, "valid"), top_k=top, threshold=threshold)
        assert min(tag.probability for row in rows for tag in row) >= threshold
        truth = [{names[one] for one in row if one < len(names)} for row in tiny_run.corpus.split("valid").labels]
        hits = [tag.label in true for row, true in zip(rows, truth, strict=True) for tag in row]
        if "precision" in asked:
            assert sum(hits) / len(hits) >= asked["precision"]
        else:
            whole = tagger.tag(texts_of(tiny_run, "valid"), top_k=top)
            of_probability = Counter(tag.probability for row in whole for tag in row)
            counts = np.cumsum([of_probability[one] for one in sorted(of_probability, reverse=True)]) / len(rows)
            assert len(hits) / len(rows) == min(counts, key=lambda count: abs(count - asked["count"]))

    @pytest.mark.parametrize("text", ["", " \n\t", "… — !", "\0", " /SEP/ ", "\ud800"])
    def test_a_text_without_a_word_has_no_labels(self, tagger, text):
        with_words, without = tagger.tag(["key1", text], explain=True)
        assert with_words and without == []
        wanted = [tagger.labels[3], tagger.labels[0]]
        [tags] = tagger.tag([text], labels=wanted)
        assert [tag.label for tag in tags] == wanted and [tag.score for tag in tags] == [0, 0]
        assert tagger.tag(["unheard-of"]) != [[]]

    def test_members_apart(self, tiny_run, tagger):
        """As a server does that holds each member in a process of its own."""
        texts = texts_of(tiny_run, "test")
        tokens = tagger.codec.encode(texts)
        rankings: dict[str, TopK] = {}
        for entry in tagger.bundle.manifest.members:
            rankings |= tagger.bundle.ensemble(names=[entry.name]).rank_members(tokens)
        assert list(rankings) == ["network_tree-0", "network_tree-1"]
        assert tagger.codec.decode(tagger.bundle.combination.rank(rankings)) == tagger.tag(texts, top_k=20)

    def test_of_nothing(self, tagger):
        assert tagger.tag([]) == []
        assert tagger.tag(["key1"], labels=[]) == [[]]

    def test_in_parts(self, tiny_run, tagger, monkeypatch):
        texts = texts_of(tiny_run, "test")
        whole = tagger.tag(texts)
        monkeypatch.setattr(module, "TEXTS", 5)
        for found, expected in zip(tagger.tag(texts), whole, strict=True):
            assert scores_of(found) == pytest.approx(scores_of(expected), rel=1e-4)

    @pytest.mark.parametrize(
        "column_of",
        [np.array, pa.array, iter, pd.Series, lambda values: pd.DataFrame({"text": values})],
    )
    def test_columns_of_other_libraries(self, tiny_run, tagger, column_of):
        texts, labels = texts_of(tiny_run, "test")[:3], tagger.labels[:2]
        assert tagger.tag(column_of(texts), top_k=np.int64(2)) == tagger.tag(texts, top_k=2)
        assert tagger.tag(texts, labels=column_of(labels)) == tagger.tag(texts, labels=labels)

    def test_from_many_threads(self, tiny_run, tagger):
        texts = texts_of(tiny_run, "train")
        parts = [texts[start : start + 11] for start in range(0, 264, 11)]
        serial = [tagger.tag(part, explain=number % 3 == 0) for number, part in enumerate(parts)]
        with ThreadPoolExecutor(6) as pool:
            parallel = list(pool.map(lambda i: tagger.tag(parts[i], explain=i % 3 == 0), range(len(parts))))
        for found, expected in zip(parallel, serial, strict=True):
            for row, right in zip(found, expected, strict=True):
                assert scores_of(row) == scores_of(right)
                for tag, same in zip(row, right, strict=True):
                    assert (tag.explanation is None) == (same.explanation is None)
                    if tag.explanation and same.explanation:
                        assert np.array_equal(tag.explanation.weights, same.explanation.weights)

    @given(st.lists(st.text(st.characters(exclude_categories=()), max_size=60) | st.just("key2 " * 3_000), max_size=4))
    @settings(max_examples=25)
    def test_any_text(self, tagger, texts):
        rows = tagger.tag(texts, top_k=20)
        assert len(rows) == len(texts)
        for text, row in zip(texts, rows, strict=True):
            scores = [tag.score for tag in row]
            assert bool(row) == any(map(tagger.codec.tokenizer.split, storable(text).split(SEPARATOR)))
            assert len({tag.label for tag in row}) == len(row)
            assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1.001 for score in scores)
            assert all(0 <= tag.probability <= 1 and math.isfinite(tag.score) for tag in row)
            assert scores_of(tagger.tag([text], top_k=20)[0]) == pytest.approx(scores_of(row), rel=1e-3)

    def test_learned_something(self, tagger):
        [row] = tagger.tag(["key3 noise1 key0"], top_k=2)
        assert {tag.label for tag in row} == {"label-3", "label-0"}
        assert row[0].name == row[0].label and row[0].probability > 0.5


class TestMistakes:
    def test_one_text_instead_of_a_list(self, tagger):
        with pytest.raises(TypeError, match="texts: expected a list"):
            tagger.tag("one text")
        with pytest.raises(TypeError, match="texts: expected a list"):
            tagger.tag(["one", None])
        with pytest.raises(TypeError, match="labels: expected a list"):
            tagger.tag(["one"], labels="label-1")

    def test_a_table_of_several_columns(self, tagger):
        with pytest.raises(ValueError, match="title, text"):
            tagger.tag(pd.DataFrame({"title": ["a", "b"], "text": ["c", "d"]}))

    def test_an_unknown_number_format(self, bundle_directory):
        with pytest.raises(SettingsError, match="bf16"):
            Tagger.load(bundle_directory, precision="bf16")

    def test_unknown_labels(self, tagger):
        with pytest.raises(SettingsError, match="no label is called"):  # a lone surrogate, which UTF-8 cannot encode
            tagger.tag(["w1"], labels=["\ud800"])
        with pytest.raises(SettingsError, match="no label is called 'lable-3'; did you mean 'label-3'"):
            tagger.tag(["one"], labels=["label-1", "lable-3"])

    @pytest.mark.parametrize("top_k", [0, -1, 2.5])
    def test_top_k(self, tagger, top_k):
        with pytest.raises(SettingsError, match="top_k: expected a whole number above 0"):
            tagger.tag(["one"], top_k=top_k)

    @pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan])
    def test_threshold(self, tagger, threshold):
        with pytest.raises(SettingsError, match="threshold: expected a probability, 0 to 1"):
            tagger.tag(["one"], threshold=threshold)

    def test_a_path_instead_of_a_bundle(self, bundle_directory):
        with pytest.raises(TypeError, match=r"Tagger\.load\("):
            Tagger(bundle_directory)

    def test_an_explanation_that_was_not_asked_for(self, tagger):
        with pytest.raises(SettingsError, match="explain=True"):
            tagger.tag(["key1"])[0][0].ansi()


def test_the_example_of_the_documentation(bundle_directory, monkeypatch):
    monkeypatch.chdir(bundle_directory.parent)
    [example] = doctest.DocTestFinder(recurse=False).find(Tagger, "Tagger", module)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted >= 4 and not result.failed


@pytest.mark.processes
def test_the_package_is_light_until_a_tagger_is_asked_for():
    assert axml_ray.Tagger is Tagger and axml_ray.Tag is module.Tag
    assert {"Tag", "Tagger", "__version__"} <= set(dir(axml_ray))
    with pytest.raises(AttributeError, match="no attribute 'Tager'"):
        _ = axml_ray.Tager
    code = "import sys, axml_ray; assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    code += "; assert 'Tagger' in dir(axml_ray) and 'torch' not in sys.modules"
    code += "; axml_ray.Tagger; assert 'torch' in sys.modules and 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(axml_ray.__file__).parents[1])
