"""Detects texts in scripts without blanks between words, in which whole phrases become words.

Nothing fails, but nearly every phrase is another word, from which nothing can be learned; so preparation warns.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from axml_ray.corpus.preparation.staging import StagedBlock
from axml_ray.corpus.text.tokenizer import UNSPACED

MIN_PHRASE, MIN_SHARE = 6, 0.1
"""A word with at least this number of characters of such scripts is a phrase, and the least share of phrases, by their
characters, in all words and such characters. Texts whose words were separated beforehand have few phrases."""
MAX_BLOCKS = 16
"""Number of blocks that are looked at."""


def segmentation_warning(paths: Sequence[str]) -> str | None:
    """Return a warning if phrases in scripts without blanks are a considerable share of the texts.

    Args:
        paths: paths of the staged blocks of training texts, split into words at blanks.
    """
    characters = in_phrases = 0
    example = ""
    for path in paths[:: max(1, len(paths) // MAX_BLOCKS)]:
        block = StagedBlock(Path(path))
        words = block.table("words")["word"]
        counts = pc.count_substring_regex(words, UNSPACED).to_numpy()
        occurrences = np.bincount(block.array("word"), minlength=len(words))
        is_phrase = counts >= MIN_PHRASE
        characters += int((occurrences * np.maximum(counts, 1)).sum())
        in_phrases += int((occurrences * counts)[is_phrase].sum())
        if is_phrase.any() and not example:
            example = words[int(np.flatnonzero(is_phrase)[0])].as_py()
    if in_phrases <= MIN_SHARE * characters:
        return None
    return (
        f"{in_phrases / characters:.0%} of the training texts is written without blanks between words, and a phrase "
        f"such as {example[:20]!r} becomes one word; to make each of its characters a word, set corpus.segmentation to "
        "characters"
    )
