"""Charts as inline SVG: lines and bars with axes, units, a title, and their numbers as a table.

- A chart is a `<figure>`: SVG with `role="img"`, a title and a description for those who don't see it, and below it,
  folded, the table of what is drawn. Lines differ in colour, dash and mark.
- Colours are CSS variables that a page sets once with `STYLE`, for light and dark.
- Written by hand: a page needs two kinds of charts, and a library for more would be its largest part.

Every name is escaped; what comes back is safe to put in a page.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 12, 46
COLOURS = 6
MOST_TICKS = 6
MOST_ROWS = 40

STYLE = """
:root { --line-0: #1f6feb; --line-1: #c2410c; --line-2: #15803d; --line-3: #a21caf; --line-4: #0e7490;
  --line-5: #854d0e; --rule: #d9dde3; --axis: #59626e; }
@media (prefers-color-scheme: dark) { :root { --line-0: #6cb0ff; --line-1: #ff9e64; --line-2: #6fdd8b;
  --line-3: #e79bff; --line-4: #5fd7e8; --line-5: #e3c15a; --rule: #2f3742; --axis: #9aa5b1; } }
figure.chart { margin: 0; min-width: 0; }
figure.chart figcaption { font-weight: 600; margin-bottom: .35rem; }
figure.chart svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
figure.chart svg text { fill: var(--axis); }
figure.chart .rule { stroke: var(--rule); stroke-width: 1; }
figure.chart .even { stroke: var(--axis); stroke-width: 1; stroke-dasharray: 3 4; fill: none; }
figure.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
figure.chart .key { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .3rem 0 0; padding: 0;
  font-size: .85rem; }
figure.chart .key svg { display: inline-block; width: 28px; height: 12px; vertical-align: middle;
  margin-right: .35rem; }
figure.chart .scroll { overflow-x: auto; }
figure.chart details { font-size: .85rem; margin-top: .3rem; }
""" + "\n".join(
    f"figure.chart .c{n} {{ stroke: var(--line-{n}); }} figure.chart .f{n} {{ fill: var(--line-{n}); stroke: none; }}"
    for n in range(COLOURS)
)

DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis.

    Attributes:
        label: what is measured, with its unit.
        log: whether equal steps are equal factors; values must then be positive.
        least: where it begins; by default at the least value.
        most: where it ends; by default at the largest value.
    """

    label: str
    log: bool = False
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points.

    Attributes:
        name: of the line.
        points: x and y of each, x rising; a y of None leaves a gap.
    """

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars beside those of others.

    Attributes:
        name: of the bars.
        values: one a bin.
    """

    name: str
    values: Sequence[float]


def line_chart(title: str, x: Axis, y: Axis, lines: Sequence[Line], *, even: bool = False) -> Markup:
    """Lines over a numeric axis.

    Args:
        title: of the chart.
        x: the horizontal axis.
        y: the vertical one.
        lines: what is drawn; without any point the chart says so.
        even: also draw y = x, for what ought to be equal.
    """
    known = [Line(name=line.name, points=[(a, b) for a, b in line.points if b is not None]) for line in lines]
    if not any(line.points for line in known):
        return _nothing(title)
    across = _Scale(x, [a for line in lines for a, _ in line.points], LEFT, WIDTH - RIGHT)
    up = _Scale(y, [b for line in known for _, b in line.points if b is not None], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(across, up)]
    if even:
        low, high = max(across.least, up.least), min(across.most, up.most)
        parts.append(_tag("path", d=_path([[(across(low), up(low)), (across(high), up(high))]]), class_="even"))
    for number, line in enumerate(lines):
        runs: list[list[tuple[float, float]]] = [[]]
        for a, b in line.points:
            if b is None:
                runs.append([])
            else:
                runs[-1].append((across(a), up(b)))
        parts.append(_tag("path", d=_path(runs), class_=f"line c{number % COLOURS}", stroke_dasharray=_dash(number)))
        # Marks tell single points, and hold what a pointer shows; thousands of them would hide the line.
        if len(line.points) <= MOST_ROWS:
            for a, b in known[number].points:
                hint = f"{line.name}: {_short(a)} → {_short(b or 0)}"
                parts.append(_mark(number, across(a), up(b or 0), hint))
    rows = sorted({a for line in lines for a, _ in line.points})
    by_line = [dict(line.points) for line in lines]
    cells = [[_short(a), *("–" if (b := each.get(a)) is None else _short(b) for each in by_line)] for a in rows]
    said = "; ".join(
        f"{line.name} from {_short(line.points[0][1] or 0)} to {_short(line.points[-1][1] or 0)}"
        for line in known
        if line.points
    )
    description = f"{y.label} against {x.label}: {said}."
    return _figure(title, description, parts, [line.name for line in lines], [x.label, *by_names(lines)], cells)


def bar_chart(title: str, x: Axis, y: Axis, bins: Sequence[str], bars: Sequence[Bars]) -> Markup:
    """Groups of bars, one group a bin.

    Args:
        title: of the chart.
        x: the horizontal axis: its label only.
        y: the vertical one; on a logarithmic one a bar begins at 1, and none is drawn below.
        bins: names of the bins, in order.
        bars: what is drawn, each with a value a bin.
    """
    values = [value for each in bars for value in each.values]
    if not any(values):
        return _nothing(title)
    start = 1.0 if y.log else 0.0
    up = _Scale(Axis(label=y.label, log=y.log, least=start, most=y.most), [*values, start + 1], HEIGHT - BOTTOM, TOP)
    room = (WIDTH - RIGHT - LEFT) / len(bins)
    wide = room * 0.8 / len(bars)
    parts = [*_grid(None, up, x.label)]
    every = math.ceil(len(bins) / MOST_TICKS)
    for place, name in enumerate(bins):
        left = LEFT + place * room + room * 0.1
        if place % every == 0:
            parts.append(_text(name, left + room * 0.4, HEIGHT - BOTTOM + 16, anchor="middle"))
        for number, each in enumerate(bars):
            value = each.values[place]
            if value <= start * 0.999:
                continue
            at = up(max(value, start))
            hint = Markup("<title>{}: {} → {}</title>").format(each.name, name, _short(value))
            shape = {"x": left + number * wide, "y": min(at, HEIGHT - BOTTOM - 1), "width": wide}
            parts.append(
                _tag("rect", hint, **shape, height=max(1.0, HEIGHT - BOTTOM - at), class_=f"f{number % COLOURS}")
            )
    cells = [[name, *(_short(each.values[place]) for each in bars)] for place, name in enumerate(bins)]
    most = "; ".join(
        f"{each.name} up to {_short(max(each.values))}, at {bins[list(each.values).index(max(each.values))]}"
        for each in bars
    )
    description = f"{y.label} by {x.label}: {most}."
    return _figure(
        title, description, parts, [each.name for each in bars], [x.label, *by_names(bars)], cells, fill=True
    )


def by_names(series: Iterable[Line | Bars]) -> list[str]:
    """The names of lines or bars, in order."""
    return [each.name for each in series]


class _Scale:
    """Values of an axis to places on the picture."""

    def __init__(self, axis: Axis, values: Sequence[float], begin: float, end: float):
        self.axis = axis
        least = min(values) if axis.least is None else axis.least
        most = max(values) if axis.most is None else axis.most
        if axis.log and least <= 0:
            raise ValueError(f"{axis.label}: a logarithmic axis can't show {least}")
        if most <= least:
            most = least * 2 if axis.log else least + 1
        self.ticks = _powers(least, most) if axis.log else _round_steps(least, most)
        if axis.least is None:
            least = min(least, self.ticks[0])
        if axis.most is None:
            most = max(most, self.ticks[-1])
        self.least, self.most = least, most
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.axis.log else v for v in (self.least, self.most, value))
        return self._begin + (self._end - self._begin) * (min(max(at, low), high) - low) / (high - low)


def _round_steps(least: float, most: float) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) around a range."""
    rough = (most - least) / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _powers(least: float, most: float) -> list[float]:
    """Powers of ten around a range, thinned where there are many."""
    low, high = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
    every = max(1, math.ceil((high - low + 1) / MOST_TICKS))
    return [10.0**power for power in range(low, high + every, every)]


def _grid(across: _Scale | None, up: _Scale, name: str = "") -> Iterable[Markup]:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in up.ticks:
        if up.least <= tick <= up.most:
            at = up(tick)
            yield _tag("line", x1=LEFT, y1=at, x2=right, y2=at, class_="rule")
            yield _text(_short(tick), LEFT - 6, at + 4, anchor="end")
    if across is not None:
        for tick in across.ticks:
            if across.least <= tick <= across.most:
                at = across(tick)
                yield _tag("line", x1=at, y1=floor, x2=at, y2=floor + 4, class_="rule")
                anchor = "end" if at > right - 14 else "middle"
                yield _text(_short(tick), at + (8 if anchor == "end" else 0), floor + 16, anchor=anchor)
    yield _text(across.axis.label if across else name, (LEFT + right) / 2, HEIGHT - 8, anchor="middle")
    middle = (TOP + floor) / 2
    yield _text(up.axis.label, 13, middle, anchor="middle", transform=f"rotate(-90 13 {middle:g})")


def _figure(
    title: str,
    description: str,
    parts: Sequence[Markup],
    names: Sequence[str],
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    fill: bool = False,
) -> Markup:
    label = Markup("<title>{}</title><desc>{}</desc>").format(title, description)
    box = f"0 0 {WIDTH} {HEIGHT}"
    alternative = f"{title}. {description}"
    drawn = _tag("svg", label + Markup("").join(parts), viewBox=box, role="img", aria_label=alternative)
    key = Markup("").join(
        Markup("<li>{}{}</li>").format(_sample(number, fill=fill), name) for number, name in enumerate(names)
    )
    return Markup('<figure class="chart"><figcaption>{}</figcaption>{}<ul class="key">{}</ul>{}</figure>').format(
        title, drawn, key, _numbers(title, heads, cells)
    )


def _numbers(title: str, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> Markup:
    """The folded table; of many rows, some spread evenly."""
    if len(cells) > MOST_ROWS:
        cells = [cells[place * (len(cells) - 1) // (MOST_ROWS - 1)] for place in range(MOST_ROWS)]
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(each) for each in heads)
    body = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            row[0], Markup("").join(Markup("<td>{}</td>").format(each) for each in row[1:])
        )
        for row in cells
    )
    return Markup(
        '<details><summary>The numbers</summary><div class="scroll" tabindex="0" role="region" aria-label="{}">'
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div></details>"
    ).format(f"{title}: the numbers", head, body)


def _nothing(title: str) -> Markup:
    return Markup('<figure class="chart"><figcaption>{}</figcaption><p>Nothing was recorded.</p></figure>').format(
        title
    )


def _sample(number: int, *, fill: bool) -> Markup:
    colour = number % COLOURS
    if fill:
        inner = _tag("rect", x=6, y=1, width=14, height=10, class_=f"f{colour}")
    else:
        inner = _tag("path", d="M0 6L28 6", class_=f"line c{colour}", stroke_dasharray=_dash(number))
        inner += _mark(number, 14, 6)
    return _tag("svg", inner, viewBox="0 0 28 12", aria_hidden="true")


def _mark(number: int, x: float, y: float, hint: str = "") -> Markup:
    inner = Markup("<title>{}</title>").format(hint) if hint else Markup("")
    if number % 3 == 0:
        return _tag("circle", inner, cx=x, cy=y, r=3, class_=f"f{number % COLOURS}")
    if number % 3 == 1:
        return _tag("rect", inner, x=x - 3, y=y - 3, width=6, height=6, class_=f"f{number % COLOURS}")
    corners = f"M{x:.1f} {y - 4:.1f}L{x + 4:.1f} {y + 3:.1f}L{x - 4:.1f} {y + 3:.1f}Z"
    return _tag("path", inner, d=corners, class_=f"f{number % COLOURS}")


def _dash(number: int) -> str | None:
    return DASHES[number % len(DASHES)] or None


def _path(runs: Iterable[Sequence[tuple[float, float]]]) -> str:
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in runs if len(run) > 1)


def _text(words: str, x: float, y: float, *, anchor: str, transform: str | None = None) -> Markup:
    return _tag("text", escape(words), x=x, y=y, text_anchor=anchor, transform=transform)


def _tag(name: str, inner: Markup | None = None, **attributes: str | float | None) -> Markup:
    shown = Markup("").join(
        Markup(' {}="{}"').format(
            key if key == "viewBox" else key.rstrip("_").replace("_", "-"),
            f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value,
        )
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{}{}>{}</{}>").format(Markup(name), shown, inner or Markup(""), Markup(name))


def _short(value: float) -> str:
    """A number as an axis shows it."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:,.3g}M"
    if size >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"
