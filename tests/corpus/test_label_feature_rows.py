"""Given features of labels. Run: pytest tests/corpus/test_label_feature_rows.py"""

import gzip
from pathlib import Path

import numpy as np
import pytest
from corpus.preparing import Prepare, error_of, many

from axml_ray.settings import TreeSettings
from axml_ray.tree.kinds import build_tree

ROWS = "0:3 2:4\n2:2\n1:1 2:1\n\n3:1\n"
ROW_OF_LABEL = {0: [0.6, 0, 0.8, 0], 1: [0, 0, 1, 0], 2: [0, 0.5**0.5, 0.5**0.5, 0], 3: [0] * 4, 4: [0, 0, 0, 1]}


@pytest.mark.parametrize("first", [0, 1])
def test_row_i_has_the_features_of_label_i(run: Prepare, tmp_path: Path, first: int) -> None:
    (tmp_path / "lbl_X_Xf.txt.gz").write_bytes(gzip.compress(f"5 3\n{ROWS}".encode()))
    # Ids of labels are not the numbers of rows: no text has the label of row 2, and one label has no row.
    labels = [*(str(first + row) for row in (4, 3, 0, 1)), "other"]
    records = [(f"text {i}", [label]) for i, label in enumerate(labels)]
    corpus = run(train=records * 4, test_share=0, label_features=tmp_path / "lbl_X_Xf.txt.gz")
    assert set(corpus.labels.labels) == set(labels) and corpus.trained == 5
    found = dict(zip(corpus.labels.labels, corpus.clustering_features().toarray()[:, :4], strict=True))
    assert not found.pop("other").any()
    for label, vector in found.items():
        np.testing.assert_allclose(vector, ROW_OF_LABEL[int(label) - first], rtol=1e-6)
    assert corpus.label_features().shape == (5, len(corpus.tokenizer))  # as without the file


def test_trees_are_clustered_by_the_given_features(run: Prepare, tmp_path: Path) -> None:
    records = [(f"{'left' if label < 4 else 'right'} word", [str(label)]) for label in range(8)] * 3
    (tmp_path / "lbl.txt").write_text("8 2\n" + "0:1\n1:1\n" * 4)  # not by the words, but even and odd labels
    corpus = run(train=records, test_share=0, label_features=tmp_path / "lbl.txt")
    tree = build_tree(corpus, TreeSettings(height=1, cluster_size=4), seed=0)
    parity = [int(corpus.labels.labels[label]) % 2 for label in tree.label_order]
    assert parity in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (None, "lbl.txt cannot be read"),
        ("", "lbl.txt has 0 rows"),
        ("-5 3\n", "lbl.txt has 0 rows"),
        ("0:3 2:4\n2:2\n", "lbl.txt:1:"),
        (f"4 3\n{ROWS}", "lbl.txt:6:"),
        (f"7 3\n{ROWS}", "lbl.txt has 5 rows"),
        ("2 3\n0:1\nx 1:1\n", "lbl.txt:3:"),
        ("2 3\n0:1 1\n1:1\n", "lbl.txt:2:"),
        ("2 3\n0:1\n4:1\n", "lbl.txt:3:"),
        ("2 3\n0:1\n-1:1\n", "lbl.txt:3:"),
        ("2 3\n0:nan\n1:1\n", "lbl.txt:2:"),
        ("2 3\n0:1\n99999999999:1\n", "lbl.txt:3:"),
        ("2 3\n0:1\n1:1\n", "from 0 to 1"),
    ],
)
def test_wrong_features(run: Prepare, tmp_path: Path, content: str | None, place: str) -> None:
    if content is not None:
        (tmp_path / "lbl.txt").write_text(content)
    message = error_of(run, train=many(20), test_share=0, label_features=tmp_path / "lbl.txt")
    assert message.startswith("corpus.label_features: ") and place in message
