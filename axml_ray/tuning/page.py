"""A self-contained HTML page of a sweep, for wide and narrow screens.

- Parallel coordinates: an axis for each drawn setting and one for the score, a line for each trial.
- Score over training documents of the leaf level, which shows early stopping; a point where there is one evaluation.
- Score against cost with the Pareto front, if cost was measured.

Texts are drawn after lines and have a white border, so that no line crosses them. On a narrow screen a chart or table
that does not fit keeps a readable size and scrolls sideways within the page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from axml_ray.tuning.records import Trial

WIDTH, HEIGHT, MARGIN = 1080, 360, 56
NARROW = 560
"""Width of charts that fit on a phone; parallel coordinates do not."""
WORST, BEST, STOPPED = (214, 196, 160), (12, 92, 122), "#9a9a9a"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1080px; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; } svg { width: 100%; height: auto; display: block; }
.wide { min-width: 760px; } .narrow { max-width: 760px; }
svg text { font: 12px system-ui, sans-serif; fill: #444; paint-order: stroke; stroke: #fff; stroke-width: 4px;
       stroke-linejoin: round; } .axis { stroke: #999; }
path, polyline { fill: none; } path:hover, polyline:hover { stroke-width: 5; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } th, td { text-align: left;
       padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; } td.n { text-align: right; }
td:last-child { white-space: nowrap; }
"""


@dataclass(frozen=True)
class Axis:
    """The axis of a setting, with positions from 0 (bottom) to 1.

    Attributes:
        name: path of the setting.
        places: position of each value that occurs.
        ticks: labels of the axis with their positions.
    """

    name: str
    places: dict[Any, float]
    ticks: list[tuple[str, float]]

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> "Axis":
        """Return the axis of some values: linear for numbers, logarithmic if they span a decade, else evenly spaced."""
        every = list(dict.fromkeys(values))
        numbers = [value for value in every if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < len(every) or len(every) < 3:
            every.sort(key=lambda value: (str(type(value)), value))
            places = {value: (rank + 0.5) / len(every) for rank, value in enumerate(every)}
            return cls(name, places, [(_short(value), place) for value, place in places.items()])
        low, high = min(numbers), max(numbers)
        if low > 0 and high / low >= 10:
            places = {value: math.log(value / low) / math.log(high / low) for value in every}
        else:
            places = {value: (value - low) / (high - low) for value in every}
        return cls(name, places, [(f"{low:.3g}", 0.0), (f"{high:.3g}", 1.0)])


def page(name: str, documents: int, trials: Sequence[Trial], front: Sequence[Trial] = ()) -> str:
    """Return the text of the page.

    Args:
        name: name of the sweep.
        documents: number of training documents of a trial.
        trials: all trials.
        front: trials on the Pareto front, by falling score, if cost was measured.
    """
    counts = [f"{sum(trial.state == state for trial in trials)} {state}" for state in ("finished", "stopped", "failed")]
    parts = [
        f"<h1>Sweep {escape(name)}</h1>",
        f"<p>{len(trials)} trials on {documents:,} training documents each: {', '.join(counts)}. Dark lines score best;"
        " dashed grey ones were stopped early. Hover over a line to see its settings.</p>",
    ]
    scored = [trial for trial in trials if trial.score is not None]
    if scored:
        parts += ["<h2>Settings and scores</h2>", _parallel(trials)]
        parts += ["<h2>Score during the training of the leaf level</h2>", _curves(scored)]
    if front:
        parts += ["<h2>Score against cost</h2>", _costs(scored, front)]
    parts += ["<h2>Trials</h2>", _table(trials)]
    phone = '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    head = f'<meta charset="utf-8"/>{phone}<title>Sweep {escape(name)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _parallel(trials: Sequence[Trial]) -> str:
    names = list(dict.fromkeys(path for trial in trials for path in trial.parameters))
    axes = [Axis.of(name, [t.parameters[name] for t in trials if name in t.parameters]) for name in names]
    low, high = _range([trial.score for trial in trials if trial.score is not None])
    axes.append(Axis("valid nDCG@5", {}, [(f"{low:.2f}", 0.0), (f"{high:.2f}", 1.0)]))
    step = (WIDTH - 2 * MARGIN) / (len(axes) - 1)
    drawn, texts = [], []
    for column, axis in enumerate(axes):
        x = MARGIN + column * step
        drawn.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{_y(0)}" y2="{_y(1)}"/>')
        anchor = "start" if not column else "end" if column + 1 == len(axes) else "middle"  # within the picture
        # Names of neighbouring axes are in different rows and without their group, so that they do not overlap.
        texts.append(_text(x, (12, 25, 38)[column % 3], axis.name.partition(".")[2] or axis.name, anchor))
        # Lines meet the axis at a value's place: its text stands above it, or below the end of the axis.
        texts += [_text(x + 5, _y(place) + (-6 if place else 16), label) for label, place in axis.ticks]
    for trial in sorted(trials, key=lambda trial: (trial.state == "finished", trial.score or 0)):
        points = []
        for column, axis in enumerate(axes[:-1]):
            # If a setting was not drawn for a trial, the line passes below its axis.
            place = axis.places[trial.parameters[axis.name]] if axis.name in trial.parameters else -0.1
            points.append((MARGIN + column * step, _y(place)))
        if trial.score is not None:  # other trials ended above the leaf level
            points.append((WIDTH - MARGIN, _y((trial.score - low) / (high - low))))
        drawn.append(_line(points, trial, (low, high)))
    return _svg([*drawn, *texts], WIDTH)


def _curves(trials: Sequence[Trial]) -> str:
    curves = {t.number: [one for one in t.curve if one.is_of_labels and one.tree == 0] for t in trials}
    points = [one for curve in curves.values() for one in curve]
    if not points:
        return ""
    most = max(one.documents for one in points)
    low, high = _range([one.score for one in points])
    drawn = _frame(("0", f"{most:,} documents"), (f"{low:.1f}", f"{high:.1f}"))
    for trial in trials:
        places = [(_x(one.documents / most), _y((one.score - low) / (high - low))) for one in curves[trial.number]]
        drawn.append(_line(places, trial, _range([other.score or 0 for other in trials])))
    return _svg(drawn, NARROW)


def _costs(trials: Sequence[Trial], front: Sequence[Trial]) -> str:
    measured = [trial for trial in trials if trial.milliseconds is not None]
    most = max(trial.milliseconds or 0 for trial in measured)
    low, high = _range([trial.score or 0 for trial in measured])

    def place(trial: Trial) -> tuple[float, float]:
        return _x((trial.milliseconds or 0) / most), _y(((trial.score or 0) - low) / (high - low))

    drawn = _frame(("0", f"{most:.2f} CPU ms a text"), (f"{low:.2f}", f"{high:.2f}"))
    drawn.append(f'<polyline points="{_points([place(trial) for trial in front])}" stroke="{_colour(1)}"/>')
    best, texts = {trial.number for trial in front}, []
    for trial in measured:
        x, y = place(trial)
        fill = _colour(1) if trial.number in best else STOPPED
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}">{_title(trial)}</circle>')
        texts.append(_text(x + 7, y - 6, str(trial.number)))
    return _svg([*drawn, *texts], NARROW)


def _table(trials: Sequence[Trial]) -> str:
    rows = []
    for trial in sorted(trials, key=lambda trial: (trial.state != "finished", -(trial.score or 0), trial.number)):
        score = "–" if trial.score is None else f"{trial.score:.2f}"
        cost = "–" if trial.milliseconds is None else f"{trial.milliseconds:.2f}"
        drawn = "<br/>".join(f"{escape(path)} = {escape(_short(value))}" for path, value in trial.parameters.items())
        numbers = "".join(f'<td class="n">{cell}</td>' for cell in (score, cost, f"{trial.steps:,}"))
        about = trial.state + (f"<br/>{escape(trial.reason)}" if trial.reason else "")
        rows.append(f"<tr><td>{trial.number}</td><td>{about}</td>{numbers}<td>{drawn}</td></tr>")
    head = "".join(f"<th>{name}</th>" for name in ("trial", "", "valid nDCG@5", "ms a text", "steps", "drawn"))
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 1, high + 1)


