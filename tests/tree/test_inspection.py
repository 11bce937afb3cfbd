"""Run: pytest tests/tree/test_inspection.py"""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from label_indexes import index_of
from scipy import sparse
from tiny_corpus import LABELS, write_corpus

from axml_ray.cli.parser import from_command_line
from axml_ray.core.errors import SettingsError
from axml_ray.runs.run import Run
from axml_ray.tree.inspection import (
    clusters_around,
    describe_labels,
    find_label,
    label_starts,
    node_sums,
    summarise_levels,
)
from axml_ray.tree.kinds import build_tree
from axml_ray.tree.label_tree import LabelTree

ROOT = Path(__file__).parents[2]
INDEX = index_of({"p1": 5, "p2": 3, "p3": 1}, ["p9"], {"p1": "Cats", "p2": "dogs", "p9": "quarks"})


def eight_labels() -> LabelTree:
    """{5, 0 | 3 | 1} and {2, 7 | 4, 6}."""
    return LabelTree(
        label_order=np.array([5, 0, 3, 1, 2, 7, 4, 6], np.int32),
        first_child=(np.array([0, 2]), np.array([0, 3, 5]), np.array([0, 2, 3, 4, 6, 8])),
    )


def test_levels_in_numbers_by_hand():
    assert label_starts(eight_labels(), 1).tolist() == [0, 4, 8]
    assert label_starts(eight_labels(), 2).tolist() == [0, 2, 3, 4, 6, 8]
    assert label_starts(eight_labels(), 0).tolist() == [0, 8]
    # All labels point one way but for 7, which stands alone in its direction.
    dense = np.tile([1.0, 0.0], (8, 1))
    dense[7] = [0, 1]
    features = sparse.csr_array(dense)
    assert node_sums(eight_labels(), 1, features).toarray().tolist() == [[4, 0], [3, 1]]
    first, second = summarise_levels(eight_labels(), features)
    assert (first.level, first.nodes, first.children, first.labels) == (1, 2, (2, 2.5, 3), (4, 4.0, 4))
    assert (second.level, second.nodes, second.children, second.labels) == (2, 5, (1, 1.6, 2), (1, 1.6, 2))
    # Of the second node, three labels have 3 / √10 and one has 1 / √10.
    assert first.similarity == pytest.approx((4 + (3 * 3 + 1) / np.sqrt(10)) / 8)
    assert second.similarity == pytest.approx((6 + 2 / np.sqrt(2)) / 8)


def test_clusters_around_a_label_are_its_own_and_the_most_alike_below_the_same_parent():
    angles = np.array([0, 60, 0, 30, 0, 0, 0, 0]) / 180 * np.pi
    features = sparse.csr_array(np.column_stack([np.cos(angles), np.sin(angles)]))
    found = [cluster.tolist() for cluster in clusters_around(eight_labels(), features, 5, 9)]
    assert found == [[5, 0], [3], [1]]
    assert [cluster.tolist() for cluster in clusters_around(eight_labels(), features, 1, 1)] == [[1], [3]]
    assert [cluster.tolist() for cluster in clusters_around(eight_labels(), features, 6, 0)] == [[4, 6]]


def test_a_label_is_found_by_name_or_as_the_corpus_writes_it():
    assert [find_label(INDEX, name) for name in ("Cats", "cats", "p1", "P2", "dogs", "p3")] == [0, 0, 0, 1, 1, 2]
    alike = index_of({"Queue": 9, "queue": 5, "\u00c4rzte": 3})
    assert [find_label(alike, name) for name in ("Queue", "queue", "QUEUE", "A\u0308rzte")] == [0, 1, 0, 2]
    with pytest.raises(SettingsError, match="called 'dog'; did you mean 'dogs'"):
        find_label(INDEX, "dog")
    with pytest.raises(SettingsError, match=r"called 'zzzz'; names are in labels\.parquet"):
        find_label(INDEX, "zzzz")
    with pytest.raises(SettingsError, match="no label with training documents"):
        find_label(INDEX, "quarks")


def test_names_of_a_cluster():
    assert describe_labels([1, 0, 2], INDEX, 5) == "Cats, dogs, p3"
    assert describe_labels(np.array([2, 1, 0]), INDEX, 1) == "Cats, and 2 more"


def test_the_job_shows_a_tree_with_and_without_a_run_and_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    flags = [f"--runs={tmp_path / 'runs'}", f"--corpora={tmp_path / 'corpora'}", "--name=tiny", "--corpus.name=tiny"]
    flags += ["--corpus.source=installed_packages", "--tree.cluster_size=4", "--seed=3"]
    settings = from_command_line("", flags)
    job = runpy.run_path(str(ROOT / "jobs" / "inspect_tree.py"))["main"]
    monkeypatch.chdir(tmp_path)

    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["inspect_tree.py", *flags, *more])
        job()
        return capsys.readouterr().out

    shown = run("--label", "LABEL-7", "--tree=2")
    assert "tree 2 of tiny: balanced" in shown and "not saved" in shown
    assert f"{LABELS}" in shown and "with label-7:" in shown

    run_files = Run(settings, corpus)
    path = run_files.layout.tree_file(0)
    path.parent.mkdir(parents=True)
    assert "not saved" in run("--tree=2")  # the run has the first only
    run_files.keep_tree(0, build_tree(corpus, settings.tree, 77))
    shown = run("--label", "label-7")
    assert "of the run" in shown
    own = shown.split("with label-7: ")[1].splitlines()[0].split(", ")
    tree = LabelTree.load(path)
    starts = label_starts(tree, 1)
    node = int(tree.leaf_of_label[corpus.labels.labels.index("label-7")])
    first, last = max(s for s in starts if s <= node), min(s for s in starts if s > node)
    assert sorted(own) == sorted(corpus.labels.names[label] for label in tree.label_order[first:last])
    assert "tree 1 of tiny" in shown
    assert "flat" in run("--tree.height=0", "--tree=3", "--html", "flat.html")
    assert "label-7" in (tmp_path / "flat.html").read_text(encoding="utf-8")

    for wrong, message in (
        ("--label=lable-7", "error: --label: no label with training documents is called 'lable-7'; did you mean"),
        ("--tree.cluster_size=8", f"error: {path}: a tree of another corpus or of other settings; give"),
        ("--tree=4", "error: --tree: 4 is not one of the ensemble's, 1 to 3"),
        ("--tree=0", "error: command line: argument --tree"),
        ("--corpus.name=none", f"error: {tmp_path / 'corpora' / 'none'}: no prepared corpus"),
        ("--tree.knid=random", "error: command line: --tree.knid: unknown setting; did you mean '--tree.kind'?"),
    ):
        with pytest.raises(SystemExit) as ended:
            run(wrong)
        error = capsys.readouterr().err
        assert ended.value.code == 2 and error.startswith(message) and error.count("\n") == 1
