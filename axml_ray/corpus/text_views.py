"""The forms in which ensemble members read a batch of texts, each computed once, however many members read it.

A corpus without a dictionary has one form. With one (`corpus/translation.py`), networks and label names read the text
translated into the second language, and TF-IDF features count the words of both.

Legend: N texts, T padded words.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from axml_ray.corpus.tokenizer import PADDING
from axml_ray.corpus.translation import Translation
from axml_ray.ragged import Ragged

T = TypeVar("T")


class TextViews:
    """A batch of texts in each form that a member may ask for.

    Args:
        original: word ids of the texts as written, at least one a text.
        translation: of the corpus, where it has a dictionary.
    """

    def __init__(self, original: Ragged, translation: Translation | None = None):
        self.original, self.translation = original, translation
        self._kept: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.original)

    def keep(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` returns, computed at the first call with this key (hashable) and kept for later ones."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            found: T = self._kept[key]
            return found

    @property
    def translated(self) -> Ragged:
        """Word ids in the second language; the original where there is no dictionary."""
        translation = self.translation
        if translation is None:
            return self.original
        return self.keep("translated", lambda: translation.translated(self.original))

    def padded(self, most: int | None) -> tuple[np.ndarray, np.ndarray]:
        """The translated texts as the networks read them.

        Args:
            most: first words of a text that are read; None for all.

        Returns:
            Word ids, int64 [N, T], padded with 0 on the right; and words of each text, int64 [N].
        """

        def pad() -> tuple[np.ndarray, np.ndarray]:
            read = self.translated if most is None else self.translated.cut(most)
            # Each new width costs the CPU's library a kernel, so widths are multiples of 8.
            width = -(-int(read.lengths.max(initial=1)) // 8) * 8
            return read.padded(PADDING, width).astype(np.int64), read.lengths

        return self.keep(("padded", most), pad)
