"""The loss of every training step equals the stored curve, so that no refactoring changes training unnoticed.

After an intended change of training, store the curve anew and explain the difference in the commit:

    PYTHONPATH=tests/training python tests/training/test_golden_loss.py
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_corpus import DEEP, FLAT, curve_of, small_network, small_training

from axml_ray.network.tree_level import Level

CURVES = Path(__file__).with_name("golden_loss.json")
LEVELS = {"all_nodes": FLAT, "candidates": DEEP}


def train(level: Level) -> dict[str, list[float]]:
    """Losses of 60 steps with dropout and weight averaging, and the validation nDCG@5 after every 15th."""
    torch.set_num_threads(1)
    scores: list[float] = []

    def report(record: dict) -> None:
        if "scoring" in record:
            scores.append(record["scoring"]["nDCG@5"])

    training = small_training(
        small_network(level, dropout=0.1, evidence=True),
        report=report,
        epochs=(6,),
        average_after=(3,),
        eval_every_steps=15,
    )
    training.clip.clip = 0.9  # so that gradients are clipped
    losses = curve_of(training)
    training.run()
    return {"losses": losses, "valid_nDCG@5": scores}


@pytest.mark.parametrize("name", LEVELS)
def test_the_loss_curve_is_the_stored_one(name):
    golden = json.loads(CURVES.read_text())[name]
    curve = train(LEVELS[name])
    assert len(golden["losses"]) == 60 and golden["losses"][-1] < 0.6 * golden["losses"][0]
    # Rounding differs between processors and grows from step to step; a change of the algorithm moves the first steps.
    np.testing.assert_allclose(curve["losses"][:10], golden["losses"][:10], rtol=1e-5)
    np.testing.assert_allclose(curve["losses"], golden["losses"], rtol=5e-3)
    np.testing.assert_allclose(curve["valid_nDCG@5"], golden["valid_nDCG@5"], atol=1)


if __name__ == "__main__":
    CURVES.write_text(json.dumps({name: train(level) for name, level in LEVELS.items()}, indent=1) + "\n")
