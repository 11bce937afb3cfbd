"""Attention vectors started from label features, against the definition written out.

Run: pytest tests/training/test_label_vector_init.py
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from tiny_corpus import experiment, train_tree, write_corpus

from axml_ray.core.files import write_json
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.store import MANIFEST, Corpus
from axml_ray.network.backends.cpu_backend import LIMITS, CpuBackend
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings
from axml_ray.training import label_vector_init as module
from axml_ray.training import progress
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.label_vector_init import (
    START_LENGTH,
    initialise_attention,
    label_name_features,
    mean_word_states,
)
from axml_ray.tree.inspection import node_sums
from axml_ray.tree.label_tree import LabelTree

WORDS, LABELS = 12, 10


@pytest.fixture
def features() -> sparse.csr_matrix:
    random = np.random.default_rng(0)
    dense = random.random((LABELS, WORDS)).astype(np.float32) * (random.random((LABELS, WORDS)) < 0.5)
    dense[:, :2] = 0
    dense[3] = 0  # a label of which nothing is known
    return sparse.csr_matrix(dense)


@pytest.fixture
def tokens() -> Ragged:
    random = np.random.default_rng(1)
    # word 11 never occurs
    return Ragged.from_rows([random.integers(1, WORDS - 1, length) for length in (5, 1, 9, 3, 7)])


def network_of(tree: LabelTree, level: int, shard: Shard = WHOLE) -> FusedAttentionXML:
    torch.manual_seed(2)
    settings = NetworkSettings(hidden=4, fully_connected=(3,))
    vectors = torch.randn(WORDS, 6)
    vectors[0] = 0
    return FusedAttentionXML(Level.from_tree(tree, level), vectors, settings, shard)


def literal_states(network: FusedAttentionXML, tokens: Ragged) -> np.ndarray:
    """Mean hidden state of each word less the mean of all tokens, document by document."""
    of_word: dict[int, list[np.ndarray]] = {}
    every = []
    network.eval()
    for row in range(len(tokens)):
        ids = tokens[row]
        with torch.no_grad():
            states = network.encoder(torch.tensor(ids)[None].long(), torch.tensor([len(ids)]))[0].numpy()
        for word, state in zip(ids.tolist(), states, strict=True):
            of_word.setdefault(word, []).append(state)
            every.append(state)
    mean = np.mean(every, axis=0)
    dimension = every[0].shape[0]
    return np.stack([np.mean(of_word[w], axis=0) - mean if w in of_word else np.zeros(dimension) for w in range(WORDS)])


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_word_states_are_means_over_tokens(
    features: sparse.csr_matrix, tokens: Ragged, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORDS_AT_ONCE", at_once)
    monkeypatch.setattr(CpuBackend, "limits", replace(LIMITS, scoring_documents=2))
    network = network_of(LabelTree.build(features, height=1, cluster_size=4, seed=0), 1)
    found = mean_word_states(network, tokens, WORDS, "float32", DistributedContext()).numpy()
    np.testing.assert_allclose(found, literal_states(network, tokens), atol=1e-6)
    assert not found[11].any()


def test_label_name_features_are_the_tf_idf_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "tiny")
    known, named = corpus.labels, {2: "Key5, or key1 key5", 0: "key1", 7: "of unknown words", 4: "key2"}
    names = tuple(named.get(label, name) for label, name in enumerate(known.labels))
    LabelIndex(known.labels, names, known.counts).save(corpus.directory / "labels.parquet")
    files = corpus.manifest["files"] | {"labels.parquet": (corpus.directory / "labels.parquet").stat().st_size}
    write_json(corpus.directory / MANIFEST, {**corpus.manifest, "files": files})
    corpus, tokens = Corpus.open(corpus.directory), corpus.split("train").tokens
    words = {word: number for number, word in enumerate(corpus.tokenizer.words)}
    # What isn't read tells nothing: the fifth label's name is as good as none.
    tokens = tokens.take(np.array([row for row in range(len(tokens)) if words["key2"] not in tokens[row]]))
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", 17)
    found = label_name_features(corpus, tokens).toarray()
    holding = {word: sum(words[word] in row for row in tokens) for word in ("key1", "key5")}
    weight = {word: 1 + np.log((len(tokens) + 1) / (count + 1)) for word, count in holding.items()}
    expected = corpus.label_features().toarray()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    for label, own in ((2, {"key5": (1 + np.log(2)) * weight["key5"], "key1": weight["key1"]}), (0, {"key1": 1.0})):
        expected[label] = 0
        expected[label, [words[word] for word in own]] = list(own.values()) / np.linalg.norm(list(own.values()))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("height", [0, 1, 2])
def test_node_sums_are_the_sums_of_their_labels(features: sparse.csr_matrix, height: int) -> None:
    tree = LabelTree.build(features, height=height, cluster_size=2, seed=0)
    dense = features.toarray()
    for level in range(1, tree.height + 2):
        expected = np.zeros((tree.level_sizes[level - 1], WORDS))
        for label in range(LABELS):
            nodes, _ = tree.node_labels(level, np.array([label], np.int32), np.array([0, 1]))
            expected[nodes[0]] += dense[label]
        np.testing.assert_allclose(node_sums(tree, level, features).toarray(), expected, atol=1e-6)


def test_a_tree_starts_where_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("axml_ray.training.tree.initialise_attention", lambda *given: started.append(given[3]))
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    for start in ("random", "features", "names"):
        settings = experiment(tmp_path, epochs=(1,))
        network = settings.network.model_copy(update={"label_vector_init": start})
        train_tree(settings.model_copy(update={"network": network, "name": start}), corpus)
    centroids, names = corpus.label_features(), label_name_features(corpus, corpus.split("train").tokens)
    expected = [centroids, centroids, names, names]  # two levels each
    assert [abs(one - other).max() < 1e-6 for one, other in zip(started, expected, strict=True)] == [True] * 4


@pytest.mark.parametrize("level", [1, 2])
def test_vectors_point_to_their_words_and_the_rest_stays(
    features: sparse.csr_matrix, tokens: Ragged, level: int
) -> None:
    tree = LabelTree.build(features, height=1, cluster_size=4, seed=0)
    network = network_of(tree, level)
    before = network.attention.weight.detach().clone()
    states = literal_states(network, tokens)
    initialise_attention(network, tree, tokens, features, "float32", DistributedContext())
    node_rows = node_sums(tree, level, features).toarray() @ states
    lengths = np.linalg.norm(node_rows, axis=1, keepdims=True)
    unit = np.divide(node_rows, lengths, out=np.zeros_like(node_rows), where=lengths > 0)
    turned = unit - unit[lengths[:, 0] > 0].mean(0)
    expected = START_LENGTH * turned / np.linalg.norm(turned, axis=1, keepdims=True)
    blocks = network.attention.weight.detach().view(-1, 8)
    old = before.view(-1, 8)
    sizes = np.diff(tree.first_child[1]) if level == 2 else np.ones(tree.level_sizes[0], dtype=int)
    width = network.attention.block_size if level == 2 else 1
    node = 0
    for parent, size in enumerate(sizes):
        for place in range(width):
            row = blocks[parent * width + place]
            if place >= size:
                torch.testing.assert_close(row, old[parent * width + place])  # no node: never touched
                continue
            if lengths[node] > 0:
                np.testing.assert_allclose(row.numpy(), expected[node], atol=1e-5)
            else:
                torch.testing.assert_close(row, old[parent * width + place])
            node += 1
    assert node == tree.level_sizes[level - 1]


@dataclass(frozen=True)
class Threads(DistributedContext):
    """Workers that are threads of this process."""

    barrier_of_all: Barrier = field(default_factory=lambda: Barrier(1))
    given: list = field(default_factory=list)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        self.barrier_of_all.wait(10)
        self.given.append(values)
        self.barrier_of_all.wait(10)
        total = torch.stack(list(self.given)).sum(0)
        if self.barrier_of_all.wait(10) == 0:
            self.given.clear()
        self.barrier_of_all.wait(10)
        return total


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("level", [1, 2])
def test_shards_start_as_the_whole_does(
    features: sparse.csr_matrix, tokens: Ragged, level: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NODES_AT_ONCE", 2)
    monkeypatch.setattr(CpuBackend, "limits", replace(LIMITS, scoring_documents=2))
    tree = LabelTree.build(features, height=1, cluster_size=4, seed=0)
    whole = network_of(tree, level)
    before = whole.attention.weight.detach().clone()
    monkeypatch.setattr(progress, "REPORT_SECONDS", -1.0)
    records: list[dict[str, Any]] = []
    initialise_attention(whole, tree, tokens, features, "float32", DistributedContext(), records.append)
    assert [record["level"] for record in records] == [level] * len(records) and len(records) > 1
    assert records[-1]["read_so_far"] == records[-1]["documents"] == len(tokens)
    assert not torch.equal(whole.attention.weight, before)
    shards = [network_of(tree, level, Shard(rank, workers)) for rank in range(workers)]
    all_of_them, given = Barrier(workers), []

    def start(rank: int) -> None:
        worker = Threads(rank, workers, barrier_of_all=all_of_them, given=given)
        initialise_attention(shards[rank], tree, tokens, features, "float32", worker)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(start, range(workers)))
    for rank, shard in enumerate(shards):
        expected = whole.attention.weight[rank::workers]
        torch.testing.assert_close(shard.attention.weight, expected, rtol=1e-4, atol=1e-5)


def test_without_features_all_stays(tokens: Ragged, features: sparse.csr_matrix) -> None:
    tree = LabelTree.build(features, height=1, cluster_size=4, seed=0)
    network = network_of(tree, 2)
    before = network.attention.weight.detach().clone()
    initialise_attention(
        network, tree, tokens, sparse.csr_matrix((LABELS, WORDS), dtype=np.float32), "float32", DistributedContext()
    )
    assert torch.equal(network.attention.weight, before)
