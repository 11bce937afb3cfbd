"""The benchmark of clustering, but for its timings. Run: pytest tests/benchmarks/test_clustering_benchmark.py"""

import json
import sys

import ablations
import clustering
import literal_clustering
import numpy as np
import pytest
from clustering_worker import integer, leaf_labels
from environments import PeerError
from rich.console import Console
from scipy import sparse

from axml_ray.settings.configuration import load


def test_similarity_by_hand():
    features = sparse.csr_matrix(np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8]], np.float32))
    order, offsets = np.array([0, 2, 1, 3]), np.array([0, 2, 4])
    # The first two are one direction; the sum of the others is (0.6, 1.8), of length √3.6.
    assert clustering.similarity(features, order, offsets) == pytest.approx((2 + 3.6**0.5) / 4)
    with pytest.raises(PeerError, match="not every label"):
        clustering.similarity(features, np.array([0, 0, 1, 3]), offsets)


def test_similarity_of_many_clusters_is_that_of_all_at_once(monkeypatch):
    features = clustering.generated(500)
    order, offsets = literal_clustering.clusters(features, 6, 0)
    whole = clustering.similarity(features, order, offsets)
    monkeypatch.setattr(clustering, "ROWS", 64)
    assert clustering.similarity(features, order, offsets) == pytest.approx(whole)


def test_generated_features_have_64_terms_length_one_and_a_hierarchy(monkeypatch):
    features = clustering.generated(300, seed=3)
    assert features.shape == (300, 524_288) and features.dtype == np.float32
    assert (np.diff(features.indptr) == 64).all() and features.has_canonical_format
    assert np.allclose(features.multiply(features).sum(axis=1), 1, atol=1e-5)
    # In any order of drawing blocks of rows, related labels are alike and others aren't.
    likeness = np.sort((features @ features.T).toarray(), axis=1)
    assert np.median(likeness[:, -2]) > 2 * np.median(likeness)


def test_the_literal_version_finds_groups():
    groups = np.arange(64) % 8
    features = sparse.csr_matrix(np.eye(8, dtype=np.float32)[groups])
    best = []
    for seed in range(10):
        order, offsets = literal_clustering.clusters(features, 3, seed)
        assert sorted(order) == list(range(64)) and (np.diff(offsets) == 8).all()
        best.append(clustering.similarity(features, order, offsets))
    assert min(best) > 0.55  # clusters drawn at random have 0.48


def test_saved_leaves_of_omikuji_are_read():
    def array(numbers):
        encoded = b"".join(
            bytes([n]) if n < 24 else b"\x18" + bytes([n]) if n < 256 else b"\x19" + n.to_bytes(2, "big")
            for n in numbers
        )
        return bytes([0x80 | len(numbers)]) + encoded

    saved = b"\xa2gweights\x80flabels" + array([3, 200, 4000]) + b"dLeafflabels" + array([7])
    assert list(leaf_labels(saved)) == [[3, 200, 4000], [7]]
    assert integer(b"\x1a\x00\x01\x00\x00", 0) == (65_536, 5)


@pytest.mark.processes
def test_figures_of_a_small_run(monkeypatch, tmp_path):
    for name, labels in (("SMALL", 300), ("MIDDLE", 500), ("LARGE", 700)):
        monkeypatch.setattr(clustering, name, labels)
    rows = []
    for name, make, systems in clustering.cases(tmp_path, quick=True):
        own = {system: sys.executable for system in systems if system in ("ours", "literal")}
        rows += clustering.measure(name, make(), own, 1)
    assert [(row["labels"], row["system"]) for row in rows] == [
        (300, "ours"),
        (300, "literal"),
        (500, "ours"),
        (700, "ours"),
    ]
    assert all(row["seconds"] > 0 and 0 < row["similarity"] <= 1 and row["peak_gib"] > 0 for row in rows)
    assert rows[0]["largest_cluster"] <= clustering.CLUSTER_SIZE
    assert rows[0]["similarity"] == pytest.approx(rows[1]["similarity"], abs=0.02)
    found = clustering.figures([*rows, rows[1] | {"system": "libpecos"}])
    assert found["speedup_100k"] == found["speedup_vs_libpecos_100k"] > 0
    assert found["seconds_2800k"] == rows[3]["seconds"]
    Console(quiet=True).print(clustering.table(rows))
    json.dumps(found)


def test_rows_of_the_ablations_are_settings(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("corpus: {source: installed_packages}\ntree: {cluster_size: 16, beam: 32}\n")
    settings = load(config)
    for quick in (False, True):
        for rows in ablations.tables(settings, quick=quick).values():
            for name, changes in rows:
                shape = load(config, **changes).tree
                if name.startswith(("K", "H")):
                    assert shape.beam * shape.cluster_size == 512
        assert ablations.tables(settings, quick=quick).keys() == set(ablations.TABLES)
    *_, (_, of_file) = ablations.tables(settings, quick=True, vectors=tmp_path / "some words.npy")["vectors"]
    assert load(config, **of_file).corpus.word_vectors_path == tmp_path / "some words.npy"
    values = dict.fromkeys((*ablations.COLUMNS, ablations.VALID), 12.3)
    row = {"table": "kinds", "row": "random", "seeds": 2, "scores": values, "half_spread": values, "train_seconds": 3.0}
    figures = {"random_P@1": 12.3, "random_P@5": 12.3, "random_PSP@5": 12.3, "random_valid": 12.3}
    assert ablations.figures([row]) == figures
    Console(quiet=True).print(ablations.shown([row, row]))
