"""The cost of prediction, an objective of a sweep: CPU milliseconds per text, one text at a time, with one thread.

The thread's CPU time is measured instead of wall-clock time, so that concurrent trials disturb it little. It is
measured on a CPU even if training used a GPU, since settings are compared, not machines.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch

from axml_ray.core.ragged import Ragged
from axml_ray.ensemble.ensemble import Ensemble

TEXTS = 100
"""Number of texts that are predicted."""
PASSES = 3
"""Number of measurements, of which the least counts."""


def milliseconds_a_text(ensemble: Ensemble, tokens: Ragged) -> float:
    """Return the mean CPU time of ranking one text's labels, in milliseconds: the least of `PASSES` measurements.

    Args:
        ensemble: the trained ensemble.
        tokens: word ids of texts, of which the first `TEXTS` are predicted.
    """
    texts = [tokens.take(np.array([row])) for row in range(min(TEXTS, len(tokens)))]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return min(_seconds(ensemble, texts) for _ in range(PASSES)) * 1_000 / len(texts)
    finally:
        torch.set_num_threads(threads)


def _seconds(ensemble: Ensemble, texts: Sequence[Ragged]) -> float:
    """Return the CPU seconds of ranking some texts one after the other."""
    began = time.thread_time()
    for text in texts:
        ensemble.rank(text)
    return time.thread_time() - began
