"""An explanation to look at: words shaded by attention, in a terminal or as HTML.

The shade of a word is its weight over the largest of its row. Text and names are shown as they are: what looks like
markup, of rich or of HTML, is text.
"""

from collections.abc import Iterator
from html import escape

import numpy as np
from rich.console import Console, Group
from rich.style import Style
from rich.text import Text

from axml_ray.inference.explain import Explanation

COLOUR = (255, 176, 0)
VISIBLE = 0.04
"""Shades below this are left out."""


def as_rich(explanation: Explanation, *, paths: bool = True) -> Group:
    """For a rich console.

    Args:
        explanation: to show.
        paths: also show each tree's path and what its nodes looked at.
    """
    rows = [Text.assemble((explanation.name, "bold")), _shaded(explanation, explanation.weights)]
    for number, path in enumerate(explanation.paths if paths else (), start=1):
        rows.append(Text(f"\ntree {number}", style="bold"))
        for step in path:
            rows.append(Text(f"level {step.level} · {step.name} · {step.probability:.3f}", style="italic"))
            rows.append(_shaded(explanation, step.weights))
    return Group(*rows)


def as_ansi(explanation: Explanation, *, paths: bool = True, width: int = 110) -> str:
    """As text with the terminal's colour codes, arguments as of `as_rich`."""
    console = Console(width=width, force_terminal=True, color_system="truecolor", highlight=False)
    with console.capture() as capture:
        console.print(as_rich(explanation, paths=paths))
    return capture.get()


def as_html(explanation: Explanation, *, paths: bool = True) -> str:
    """As a fragment of HTML that needs nothing else: no script, no style sheet, no network."""
    rows = [f"<p><b>{escape(explanation.name)}</b></p>", _paragraph(explanation, explanation.weights)]
    for number, path in enumerate(explanation.paths if paths else (), start=1):
        levels = "".join(
            f"<p><i>level {step.level} · {escape(step.name)} · {step.probability:.3f}</i></p>"
            + _paragraph(explanation, step.weights)
            for step in path
        )
        rows.append(f"<details><summary>tree {number}</summary>{levels}</details>")
    return f'<div class="explanation">{"".join(rows)}</div>'


def _parts(explanation: Explanation, weights: np.ndarray) -> Iterator[tuple[str, float]]:
    """The whole text in pieces, each with its shade from 0 to 1."""
    done, most = 0, float(weights.max(initial=0)) or 1.0
    for (start, end), weight in zip(explanation.spans, weights.tolist(), strict=True):
        yield explanation.text[done:start], 0.0
        yield explanation.text[start:end], weight / most
        done = end
    yield explanation.text[done:], 0.0


def _shaded(explanation: Explanation, weights: np.ndarray) -> Text:
    shown = Text()
    for piece, shade in _parts(explanation, weights):
        # Control characters would move the cursor.
        piece = "".join(one if one.isprintable() or one == "\n" else " " for one in piece)
        red, green, blue = (round(255 + (end - 255) * shade) for end in COLOUR)
        style = Style(color="black", bgcolor=f"rgb({red},{green},{blue})") if shade >= VISIBLE else ""
        shown.append(piece, style)
    return shown


def _paragraph(explanation: Explanation, weights: np.ndarray) -> str:
    colour = ",".join(map(str, COLOUR))
    pieces = []
    for piece, shade in _parts(explanation, weights):
        shown = escape(piece)
        if shade >= VISIBLE:
            shown = f'<mark style="background:rgba({colour},{shade:.2f});color:inherit">{shown}</mark>'
        pieces.append(shown)
    return f'<p style="white-space:pre-wrap">{"".join(pieces)}</p>'