def _frame(across: tuple[str, str], up: tuple[str, str]) -> list[str]:
    lines = [(_x(0), _y(0), _x(1), _y(0)), (_x(0), _y(0), _x(0), _y(1))]
    drawn = [f'<line class="axis" x1="{a}" y1="{b}" x2="{c}" y2="{d}"/>' for a, b, c, d in lines]
    drawn += [_text(_x(0), _y(0) + 16, across[0]), _text(_x(1), _y(0) + 16, across[1], "end")]
    return [*drawn, _text(_x(0) - 5, _y(0), up[0], "end"), _text(_x(0) - 5, _y(1) + 8, up[1], "end")]


def _line(points: Sequence[tuple[float, float]], trial: Trial, scores: tuple[float, float]) -> str:
    """Return a trial's line through some points, coloured by its score within the range `scores`."""
    place = ((trial.score or 0) - scores[0]) / (scores[1] - scores[0])
    colour = _colour(place) if trial.state == "finished" else STOPPED
    if len(points) == 1:  # a polyline of one point shows nothing
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="5" fill="{colour}">{_title(trial)}</circle>'
    if trial.state == "finished":
        stroke = f'stroke="{colour}" stroke-width="{1.5 + 1.5 * place:.1f}"'
    else:
        stroke = f'stroke="{colour}" stroke-dasharray="4 3"'
    return f'<polyline points="{_points(points)}" {stroke}>{_title(trial)}</polyline>'


def _title(trial: Trial) -> str:
    drawn = ", ".join(f"{path} = {_short(value)}" for path, value in trial.parameters.items())
    score = "no score" if trial.score is None else f"nDCG@5 {trial.score:.2f}"
    return f"<title>trial {trial.number}, {trial.state}, {score}: {escape(drawn)}</title>"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _svg(parts: Sequence[str], width: int) -> str:
    kind = "wide" if width == WIDTH else "narrow"
    svg = f'<svg class="{kind}" viewBox="0 0 {width} {HEIGHT}" role="img">{"".join(parts)}</svg>'
    return f'<div class="scroll">{svg}</div>'


def _colour(place: float) -> str:
    return "#" + "".join(f"{round(a + (b - a) * place):02x}" for a, b in zip(WORST, BEST, strict=True))


def _x(share: float) -> float:
    return MARGIN + share * (NARROW - 2 * MARGIN)


def _y(share: float) -> float:
    return HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)
