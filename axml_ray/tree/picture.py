"""A picture of some clusters, as SVG: how like one another their labels are.

Written by hand: it is squares and names, any browser shows it, and a library for pictures would be the largest
dependency of the smallest job.
"""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from scipy import sparse

from axml_ray.files import whole_file

MOST_LABELS = 96
CELL, GAP, LEFT, TOP = 13, 5, 260, 44
NAME_LETTERS = 36
PAPER, INK = np.array([247, 247, 242]), np.array([12, 60, 96])


def draw_clusters(
    path: Path, clusters: Sequence[np.ndarray], features: sparse.csr_array, names: Sequence[str], title: str
) -> None:
    """Write the cosine similarities of the clusters' labels, light for 0 and dark for 1, cluster by cluster.

    Args:
        path: where to; a file there is replaced.
        clusters: each int [labels]; what goes beyond `MOST_LABELS` in all is left out.
        features: float CSR [L, F], rows of length one or empty.
        names: of all labels, by id.
        title: above the picture.
    """
    labels = np.concatenate(clusters)[:MOST_LABELS]
    group = np.repeat(np.arange(len(clusters)), [len(cluster) for cluster in clusters])[:MOST_LABELS]
    rows = features[labels]
    likeness = np.clip((rows @ rows.T).toarray(), 0, 1)
    places = np.arange(len(labels)) * CELL + group * GAP
    colours = np.rint(PAPER + likeness[..., None] * (INK - PAPER)).astype(int)
    side = int(places[-1]) + CELL
    width, height = LEFT + side + 12, TOP + side + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="14">{_text(title, width // 8)}</text>',
    ]
    for row, label in enumerate(labels):
        y = TOP + places[row]
        lines.append(f'<text x="{LEFT - 8}" y="{y + 10}" text-anchor="end">{_text(names[label])}</text>')
        for column, other in enumerate(labels):
            red, green, blue = colours[row, column]
            hint = f"{names[label]} and {names[other]}: {likeness[row, column]:.2f}"
            lines.append(
                f'<rect x="{LEFT + places[column]}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="rgb({red},{green},{blue})"><title>{_text(hint, 200)}</title></rect>'
            )
    lines += [f'<text x="{LEFT}" y="{height - 10}">cosine similarity of the features: light 0, dark 1</text>', "</svg>"]
    with whole_file(path) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")


def _text(name: str, letters: int = NAME_LETTERS) -> str:
    """A name of bounded length, as SVG may hold it."""
    printable = "".join(letter if letter.isprintable() else " " for letter in name)
    return escape(printable if len(printable) <= letters else printable[: letters - 1] + "…")
