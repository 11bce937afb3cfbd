"""The forms in which ensemble members read a batch of texts, each computed once for all members.

Legend: N texts, T padded words.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.tokenizer import PADDING

T = TypeVar("T")


class TextViews:
    """A batch of texts in every form that a member may read, from their word ids, at least one per text."""

    def __init__(self, original: Ragged):
        self.original = original
        self._cache: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.original)

    def get_or_compute(self, key: Any, compute: Callable[[], T]) -> T:
        """Return the cached result of `compute` for a hashable key; the first call computes it. Thread-safe."""
        with self._lock:
            if key not in self._cache:
                self._cache[key] = compute()
            result: T = self._cache[key]
            return result

    def padded(self, most: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the texts, cut after `most` words, as the input of the networks.

        That is word ids, int64 [N, T], padded with 0 on the right; and the number of words of each text, int64 [N].
        """

        def pad() -> tuple[np.ndarray, np.ndarray]:
            tokens = self.original if most is None else self.original.cut(most)
            # Widths are multiples of 8, because the CPU library compiles a kernel for each new width.
            width = -(-int(tokens.lengths.max(initial=1)) // 8) * 8
            return tokens.padded(PADDING, width).astype(np.int64), tokens.lengths

        return self.get_or_compute(("padded", most), pad)
