"""The systems that `peers.py` compares a run with: their programs and hyperparameters.

Hyperparameters are those that each program's documentation gives: omikuji's README for Parabel and Bonsai; the defaults
of napkinXC's `PLT` and of libpecos's `XLinearModel` with PIFA label embeddings; for one-vs-all, loss, cost and pruning
of DiSMEC (Babbar and Schölkopf, 2017); for ExtremeText, its authors' script for EURLex-4K with k-means trees.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from environments import Requirements

TREES = 3


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A system to compare with."""

    program: str
    """Name in `peer_worker.SYSTEMS`, and of its environment."""
    trees: int
    """Number of trees in its ensemble."""
    hyperparameters: Mapping[str, Any]
    """Hyperparameters by the program's own names."""
    is_slow: bool = False
    """Whether it takes hours on a corpus of many labels, so that it is only compared if it is named."""


PEERS = {
    "parabel": Peer(
        program="omikuji",
        trees=TREES,
        hyperparameters={"n_trees": TREES, "cluster_balanced": True, "cluster_k": 2, "max_depth": 20},
    ),
    "bonsai": Peer(
        program="omikuji",
        trees=TREES,
        hyperparameters={"n_trees": TREES, "cluster_balanced": False, "cluster_k": 100, "max_depth": 3},
    ),
    "napkinxc": Peer(program="napkinxc", trees=1, hyperparameters={"seed": 0}),
    "napkinxc_3": Peer(program="napkinxc", trees=TREES, hyperparameters={"seed": 0, "ensemble": TREES}),
    "one_vs_all": Peer(
        program="napkinxc",
        trees=0,
        hyperparameters={"model": "OVR", "loss": "squaredHinge", "liblinear_c": 1, "weights_threshold": 0.01},
        is_slow=True,
    ),
    "xr_linear": Peer(
        program="libpecos",
        trees=1,
        hyperparameters={"indexer": {"indexer_type": "hierarchicalkmeans", "seed": 0}, "train": {}},
    ),
    "extremetext": Peer(
        program="extremetext",
        trees=1,
        hyperparameters={"lr": 0.5, "epoch": 20, "arity": 2, "dim": 250, "l2": 0.001, "treeType": "kmeans", "neg": 5},
        is_slow=True,
    ),
}
BY_DEFAULT = tuple(name for name, peer in PEERS.items() if not peer.is_slow)
PROGRAMS = {
    "omikuji": Requirements(("omikuji==0.5.2", "milksnake==0.1.6", "cffi==2.1.1", "pycparser==3.12")),
    # Without what downloads data sets.
    "napkinxc": Requirements(("numpy==2.4.6", "scipy==1.17.1", "tqdm==4.70.1"), alone=("napkinxc==0.7.2",)),
    # The newest that libpecos 1.2.8 works with; without torch and transformers, which linear models don't use.
    "libpecos": Requirements(("numpy==1.26.4", "scipy==1.13.1", "scikit-learn==1.5.2"), alone=("libpecos==1.2.8",)),
    # Has no wheels; its build needs old setuptools and a C++ compiler.
    "extremetext": Requirements(
        ("numpy==1.26.4", "scipy==1.13.1", "pybind11==3.1.0", "setuptools==59.8.0", "wheel==0.48.0"),
        built=("extremetext==0.8.4",),
    ),
}
