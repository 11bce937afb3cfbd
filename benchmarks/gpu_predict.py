"""Prediction with networks of Amazon-670K's size and random weights, as users run it, for `gpu.py`."""

import time
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import results_file
import torch
from gpu_steps import CPU, on_device
from inference import ensemble_of, random_tree
from results_file import Result

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.counts import Counts, count_corpus
from axml_ray.ensemble.ensemble import Ensemble
from axml_ray.members import text_batch
from axml_ray.members.network_tree import NetworkTree
from axml_ray.network.backends.devices import peak_memory_gib, reset_peak_memory, synchronize
from axml_ray.settings.configuration import load

SECONDS = 4.0
"""About how long a measurement takes."""
LEAST, MOST = 256, 16_384
"""Documents of a measurement."""


def rank_documents(device: torch.device, quick: bool) -> Iterator[Result]:
    """Rank documents of 250 and 500 words with one tree, in batches of several sizes, and with three trees."""
    settings = on_device(load(results_file.ROOT / "configs" / "amazon670k.yaml"), device)
    counts = count_corpus(settings)
    if quick:
        network = settings.network.model_copy(update={"hidden": 32, "fully_connected": (32, 16)})
        settings = settings.model_copy(update={"network": network})
        counts = replace(counts, labels=5_000, words=1_000)
    default = text_batch.ACCELERATOR_TOKENS
    vectors = torch.empty(counts.words, counts.word_dimension, device=device).uniform_(-1, 1)
    trees: list[NetworkTree] = []
    for count in (1, 3):
        while len(trees) < count:
            trees.append(random_tree(settings, counts.labels, vectors, len(trees), device))
        ensemble = ensemble_of(trees)
        for batch_tokens in [default, default // 4, default // 8] if count == 1 else [default]:
            for tokens in (16, 24) if quick else (250, 500):
                speed, documents = _speed(ensemble, counts, tokens, batch_tokens, device, 0.0 if quick else SECONDS)
                row = {
                    "trees": count,
                    "tokens": tokens,
                    "batch_tokens": batch_tokens,
                    "documents": documents,
                    "documents_per_second": speed,
                    "peak_gib": 0.0 if device == CPU else peak_memory_gib(device),
                }
                name = f"predict_{count}_trees_{tokens}_words"
                figures = {f"{name}_per_s": speed, f"{name}_gib": row["peak_gib"]} if batch_tokens == default else {}
                yield figures | {"predict_docs_per_second": speed}, [row]  # the last one remains


def _speed(
    ensemble: Ensemble, counts: Counts, tokens: int, batch_tokens: int, device: torch.device, seconds: float
) -> tuple[float, int]:
    """Return the documents per second of `Ensemble.rank`, and their number."""
    with patch.object(text_batch, "ACCELERATOR_TOKENS", batch_tokens):
        reset_peak_memory(device)
        least = LEAST if seconds else 16
        few = _documents(counts, tokens, least)
        ensemble.rank(few)  # the first call compiles kernels
        documents = int(min(MOST, max(least, seconds / _seconds_of(ensemble, few, device) * least)))
        return documents / _seconds_of(ensemble, _documents(counts, tokens, documents), device), documents


def _documents(counts: Counts, tokens: int, documents: int) -> Ragged:
    words = np.random.default_rng(0).integers(1, counts.words, documents * tokens, dtype=np.int32)
    return Ragged(words, np.arange(documents + 1, dtype=np.int64) * tokens)


def _seconds_of(ensemble: Ensemble, documents: Ragged, device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    ensemble.rank(documents)
    return time.perf_counter() - began
