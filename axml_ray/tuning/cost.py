"""What prediction costs, measured in one way for all trials: CPU milliseconds a text, one text at a time, one thread.

The thread's CPU time is counted, not the clock's, so that trials that run beside it don't disturb it much. It is the
time on a CPU even where a GPU trained: settings are compared, not machines.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch

from axml_ray.ensemble import Ensemble
from axml_ray.ragged import Ragged

TEXTS = 100
PASSES = 3


def milliseconds_a_text(ensemble: Ensemble, tokens: Ragged) -> float:
    """CPU milliseconds for the labels of one text, the mean over the first texts; the least of some passes.

    Args:
        ensemble: trained.
        tokens: word ids; the first 100 rows are predicted.
    """
    texts = [tokens.take(np.array([row])) for row in range(min(TEXTS, len(tokens)))]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return min(_seconds(ensemble, texts) for _ in range(PASSES)) * 1_000 / len(texts)
    finally:
        torch.set_num_threads(threads)


def _seconds(ensemble: Ensemble, texts: Sequence[Ragged]) -> float:
    began = time.thread_time()
    for text in texts:
        ensemble.rank(text)
    return time.thread_time() - began
