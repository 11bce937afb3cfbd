"""Draw the diagrams in docs/images. Each has its own background, so that it is legible on light and dark pages.

python docs/pictures.py
"""

from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1b2a2f; text-anchor: middle }
  .small { font-size: 12px; fill: #46575c } .left { text-anchor: start } .bold { font-weight: 600 }
  .page { fill: #fbfaf6; stroke: #d8d5cb } .box { fill: #ffffff; stroke: #0f5c58; stroke-width: 1.5 }
  .band { fill: #dcefe9; stroke: none } .dark { fill: #0f5c58 } .line { stroke: #0f5c58; stroke-width: 1.5; fill: none }
  .faint { stroke: #9aa8a5; stroke-width: 1; fill: none } .lit { fill: #ffc845 } .dim { fill: #fdeec6 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e9eeec } .small { fill: #b3c1be } .page { fill: #182023; stroke: #33423f }
    .box { fill: #222d30; stroke: #4db6a9 } .band { fill: #21423d } .dark { fill: #4db6a9 } .line { stroke: #4db6a9 }
    .faint { stroke: #62736f } .lit { fill: #a67300 } .dim { fill: #55441a }
  }
"""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return one line of text, centred at x unless `kind` contains left."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """Return a rectangle with rounded corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>'


def line(x0: float, y0: float, x1: float, y1: float, kind: str = "line") -> str:
    """Return a straight line."""
    return f'<path d="M{x0:g} {y0:g}L{x1:g} {y1:g}" class="{kind}"/>'


def arrow(x0: float, x1: float, y: float) -> str:
    """Return a horizontal arrow."""
    head = f'<path d="M{x1 - 7:g} {y - 4:g}L{x1:g} {y:g}L{x1 - 7:g} {y + 4:g}Z" class="dark"/>'
    return line(x0, y, x1 - 6, y) + head


def save(name: str, width: int, height: int, title: str, parts: list[str]) -> None:
    """Write an SVG file with a title for screen readers."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>\n'
    page = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" class="page"/>'
    body = "\n".join([f"<style>{STYLE}</style>", page, *parts])
    (IMAGES / f"{name}.svg").write_text(f"{head}{body}\n</svg>\n", encoding="utf-8")


def architecture() -> None:
    """Draw the flow of data, and where Ray takes part."""
    steps = [
        ("Texts", "JSON lines, CSV,", "Parquet, URLs"),
        ("Corpus", "integers, label", "features, vectors"),
        ("Label trees", "balanced 2-means,", "shallow and wide"),
        ("Level networks", "BiLSTM, attention", "of each label"),
        ("Ensemble", "members and", "a combiner"),
        ("Bundle", "one directory,", "checksums"),
        ("Server", "HTTP and", "a web page"),
    ]
    width, gap, left, top = 136, 18, 20, 84
    begin = [left + i * (width + gap) for i in range(len(steps))]
    parts = []
    for name, first, last, y in (
        ("Ray Data: prepare", 0, 1, 24),
        ("Ray Train: a group of workers per tree", 2, 3, 24),
        ("Ray Data: predict in batches", 4, 5, 24),
        ("Ray Serve", 6, 6, 24),
        ("Ray Tune: search of settings on validation documents", 2, 4, 190),
    ):
        span = begin[last] + width - begin[first]
        parts += [rect(begin[first], y, span, 34, "band"), text(begin[first] + span / 2, y + 22, name, "small bold")]
    for i, (name, upper, lower) in enumerate(steps):
        x, centre = begin[i], begin[i] + width / 2
        parts += [rect(x, top, width, 82), text(centre, top + 28, name, "bold")]
        parts += [text(centre, top + 50, upper, "small"), text(centre, top + 67, lower, "small")]
        if i:
            parts.append(arrow(x - gap + 2, x - 2, top + 41))
    parts.append(
        text(
            left, 252, "The library between the bands runs without Ray: in a notebook, a test, a script.", "left small"
        )
    )
    save("architecture", begin[-1] + width + left, 270, "From texts to a server, and where Ray takes part", parts)


def label_tree() -> None:
    """Draw a label tree of two levels and beam search in it."""
    parts = [text(30, 40, "level 1: clusters", "left small"), text(30, 150, "level 2: labels", "left small")]
    kept = {1, 2}
    for node in range(4):
        x = 200 + node * 190
        parts.append(line(485, 24, x, 62, "line" if node in kept else "faint"))
        for leaf in range(4):
            place = x - 66 + leaf * 44
            parts.append(line(x, 88, place, 148, "line" if node in kept else "faint"))
            kind = "lit" if (node, leaf) in {(1, 2), (2, 0)} else "dim" if node in kept else "box"
            parts.append(f'<circle cx="{place}" cy="156" r="10" class="{kind}"/>')
        parts += [rect(x - 52, 62, 104, 28, "lit" if node in kept else "box"), text(x, 81, f"cluster {node + 1}")]
    parts.append('<circle cx="485" cy="22" r="9" class="dark"/>')
    parts.append(
        text(
            30,
            204,
            "A network scores all clusters. Only the children of the best (here two) are scored by the",
            "left small",
        )
    )
    parts.append(
        text(
            30,
            222,
            "network of the next level. A label's score is the product along its path (equation 1).",
            "left small",
        )
    )
    save("label-tree", 860, 240, "Beam search in a label tree of two levels", parts)


def attention() -> None:
    """Draw how each label weighs the words of a text for itself."""
    words = ["solve", "a", "sparse", "linear", "system", "by", "conjugate", "gradients"]
    weights = {"sparse": [0, 2, 3, 4], "optimize": [0, 6, 7]}
    parts = []
    for i, word in enumerate(words):
        x = 190 + i * 82
        parts += [text(x, 36, word), rect(x - 34, 52, 68, 26), text(x, 70, "BiLSTM", "small")]
        if i:
            parts.append(line(x - 48, 65, x - 34, 65))
        for y, label in ((120, "sparse"), (170, "optimize")):
            parts.append(
                rect(x - 34, y - 16, 68, 24, "lit" if i in weights[label][1:] else "dim" if i == 0 else "page")
            )
    for y, label in ((120, "sparse"), (170, "optimize")):
        parts += [text(24, y, f"label {label}", "left bold")]
        parts += [arrow(806, 836, y - 4), rect(836, y - 18, 96, 28), text(884, y, "score")]
    parts.append(
        text(
            24,
            212,
            "Each label has its own attention vector: it sums the states of the words it needs (equation 2).",
            "left small",
        )
    )
    save("attention", 950, 230, "Attention of two labels to the words of one text", parts)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    architecture()
    label_tree()
    attention()
