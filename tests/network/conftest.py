import sys
from pathlib import Path

import pytest
import torch

# the tiny corpus
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
