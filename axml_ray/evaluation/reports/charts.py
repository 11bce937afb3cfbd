"""Charts for HTML pages: line and bar charts, drawn with matplotlib and returned as inline SVG.

A chart is a `<figure class="chart">` with a caption, an SVG with a text alternative, and a folded table of the numbers.
Colours are CSS variables that a page defines once with `STYLE`, for light and dark. All names are escaped.
"""

import hashlib
import io
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Template
from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 440, 290
MAX_TICKS = 6
MAX_POINTS = 40
"""Greatest number of markers on a line, and of rows in the table of numbers."""
COLOURS = {
    "#1f77b4": ("--line-0", "#1f6feb", "#6cb0ff"),
    "#ff7f0e": ("--line-1", "#c2410c", "#ff9e64"),
    "#2ca02c": ("--line-2", "#15803d", "#6fdd8b"),
    "#d62728": ("--line-3", "#a21caf", "#e79bff"),
    "#9467bd": ("--line-4", "#0e7490", "#5fd7e8"),
    "#8c564b": ("--line-5", "#854d0e", "#e3c15a"),
    "#b0b0b0": ("--rule", "#d9dde3", "#2f3742"),
    "#000000": ("--axis", "#59626e", "#9aa5b1"),
}
"""CSS variables that replace matplotlib's default colours, with their values in light and dark."""
SERIES_COLOURS = list(COLOURS)[:-2]
DASHES = ("solid", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
MARKERS = "os^Dv"
LIGHT, DARK = (" ".join(f"{names[0]}: {names[theme]};" for names in COLOURS.values()) for theme in (1, 2))
STYLE = f"""
:root {{ {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
figure.chart {{ margin: 0; min-width: 0; }}
figure.chart figcaption {{ font-weight: 600; margin-bottom: .35rem; }}
figure.chart svg {{ display: block; width: 100%; height: auto; }}
figure.chart svg text {{ font-family: system-ui, sans-serif; fill: var(--axis); }}
figure.chart svg * {{ stroke-linejoin: round; }}
figure.chart .scroll {{ overflow-x: auto; }}
figure.chart details {{ font-size: .85rem; margin-top: .3rem; }}
"""
FIGURE = Template(
    """<figure class="chart"><figcaption>{{ title }}</figcaption>
{%- if drawing -%}
<svg viewBox="0 0 {{ width }} {{ height }}" role="img" aria-label="{{ title }}: {{ description }}">
{#- #}<title>{{ title }}</title><desc>{{ description }}</desc>{{ drawing }}</svg>
<details><summary>Numbers</summary>
<div class="scroll" tabindex="0" role="region" aria-label="{{ title }}: numbers"><table>
<thead><tr>{% for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div></details>
{%- else %}<p>No data.</p>{% endif %}</figure>""",
    autoescape=True,
    trim_blocks=True,
)
"""A chart with its numbers, at most `MAX_POINTS` evenly spaced rows; without a drawing it says that there are none."""
RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 12,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Limits are round numbers around the data.
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "legend.frameon": False,
}
"""Matplotlib's settings, where they differ from its defaults."""
RC_LOCK = threading.Lock()
"""Held while matplotlib's settings, which are global, are ours."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis: the quantity with its unit, and limits, by default round numbers around the data."""

    label: str
    log: bool = False
    """Whether the axis is logarithmic; values must then be positive."""
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points, x and y in ascending order of x; a y of None leaves a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A series of bars, with one value per bin."""

    name: str
    values: Sequence[float]


def line_chart(title: str, x: Axis, y: Axis, lines: Sequence[Line], *, diagonal: bool = False) -> Markup:
    """Draw lines over a numeric axis; without any point, the chart says that there are no data.

    `diagonal` draws y = x, too, for a comparison of quantities that should be equal.

    Raises:
        ValueError: a value on a logarithmic axis is not positive.
    """
    known = [[(a, b) for a, b in line.points if b is not None] for line in lines]
    if not any(known):
        return Markup(FIGURE.render(title=title))
    for axis, column in ((x, 0), (y, 1)):
        lowest = min(point[column] for points in known for point in points)
        if axis.log and lowest <= 0:
            raise ValueError(f"{axis.label}: a logarithmic axis cannot show {lowest}")
    positions = sorted({a for line in lines for a, _ in line.points})
    by_position = [dict(line.points) for line in lines]
    rows = [[format_number(a), *(format_number(values.get(a)) for values in by_position)] for a in positions]

    def draw(axes: "Axes") -> None:
        for number, line in enumerate(lines):
            axes.plot(
                [a for a, _ in line.points],
                [float("nan") if b is None else b for _, b in line.points],
                label=line.name,
                color=SERIES_COLOURS[number % len(SERIES_COLOURS)],
                linestyle=DASHES[number % len(DASHES)],
                marker=MARKERS[number % len(MARKERS)] if len(line.points) <= MAX_POINTS else "",
                markersize=5,
                linewidth=2,
                clip_on=False,  # markers on the edge are drawn whole
            )
        _set_axis(axes, "x", x)
        _set_axis(axes, "y", y)
        if diagonal:
            axes.axline((0, 0), slope=1, color="black", linestyle=DASHES[2], linewidth=1)

    names = [line.name for line in lines]
    return _figure(title, f"{y.label} against {x.label}", draw, [x.label, *names], rows)


def bar_chart(title: str, x: Axis, y: Axis, bins: Sequence[str], bars: Sequence[Bars]) -> Markup:
    """Draw groups of bars, one group for each bin; without any value but 0, the chart says that there are no data.

    Of the horizontal axis only the label is used. On a logarithmic vertical axis, values of 0 have no bar.
    """
    if not any(value for series in bars for value in series.values):
        return Markup(FIGURE.render(title=title))
    rows = [[name, *(format_number(series.values[index]) for series in bars)] for index, name in enumerate(bins)]

    def draw(axes: "Axes") -> None:
        width = 0.8 / len(bars)
        for number, series in enumerate(bars):
            lefts = [index - 0.4 + number * width for index in range(len(bins))]
            axes.bar(
                lefts,
                series.values,
                width,
                align="edge",
                label=series.name,
                color=SERIES_COLOURS[number % len(SERIES_COLOURS)],
            )
        _set_axis(axes, "y", y)
        # On a logarithmic axis, a value of 1 has a visible bar, too.
        axes.set_ylim(bottom=0.8 if y.log else 0)
        axes.set_xlim(-0.5, len(bins) - 0.5)
        axes.set_xlabel(x.label)
        ticks = range(0, len(bins), -(-len(bins) // MAX_TICKS))
        axes.set_xticks(ticks, [bins[index] for index in ticks])

    names = [series.name for series in bars]
    return _figure(title, f"{y.label} by {x.label}", draw, [x.label, *names], rows)


def format_number(value: float | None) -> str:
    """Format a number for axes and tables: `1,234`, `0.123`, `1.2M`; a dash for None."""
    if value is None:
        return "–"
    value += 0.0  # turns -0.0 into 0.0
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.3g}M"
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _set_axis(axes: "Axes", name: str, axis: Axis) -> None:
    """Set label, scale, limits and ticks of the `x` or `y` axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set(**{f"{name}label": axis.label, f"{name}scale": "log" if axis.log else "linear"})
    ticks = axes.xaxis if name == "x" else axes.yaxis
    ticks.set_major_locator(
        LogLocator(numticks=MAX_TICKS) if axis.log else MaxNLocator(MAX_TICKS - 1, steps=[1, 2, 2.5, 5, 10])
    )
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    if axis.minimum is not None or axis.maximum is not None:
        axes.set(**{f"{name}lim": (axis.minimum, axis.maximum)})


