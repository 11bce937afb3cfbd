"""Detects labels that were probably split at the wrong separator, or not at all.

If a cell such as `commands|git-man|file` is split at `;`, it is one label, which nearly no other text has. Nothing
fails, but the model is useless; therefore preparation warns.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from axml_ray.corpus.preparation.staging import StagedBlock
from axml_ray.corpus.records.values import URI

SEPARATORS = {"|": "|", ";": ";", ",": ",", "\t": "tab", "/": "/"}
"""Common separators of labels in a cell, and how settings and messages write them."""
MIN_SINGLE_SHARE, MIN_CONTAINING_SHARE = 0.95, 0.5
"""Minimum shares of the labelled texts that have exactly one label, and whose label contains another separator."""
MAX_EXAMPLE_LETTERS = 60


def separator_warning(paths: Sequence[str], separator: str) -> str | None:
    """Return a warning if nearly every text has exactly one label and most of these contain another separator.

    Args:
        paths: paths of the staged blocks.
        separator: `corpus.label_separator`; empty if the files contain lists of labels, which are not split.
    """
    blocks = [StagedBlock(Path(path)) for path in paths]
    labelled = sum(int((block.rows("label").lengths > 0).sum()) for block in blocks)
    single = sum(int((block.rows("label").lengths == 1).sum()) for block in blocks)
    if not labelled or single < MIN_SINGLE_SHARE * labelled:
        return None
    containing = {other: 0 for other in SEPARATORS if other != separator}
    examples: dict[str, str] = {}
    for block in blocks:
        rows, names = block.rows("label"), block.table("labels")["label"]
        texts = np.bincount(rows.take(np.flatnonzero(rows.lengths == 1)).values, minlength=len(names))
        is_uri = pc.match_substring_regex(names, f"^{URI}").to_numpy()
        for other in containing:
            matches = pc.match_substring(names, other).to_numpy() & (texts > 0)
            # A URI may contain any of them; one separates labels where another URI follows.
            matches &= ~is_uri | pc.match_substring_regex(names, rf"{re.escape(other)}\s*{URI}").to_numpy()
            containing[other] += int(texts[matches].sum())
            if matches.any():
                examples.setdefault(other, names[int(np.flatnonzero(matches)[0])].as_py()[:MAX_EXAMPLE_LETTERS])
    other = max(containing, key=lambda candidate: containing[candidate])
    if containing[other] < MIN_CONTAINING_SHARE * labelled:
        return None
    now = SEPARATORS.get(separator, separator)
    fix = (
        f'if it separates labels, set corpus.label_separator to "{SEPARATORS[other]}" (now "{now}")'
        if separator
        else "if it separates labels, write them as a list in the files"
    )
    return (
        f"{single:,} of {labelled:,} texts have exactly one label, and {containing[other]:,} of these labels "
        f"contain {SEPARATORS[other]!r}, such as {examples[other]!r}; {fix}"
    )
