"""The worker that clusters labels with one system; `clustering.py` starts it with the Python of that environment.

    PYTHON benchmarks/clustering_worker.py SYSTEM DIRECTORY

SYSTEM is `ours`, `literal`, `libpecos` or `omikuji`. DIRECTORY holds, and gets:

- `data.npy`, `indices.npy`, `indptr.npy`: label features, float32 CSR; for omikuji `features.txt` instead, a document a
  label in the Extreme Classification Repository's format.
- `task.json`: `{"labels", "columns", "cluster_size", "depth", "seed", "threads"}`.
- `order.int64`, `offsets.int64` (out): labels cluster by cluster, and where each cluster begins.
- `done.json` (out, last): `{"seconds", "peak_gib", "program"}`.

`seconds` is the time of clustering, without reading the features; `peak_gib` is the peak of the whole process.
omikuji can't cluster without training (its switch for that fails in 0.5.2), so it also trains classifiers with one
iteration, which keep no weights; its seconds, read from its log, include that.
"""

import json
import os
import re
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # no package is installed in a peer's environment
from axml_ray.core.memory import keep_freed_memory, peak_gib

Task = dict[str, Any]
Clusters = tuple[bytes, bytes]  # labels in the order of clusters, and offsets, as int64


def main(system: str, directory: Path) -> None:
    """Cluster the features in `directory`."""
    task = json.loads((directory / "task.json").read_text())
    (order, offsets), seconds, program = SYSTEMS[system](directory, task)
    (directory / "order.int64").write_bytes(order)
    (directory / "offsets.int64").write_bytes(offsets)
    (directory / "done.json").write_text(json.dumps({"seconds": seconds, "peak_gib": peak_gib(), "program": program}))


def ours(directory: Path, task: Task) -> tuple[Clusters, float, str]:
    """Cluster with `LabelTree.build`."""
    from axml_ray.tree.label_tree import LabelTree

    keep_freed_memory()  # as the job does that builds trees
    matrix = features(directory, task)
    began = time.perf_counter()
    tree = LabelTree.build(
        matrix, height=3, cluster_size=task["cluster_size"], seed=task["seed"], threads=task["threads"]
    )
    seconds = time.perf_counter() - began
    return (tree.label_order.astype("int64").tobytes(), tree.first_child[-1].tobytes()), seconds, "axml-ray"


def literal(directory: Path, task: Task) -> tuple[Clusters, float, str]:
    """Cluster with `literal_clustering.clusters`."""
    sys.path.insert(0, str(Path(__file__).parent))
    from literal_clustering import clusters

    keep_freed_memory()
    matrix = features(directory, task)
    began = time.perf_counter()
    order, offsets = clusters(matrix, task["depth"], task["seed"])
    return (order.tobytes(), offsets.tobytes()), time.perf_counter() - began, "literal"


def libpecos(directory: Path, task: Task) -> tuple[Clusters, float, str]:
    """Cluster with libpecos's hierarchical 2-means, 20 rounds per split, without sampling."""
    from importlib.metadata import version

    from pecos.xmc import Indexer  # type: ignore[import-not-found]

    matrix = features(directory, task)
    began = time.perf_counter()
    chain = Indexer.gen(
        matrix,
        indexer_type="hierarchicalkmeans",
        nr_splits=2,
        max_leaf_size=task["cluster_size"],
        seed=task["seed"],
        threads=task["threads"],
    )
    seconds = time.perf_counter() - began
    last = chain[len(chain) - 1].tocsc()
    clusters = last.indices.astype("int64").tobytes(), last.indptr.astype("int64").tobytes()
    return clusters, seconds, f"libpecos {version('libpecos')}"


def features(directory: Path, task: Task) -> Any:
    """Return the label features, float32 CSR [labels, columns]."""
    import numpy as np
    from scipy import sparse

    parts = tuple(np.load(directory / f"{name}.npy") for name in ("data", "indices", "indptr"))
    return sparse.csr_matrix(parts, shape=(task["labels"], task["columns"]))


def omikuji(directory: Path, task: Task) -> tuple[Clusters, float, str]:
    """Cluster with Parabel's balanced 2-means; a node becomes a leaf at the cluster size of the other systems."""
    import omikuji  # type: ignore[import-not-found]

    chosen = omikuji.Model.default_hyper_param()
    chosen.n_trees, chosen.cluster_k, chosen.cluster_balanced = 1, 2, True
    chosen.min_branch_size, chosen.max_depth = -(-task["labels"] // 2 ** task["depth"]) + 1, 64
    chosen.linear_max_iter, chosen.linear_weight_threshold = 1, 1e9
    with tempfile.TemporaryFile() as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        model = omikuji.Model.train_on_data(str(directory / "features.txt"), chosen, task["threads"])
        ended = datetime.now(UTC)
        log.seek(0)
        began = re.search(r"(\S+) INFO[^\n]*Start training forest", log.read().decode())
    assert began, "omikuji's log doesn't say when it began"
    seconds = (ended - datetime.fromisoformat(began[1])).total_seconds()
    with tempfile.TemporaryDirectory() as saved:
        model.save(saved)
        leaves = list(leaf_labels((Path(saved) / "tree0.cbor").read_bytes()))
    order = array("q", [label for leaf in leaves for label in leaf])
    offsets = array("q", [0])
    for leaf in leaves:
        offsets.append(offsets[-1] + len(leaf))
    return (order.tobytes(), offsets.tobytes()), seconds, f"omikuji {omikuji.__version__}"


def leaf_labels(saved: bytes) -> Iterator[list[int]]:
    """Yield the labels of each leaf of a saved omikuji tree: CBOR arrays of integers after the text "labels"."""
    key = b"flabels"
    position = saved.find(key)
    while position >= 0:
        length, position = integer(saved, position + len(key))
        labels = []
        for _ in range(length):
            label, position = integer(saved, position)
            labels.append(label)
        yield labels
        position = saved.find(key, position)


def integer(saved: bytes, position: int) -> tuple[int, int]:
    """Return the number in a CBOR head (an array's length or an unsigned integer), and where the head ends."""
    small = saved[position] & 0x1F
    if small < 24:
        return small, position + 1
    width = 1 << (small - 24)
    return int.from_bytes(saved[position + 1 : position + 1 + width], "big"), position + 1 + width


SYSTEMS: dict[str, Callable[[Path, Task], tuple[Clusters, float, str]]] = {
    "ours": ours,
    "literal": literal,
    "libpecos": libpecos,
    "omikuji": omikuji,
}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
