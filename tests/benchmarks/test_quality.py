"""The benchmark of quality, and the tables of scores in the pages. Run: pytest tests/benchmarks/test_quality.py"""

import json
from pathlib import Path

import pytest
import quality
import quality_table
import results_file
from tiny_run import train_run

from axml_ray.inference.predict.predict_split import predict_split
from axml_ray.workflow.evaluate import evaluate


@pytest.mark.slow
def test_scores_by_number_of_trees(tmp_path: Path) -> None:
    trained = train_run(tmp_path, trees=3)
    predict_split(trained, "test")
    metrics = evaluate(trained)
    rows = list(quality.by_trees(trained))
    found, spreads = ({count: scores[of] for count, *scores in rows} for of in (0, 1))
    assert list(found) == list(spreads) == ["1", "2", "3"]
    for name, score in metrics["ensemble"].items():
        assert found["3"][name] == pytest.approx(score)
        alone = [member[name] for member in metrics["members"].values()]
        assert found["1"][name] == pytest.approx(sum(alone) / 3)
        assert spreads["1"][name] == pytest.approx((max(alone) - min(alone)) / 2) and spreads["3"][name] == 0


@pytest.mark.slow
def test_trees_without_clusters_share_their_linear_classifiers(tmp_path: Path) -> None:
    weights = {"network_tree": {"weight": 0.5}, "linear_tree": {"weight": 0.5}}
    trained = train_run(tmp_path, trees=2, height=0, epochs=1, members=weights)
    weight_of = {member.name: member.weight for member in trained.members}
    assert weight_of == {"network_tree-0": 0.25, "network_tree-1": 0.25, "linear_tree-0": 0.5}
    assert not trained.layout.member("linear_tree", 1).exists()
    predict_split(trained, "test")
    linear = evaluate(trained)["members"]["linear_tree-0"]
    found = {count: scores for count, scores, _ in quality.by_trees(trained)}
    assert linear["P@1"] > 50 and found["1"]["P@1"] > 50  # both subsets of one tree have the linear classifiers


def test_tables_have_means_and_separate_rows_of_known_test_scores(tmp_path: Path) -> None:
    scores = {name: 50.0 for name in quality.FIGURES}
    rows = [
        {"trees": 3, "documents": {"test": 9}, "by_trees": {"1": scores, "2": scores, "3": scores | {"P@1": points}}}
        for points in (93, 94)
    ]
    for part in ("eurlex57k", "eurlex57k-refit"):
        (tmp_path / f"quality-{part}.json").write_text(json.dumps({"command": "python", "rows": rows}))
    made = quality_table.tables(tmp_path)
    (ours,) = [line for line in made["headline"] if line.startswith("| **axml-ray, 3 trees**")]
    assert ours.split("|")[2].strip() == "**93.5**"
    assert not any("refit" in line for name in ("readme", "headline", "headline-sources") for line in made[name])
    assert any(line.startswith("| **axml-ray, 3 trees, refit**") for line in made["test-known"])
    assert "`tibkat`" in made["not-run"][0] and "eurlex57k" not in made["not-run"][0]
    assert quality.figures(rows, 3)["P@1_half_spread"] == 0.5


def test_rows_of_other_test_documents_are_in_other_tables(tmp_path: Path) -> None:
    scores = {name: 50.0 for name in quality.FIGURES}
    for part, tests in (("quickstart", 7), ("quickstart-auto", 8)):
        rows = [{"trees": 1, "documents": {"test": tests}, "by_trees": {"1": scores}}]
        (tmp_path / f"quality-{part}.json").write_text(json.dumps({"command": "python", "rows": rows}))
        peer = {"system": part, "program": "peer", "scores": scores, "test_documents": tests}
        peer["training_documents_left_out_by_quick"] = 0
        (tmp_path / f"peers-quality-{part}-seed0.json").write_text(json.dumps({"command": "python", "rows": [peer]}))
    made = quality_table.tables(tmp_path)
    assert [line.split("|")[1].strip() for line in made["headline"][3:]] == [
        "peer, quickstart",
        "**axml-ray, one tree**",
    ]
    assert [line.split("|")[1].strip(" *") for line in made["auto"][3:]] == [
        "peer, quickstart-auto",
        "axml-ray, one tree, auto",
    ]
    assert len(made["headline-sources"]) == 2 + 4


def test_every_row_of_ours_names_its_file_and_command() -> None:
    made = quality_table.tables(results_file.RESULTS)
    lines = [line for name in ("headline-sources", "test-known-sources") for line in made[name] if "axml-ray" in line]
    corpora = [path.stem.split("-")[1] for path in results_file.RESULTS.glob("quality-*.json")]
    assert len(lines) == sum(corpus in quality_table.PUBLISHED for corpus in corpora)
    assert all("–" not in line.split("|") and "`python benchmarks/" in line for line in lines)


@pytest.mark.parametrize("page", quality_table.PAGES, ids=lambda page: page.name)
def test_a_page_has_the_tables_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert quality_table.with_tables(text, quality_table.tables(results_file.RESULTS)) == text
