"""Label trees built on a real Ray cluster."""

from collections.abc import Iterator

import numpy as np
import pytest
import ray
from scipy import sparse
from tiny_corpus import experiment, write_corpus

from axml_ray.cluster.tasks import map_in_tasks
from axml_ray.corpus.store import Corpus
from axml_ray.orchestration import label_trees as module
from axml_ray.orchestration.label_trees import build_trees, cluster_labels
from axml_ray.runs.run import Run
from axml_ray.tree import clustering
from axml_ray.tree.clustering import balanced_clusters, normalise_rows
from axml_ray.tree.subtree import Subtree


def random_features(labels: int) -> sparse.csr_array:
    rng = np.random.default_rng(0)
    return normalise_rows(sparse.random_array((labels, 300), density=0.05, rng=rng, format="csr"))


def test_subtrees_as_ray_tasks_are_the_same_tree(ray_cluster, monkeypatch):
    monkeypatch.setattr(clustering, "SUBTREE_TERMS", 400)
    features = random_features(600)
    jobs = []

    def counted(work, subtrees):
        def watched():
            for subtree in subtrees:
                jobs.append(subtree)
                yield subtree

        return map_in_tasks(work, watched(), 1 << 28)

    alone, _ = balanced_clusters(features, 7, seed=2)
    spread, _ = balanced_clusters(features, 7, seed=2, threads=2, parallel_map=counted)
    assert np.array_equal(alone, spread)
    assert len(jobs) == 32 and all(isinstance(job, Subtree) for job in jobs)


@pytest.fixture
def tenant(ray_cluster) -> Iterator[None]:
    """An actor of somebody else that holds one of the two CPUs as long as the test runs."""

    class Tenant:
        def is_ready(self) -> bool:
            return True

    actor = ray.remote(num_cpus=1)(Tenant).remote()
    assert ray.get(actor.is_ready.remote())
    yield
    ray.kill(actor)


def test_a_large_tree_gives_its_only_cpu_to_its_subtrees(tenant, tmp_path):
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    settings = experiment(tmp_path, tree={"cluster_size": 2})
    expected = cluster_labels(Run(settings, corpus), 0, 1 << 28)
    for file in corpus.files("train"):  # the task has no need of them
        file.write_bytes(bytes(file.stat().st_size))

    def large(settings, directory):
        module.LARGE_LABELS, clustering.SUBTREE_TERMS = 10, 50
        return cluster_labels(Run(settings, Corpus.open(directory)), 0, 1 << 28)

    found = ray.get(ray.remote(num_cpus=1)(large).remote(settings, corpus.directory), timeout=120)
    assert np.array_equal(found.label_order, expected.label_order)


@pytest.mark.timeout(120)
def test_large_trees_do_not_wait_for_another_tenant(tenant, in_tasks, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "LARGE_LABELS", 10)
    current = Run(experiment(tmp_path), write_corpus(tmp_path / "corpora" / "tiny"))
    build_trees(current)
    assert all(current.has_tree(number) for number in range(3))


@pytest.fixture
def in_tasks(ray_cluster, monkeypatch) -> None:
    """Small trees are built by Ray tasks too."""
    monkeypatch.setattr(module, "SMALL_LABELS", 0)


def test_small_trees_are_built_without_ray(tmp_path):
    current = Run(experiment(tmp_path), write_corpus(tmp_path / "corpora" / "tiny"))
    build_trees(current)
    for number in range(3):
        expected = cluster_labels(current, number, 1 << 28)
        assert np.array_equal(current.open_tree(number).label_order, expected.label_order)


def test_trees_are_built_once(in_tasks, tmp_path):
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    current = Run(experiment(tmp_path), corpus)
    build_trees(current)
    paths = [current.layout.tree_file(number) for number in range(3)]
    before = [path.stat().st_ino for path in paths]
    paths[1].write_bytes(paths[1].read_bytes()[:-3])
    build_trees(current)
    after = [path.stat().st_ino for path in paths]
    assert (after[0], after[2]) == (before[0], before[2]) and current.has_tree(1)
    orders = [current.open_tree(number).label_order for number in range(3)]
    assert all(sorted(order) == list(range(corpus.trained)) for order in orders)
    assert not all(np.array_equal(orders[0], order) for order in orders[1:])


def test_trees_that_cannot_be_built_are_one_line(in_tasks, tmp_path):
    """As on a node that doesn't see the directory of the corpus."""
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    settings = experiment(tmp_path)
    current = Run(settings, corpus)
    assert current.counts.labels == corpus.trained  # here, it is seen
    corpus.directory.rename(tmp_path / "elsewhere")
    with pytest.raises(
        RuntimeError, match=rf"^the label trees could not be built: {settings.corpus_directory}"
    ) as raised:
        build_trees(current)
    assert "\n" not in str(raised.value)
