"""A picture of some clusters, as SVG: the cosine similarities of their labels.

It is written without a plotting library, which would be the largest dependency of the smallest job: it consists of
squares and names only.
"""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from scipy import sparse

from axml_ray.core.files import whole_file

MOST_LABELS = 96
"""Most labels of a picture."""
CELL, GAP, LEFT, TOP = 13, 5, 260, 44
"""Side of a square, distance between clusters, and margins for names and title, in pixels."""
NAME_LETTERS = 36
"""Most letters of a label's name."""
LIGHT, DARK = np.array([247, 247, 242]), np.array([12, 60, 96])


def draw_clusters(
    path: Path, clusters: Sequence[np.ndarray], features: sparse.csr_array, names: Sequence[str], title: str
) -> None:
    """Draw the cosine similarities of the clusters' labels, light for 0 and dark for 1, cluster by cluster.

    Args:
        path: file to write or replace.
        clusters: the labels of each cluster, int [labels]; labels beyond the first `MOST_LABELS` are left out.
        features: features of all labels, float CSR [L, F], rows of length one or empty.
        names: names of all labels, by id.
        title: title of the picture.
    """
    labels = np.concatenate(clusters)[:MOST_LABELS]
    group = np.repeat(np.arange(len(clusters)), [len(cluster) for cluster in clusters])[:MOST_LABELS]
    rows = features[labels]
    similarity = np.clip((rows @ rows.T).toarray(), 0, 1)
    positions = np.arange(len(labels)) * CELL + group * GAP
    colours = np.rint(LIGHT + similarity[..., None] * (DARK - LIGHT)).astype(int)
    side = int(positions[-1]) + CELL
    width, height = LEFT + side + 12, TOP + side + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="14">{_text(title, width // 8)}</text>',
    ]
    for row, label in enumerate(labels):
        y = TOP + positions[row]
        lines.append(f'<text x="{LEFT - 8}" y="{y + 10}" text-anchor="end">{_text(names[label])}</text>')
        for column, other in enumerate(labels):
            red, green, blue = colours[row, column]
            hint = f"{names[label]} and {names[other]}: {similarity[row, column]:.2f}"
            lines.append(
                f'<rect x="{LEFT + positions[column]}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="rgb({red},{green},{blue})"><title>{_text(hint, 200)}</title></rect>'
            )
    lines += [f'<text x="{LEFT}" y="{height - 10}">cosine similarity of the features: light 0, dark 1</text>', "</svg>"]
    with whole_file(path) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")


def _text(name: str, letters: int = NAME_LETTERS) -> str:
    """Return a name cut to `letters`, without characters that XML forbids, and escaped."""
    printable = "".join(letter if letter.isprintable() else " " for letter in name)
    return escape(printable if len(printable) <= letters else printable[: letters - 1] + "…")
