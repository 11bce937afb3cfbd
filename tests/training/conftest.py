import sys
from pathlib import Path

import pytest
import torch

# the literal network
sys.path.insert(0, str(Path(__file__).parents[1] / "network"))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
