"""Rendering of explanations for a terminal or as HTML: members' contributions, and words shaded by attention.

The shade of a word is its weight divided by the largest of the text. Markup of rich or HTML in texts and names is
escaped.
"""

from collections.abc import Iterator
from html import escape

import numpy as np
from rich.console import Console, Group
from rich.style import Style
from rich.text import Text

from axml_ray.inference.explain.explain import Explanation

COLOUR = (255, 176, 0)
VISIBLE = 0.04
"""Words with a lighter shade have no background."""


def as_ansi(explanation: Explanation, width: int = 110) -> str:
    """Render an explanation as text with the terminal's colour codes: words, contributions, paths down the trees."""
    rows = [Text(_printable(explanation.name), style="bold"), _shaded(explanation, explanation.weights)]
    for contribution in explanation.contributions:
        product = f"{contribution.score:.3f} × {contribution.share:.2f}"
        rows.append(Text(f"{contribution.points:.3f} by {_printable(contribution.member.title)}: {product}"))
    for member, path in explanation.paths.items():
        rows.append(Text(f"\n{_printable(member.title)}", style="bold"))
        for step in path:
            name = _printable(step.name)
            rows.append(Text(f"level {step.level} · {name} · {step.probability:.3f}", style="italic"))
            rows.append(_shaded(explanation, step.weights))
    console = Console(width=width, force_terminal=True, color_system="truecolor", highlight=False)
    with console.capture() as capture:
        console.print(Group(*rows))
    return capture.get()


def as_html(explanation: Explanation) -> str:
    """Render an explanation as a self-contained fragment of HTML, without script or style sheet."""
    contributions = "".join(
        f"<tr><td>{escape(contribution.member.title)}</td><td>{contribution.score:.3f}</td><td>{contribution.share:.2f}</td>"
        f"<td>{contribution.points:.3f}</td></tr>"
        for contribution in explanation.contributions
    )
    rows = [
        f"<p><b>{escape(explanation.name)}</b></p>",
        _paragraph(explanation, explanation.weights),
        "<table><tr><th>member</th><th>score</th><th>weight</th><th>contribution</th></tr>",
        f"{contributions}</table>",
    ]
    for member, path in explanation.paths.items():
        levels = "".join(
            f"<p><i>level {step.level} · {escape(step.name)} · {step.probability:.3f}</i></p>"
            + _paragraph(explanation, step.weights)
            for step in path
        )
        rows.append(f"<details><summary>{escape(member.title)}</summary>{levels}</details>")
    return f'<div class="explanation">{"".join(rows)}</div>'


def _parts(explanation: Explanation, weights: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yield the whole text in pieces, each with its shade from 0 to 1."""
    done, most = 0, float(weights.max(initial=0)) or 1.0
    for (start, end), weight in zip(explanation.spans, weights.tolist(), strict=True):
        yield explanation.text[done:start], 0.0
        yield explanation.text[start:end], weight / most
        done = end
    yield explanation.text[done:], 0.0


def _shaded(explanation: Explanation, weights: np.ndarray) -> Text:
    shown = Text()
    for piece, shade in _parts(explanation, weights):
        red, green, blue = (round(255 + (end - 255) * shade) for end in COLOUR)
        style = Style(color="black", bgcolor=f"rgb({red},{green},{blue})") if shade >= VISIBLE else ""
        shown.append(_printable(piece), style)
    return shown


def _printable(text: str) -> str:
    """Return a text or name without control characters, which could move the cursor or change the terminal's state."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)


def _paragraph(explanation: Explanation, weights: np.ndarray) -> str:
    colour = ",".join(map(str, COLOUR))
    pieces = []
    for piece, shade in _parts(explanation, weights):
        shown = escape(piece)
        if shade >= VISIBLE:
            shown = f'<mark style="background:rgba({colour},{shade:.2f});color:inherit">{shown}</mark>'
        pieces.append(shown)
    return f'<p style="white-space:pre-wrap">{"".join(pieces)}</p>'
