"""What members and combiners are worth, on a tiny run. Run: pytest tests/benchmarks/test_members_benchmark.py"""

import json

import numpy as np
import pytest
import torch
from member_scores import COLUMNS, Evidence, main
from tiny_run import train_run

from axml_ray.core.errors import SettingsError
from axml_ray.core.topk import TopK
from axml_ray.ensemble.combiner import Mean, combiner_class
from axml_ray.evaluation.metrics.metrics import ndcg_at

pytestmark = pytest.mark.processes  # the results file asks git for the commit

KINDS = ("network_tree", "linear_tree", "knn")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    members = dict(zip(KINDS, ({"weight": 0.5}, {"weight": 0.3, "cluster_size": 4}, {"weight": 0.2}), strict=True))
    return train_run(tmp_path_factory.mktemp("home"), trees=2, epochs=2, members=members)


@pytest.fixture(scope="module")
def rows(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "members.json"
    main(["--run", str(run.settings.run_directory), "--threads", "1", "--json", str(path)])
    content = json.loads(path.read_text())
    rows = {row["combination"]: row["scores"] for row in content["rows"]}
    for name, scores in rows.items():
        assert {f"{name}_{column}" for column in COLUMNS} <= content["figures"].keys()
        assert all(0 <= score <= 100 for score in scores.values())
    return rows


def ndcg(run, labels):
    truth = run.corpus.split("valid").labels
    of_each = ndcg_at(labels, truth.values, truth.offsets, 5)
    return 100 * of_each[truth.lengths > 0].mean()


def test_there_is_a_row_for_every_question(rows):
    combined = ["mean", *(f"without {kind}" for kind in KINDS), "mean of halves", "calibrated", "weighted"]
    assert list(rows) == [*KINDS, *combined]
    assert rows["mean of halves"] == rows["mean"]


def test_means_are_of_the_members_own_rankings(run, rows):
    tokens = run.corpus.split("valid").tokens
    ensemble = run.open_ensemble(Mean)
    rankings = ensemble.rank_members(tokens)
    assert rows["mean"]["nDCG@5"] == pytest.approx(ndcg(run, ensemble.rank(tokens).labels))
    assert rows["knn"]["nDCG@5"] == pytest.approx(ndcg(run, rankings["knn"].labels))
    # By dense arrays: the four members of trees, without the nearest neighbours.
    dense = np.zeros((len(tokens), run.corpus.trained))
    for name, weight in (("network_tree", 0.25), ("linear_tree", 0.15)):
        for labels, scores in (rankings[f"{name}-{tree}"] for tree in (0, 1)):
            for row, (own, points) in enumerate(zip(labels, scores, strict=True)):
                dense[row, own[own >= 0]] += weight * points[own >= 0].astype(np.float64)
    best = np.argsort(-dense, axis=1, kind="stable")[:, :5].astype(np.int32)
    assert rows["without knn"]["nDCG@5"] == pytest.approx(ndcg(run, best))


def test_a_combiner_is_scored_on_documents_that_it_was_not_fitted_on(run, rows, monkeypatch):
    kind = "calibrated"
    evidence = Evidence.of_run(run)
    implementation, fitted, ranked = combiner_class(kind), [], []
    fit, rank = implementation.fit, implementation.rank

    def followed(validation, k):
        fitted.append(validation)
        return fit(validation, k)

    def following(combiner, members, rankings, k):
        ranked.append(rankings)
        return rank(combiner, members, rankings, k)

    monkeypatch.setattr(implementation, "fit", followed)
    monkeypatch.setattr(implementation, "rank", following)
    row = evidence.cross_fitted(kind, implementation)
    documents = run.corpus.documents("valid")
    every = evidence.validation.rankings[0].scores
    assert len(fitted) == len(ranked) == 2
    for known, new, half in zip(fitted, ranked, (1, 0), strict=True):
        assert np.array_equal(known.rankings[0].scores, every[half::2])
        assert np.array_equal(new[0].scores, every[1 - half :: 2])
    assert sum(len(known.truth) for known in fitted) == documents
    # The same by hand.
    found = TopK.empty(documents, evidence.k)
    for known, new, half in zip(fitted, ranked, (1, 0), strict=True):
        ranking = rank(fit(known, evidence.k), known.members, new, evidence.k)
        found.labels[1 - half :: 2] = ranking.labels
    assert row["scores"]["nDCG@5"] == rows[kind]["nDCG@5"] == pytest.approx(ndcg(run, found.labels))


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="not a run"):
        main(["--run", str(tmp_path)])