def _figure(
    title: str, description: str, draw: Callable[["Axes"], None], heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> Markup:
    """Return the `<figure>` of a chart that `draw` draws; `heads` and `rows` are the table of its numbers."""
    # The salt makes ids inside the SVG reproducible, and different from those of other charts on the page.
    salt = hashlib.sha256(repr((title, heads, rows)).encode()).hexdigest()
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its first import logs that it builds a font cache
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with RC_LOCK, matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's matplotlibrc says
        matplotlib.rcParams.update(RC | {"svg.hashsalt": salt})
        # Not pyplot, which keeps figures in global state. SVG has 72 units per inch.
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained", facecolor="none")
        axes = figure.add_subplot()
        draw(axes)
        axes.grid(axis="y")
        if len(heads) > 2:
            figure.legend(loc="outside lower left", ncols=3)
        document = io.StringIO()
        # Not `savefig`, which lays the figure out and draws it twice.
        FigureCanvasSVG(figure).print_svg(document, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    drawing = _inline(document.getvalue())
    if len(rows) > MAX_POINTS:
        rows = [rows[index * (len(rows) - 1) // (MAX_POINTS - 1)] for index in range(MAX_POINTS)]
    values = {"title": title, "description": description, "drawing": drawing, "heads": heads, "rows": rows}
    return Markup(FIGURE.render(width=WIDTH, height=HEIGHT, **values))


def _inline(document: str) -> Markup:
    """Return the content of matplotlib's SVG document in a form that can be put into an HTML page.

    Colours become CSS variables, and fonts and global style rules are left to `STYLE`. Only ids that are referenced
    stay, because matplotlib numbers the others alike in every chart.
    """
    content = re.sub(r"^.*?<svg[^>]*>|<style.*?</style>|</svg>\s*$", "", document, flags=re.DOTALL)
    referenced = set(re.findall(r'(?:href="#|url\(#)([^")]+)', content))

    def rewrite(tag: re.Match[str]) -> str:
        text = " ".join(tag[0].split())
        text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referenced else "", text)
        text = re.sub(r" font-family: [^;\"]*;?", "", text.replace("xlink:href", "href"))
        return re.sub('#[0-9a-f]{6}(?=[;"])', lambda match: f"var({COLOURS[match[0]][0]})", text)

    # Matplotlib escapes names, so that a "<" always begins a tag.
    return Markup(re.sub(r">\s+<", "><", re.sub("<[^>]*>", rewrite, content)))
