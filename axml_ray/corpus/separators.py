"""Labels that look as if they had been split at the wrong separator, or not at all.

A cell such as `commands|git-man|file` split at `;` is one label, each text has one of its own, and nothing fails: the
training merely scores badly. So preparation looks at the labels and warns.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from axml_ray.corpus.staging import StagedBlock

SEPARATORS = {"|": "|", ";": ";", ",": ",", "\t": "tab", "/": "/"}
"""What labels in one cell are commonly separated by, and how the settings and messages write it."""
SINGLE, CONTAINING = 0.95, 0.5
"""Least share of the labelled texts that have exactly one label, and of those whose label holds the other separator."""
SHOWN = 60


def separator_warning(paths: Sequence[str], separator: str) -> str | None:
    """A warning where nearly every text has exactly one label that contains another common separator.

    Args:
        paths: of the staged blocks.
        separator: `corpus.label_separator`; empty where the files hold lists of labels, which nothing splits.
    """
    blocks = [StagedBlock(Path(path)) for path in paths]
    labelled = sum(int((block.rows("label").lengths > 0).sum()) for block in blocks)
    single = sum(int((block.rows("label").lengths == 1).sum()) for block in blocks)
    if not labelled or single < SINGLE * labelled:
        return None
    containing = {other: 0 for other in SEPARATORS if other != separator}
    examples: dict[str, str] = {}
    for block in blocks:
        rows, names = block.rows("label"), block.strings("labels")["label"]
        texts = np.bincount(rows.take(np.flatnonzero(rows.lengths == 1)).values, minlength=len(names))
        for other in containing:
            held = pc.match_substring(names, other).to_numpy() & (texts > 0)
            containing[other] += int(texts[held].sum())
            if held.any():
                examples.setdefault(other, names[int(np.flatnonzero(held)[0])].as_py()[:SHOWN])
    other = max(containing, key=lambda one: containing[one])
    if containing[other] < CONTAINING * labelled:
        return None
    fix = (
        f'if it separates labels, set corpus.label_separator to "{SEPARATORS[other]}" (now "{separator}")'
        if separator
        else "if it separates labels, write them as a list in the files"
    )
    return (
        f"{single:,} of {labelled:,} texts have exactly one label, and {containing[other]:,} of these labels "
        f"contain {SEPARATORS[other]!r}, such as {examples[other]!r}; {fix}"
    )
