from pathlib import Path
from typing import Any

import pytest

from axml_ray.corpus.preparation.merging import VOCABULARY_SIZE
from axml_ray.settings.configuration import load

CONFIGS = Path(__file__).parents[2] / "configs"

# The paper's Table 2 (E, B, N̂, N̂_fc, H, M = K, C), its table of data sets (training documents, labels), and from its
# program: epochs before averaging, frozen word vectors, validation documents, A and B of propensities.
PAPER: dict[str, tuple[Any, ...]] = {
    "eurlex4k": (30, 40, 256, (256,), None, None, None, 15_449, 3_956, (10,), True, 200, 0.55, 1.5),
    "wiki10_31k": (30, 40, 256, (256,), None, None, None, 14_146, 30_938, (4,), True, 200, 0.55, 1.5),
    "amazoncat13k": (10, 200, 512, (512, 256), None, None, None, 1_186_239, 13_330, (2,), False, 4000, 0.55, 1.5),
    "amazon670k": (10, 200, 512, (512, 256), 3, 8, 160, 490_449, 670_091, (6, 2), False, 4000, 0.6, 2.6),
    "wiki500k": (5, 200, 512, (512, 256), 1, 64, 15, 1_779_881, 501_008, (2, 1), False, 4000, 0.5, 0.4),
    "amazon3m": (5, 200, 512, (512, 256), 3, 8, 160, 1_717_899, 2_812_281, (2, 1), False, 4000, 0.6, 2.6),
}


@pytest.mark.parametrize("name", PAPER)
def test_configs_are_the_papers(name: str) -> None:
    settings = load(CONFIGS / f"{name}.yaml")
    corpus, tree, network, training = settings.corpus, settings.tree, settings.network, settings.training
    levels = (tree.height, tree.cluster_size, tree.beam) if tree.height else (None, None, None)
    assert settings.name == corpus.name == name
    assert PAPER[name] == (
        training.epochs[0],
        training.batch_size,
        network.hidden,
        network.fully_connected,
        *levels,
        corpus.expected.documents,
        corpus.expected.labels,
        training.average_after,
        not network.train_embeddings,
        corpus.valid_documents,
        *settings.evaluation.propensity,
    )
    assert len(training.epochs) == 1
    assert settings.ensemble.trees == 3
    assert (corpus.max_tokens, VOCABULARY_SIZE) == (500, 500_000)
    assert not network.evidence
    assert network.label_vector_init == "random"
