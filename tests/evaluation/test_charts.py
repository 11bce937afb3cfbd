"""Charts: valid XML, the numbers in the drawing and the table, escaping, ids and reproducibility.

python -m pytest tests/evaluation/test_charts.py
"""

import re
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from axml_ray.evaluation.reports.charts import COLOURS, STYLE, Axis, Bars, Line, bar_chart, format_number, line_chart

EVIL = '<script>alert(1)</script>"\'& $x_1$ id="a" #1f6feb'
X, Y = Axis(label="step"), Axis(label="loss")


def parse(markup):
    assert isinstance(markup, Markup)
    return ElementTree.fromstring(str(markup))


def draw(points, x=X, y=Y):
    return line_chart("Title", x, y, [Line(name="one", points=points)])


def markers(figure):
    """Positions of all markers; tick marks are `use` elements, too."""
    uses = [each for each in figure.iter("use") if "fill: var(--line" in each.get("style")]
    return [(float(each.get("x")), float(each.get("y"))) for each in uses]


def bars(figure):
    """Height of each bar."""
    paths = [path.get("d") for path in figure.iter("path") if "fill: var(--line" in path.get("style", "")]
    corners = [[float(y) for y in re.findall(r"[ML] \S+ (\S+)", path)] for path in paths]
    return [max(ys) - min(ys) for ys in corners]


def lines(figure):
    return [
        path.get("d") for path in figure.iter("path") if re.search(r"fill: none; .*var\(--line", path.get("style", ""))
    ]


def texts(figure):
    return [each.text for each in figure.iter("text")]


def table(figure):
    return [[cell.text for cell in row] for row in figure.iter("tr")]


def test_markers_are_at_their_values():
    figure = parse(draw([(0, 0.0), (5, 50.0), (10, 100.0)]))
    first, middle, last = markers(figure)
    assert first[0] < middle[0] < last[0] and first[1] > middle[1] > last[1]
    assert middle == pytest.approx(((first[0] + last[0]) / 2, (first[1] + last[1]) / 2), abs=0.1)
    assert {"step", "loss", "0", "10", "100"} <= set(texts(figure))


def test_logarithmic_axis_has_equal_steps_for_equal_factors():
    x = Axis(label="x", log=True)
    figure = parse(draw([(1, 1.0), (10, 2.0), (100, 3.0)], x))
    first, middle, last = markers(figure)
    assert middle[0] - first[0] == pytest.approx(last[0] - middle[0], abs=0.1)
    assert {"1", "10", "100"} <= set(texts(figure))
    # Limits are powers of ten, so that an axis within one decade has ticks.
    assert {"1", "10"} <= set(texts(parse(draw([(3, 1.0), (8, 2.0)], x))))
    with pytest.raises(ValueError, match=r"x: .* 0"):
        draw([(0, 1.0)], x)


def test_bars_are_as_high_as_their_values():
    tall, short = bars(parse(bar_chart("t", X, Y, ["a", "b"], [Bars(name="one", values=[10, 5])])))
    assert tall == pytest.approx(2 * short, abs=0.2)
    log = Axis(label="n", log=True)
    figure = parse(bar_chart("t", X, log, ["a", "b", "c", "d"], [Bars(name="one", values=[100, 10, 1, 0])]))
    hundred, ten, one, *_ = bars(figure)
    assert hundred - ten == pytest.approx(ten - one, abs=0.2) and one > 1
    assert {"1", "10", "100", "a", "d"} <= set(texts(figure))


def test_none_is_a_gap_in_the_line_and_a_dash_in_the_table():
    figure = parse(draw([(1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, 2.0)]))
    (path,) = lines(figure)
    assert path.count("M") == 2 and len(markers(figure)) == 4
    assert table(figure) == [["step", "one"], ["1", "1"], ["2", "2"], ["3", "–"], ["4", "1"], ["5", "2"]]


def test_text_alternative():
    figure = parse(line_chart("Title", X, Y, [Line(name="loss", points=[(1, 0.5), (9, 0.25)])]))
    svg = figure.find("svg")
    assert svg.get("role") == "img"
    assert svg.find("title").text == "Title"
    assert svg.find("desc").text == "loss against step"
    assert svg.get("aria-label") == "Title: loss against step"
    region = next(figure.iter("div"))
    assert region.get("tabindex") == "0" and region.get("aria-label")


def test_names_are_escaped_and_drawn_literally():
    axis = Axis(label=EVIL)
    series = [[Line(name=f"{EVIL} {n}", points=[(0, 1.0), (1, 2.0)]) for n in range(2)]]
    charts = [
        line_chart(EVIL, axis, axis, *series),
        bar_chart(EVIL, axis, axis, [EVIL, "b"], [Bars(name=EVIL, values=[1, 2])]),
    ]
    for chart in charts:
        assert "<script" not in chart and texts(parse(chart)).count(EVIL) >= 2
    empty = line_chart(EVIL, axis, axis, [])
    assert "<script" not in empty and EVIL in "".join(parse(empty).itertext())


def test_without_data_there_is_no_drawing():
    for chart in (draw([(1, None)]), bar_chart("t", X, Y, ["a"], [Bars(name="one", values=[0])])):
        assert parse(chart).find("svg") is None and "No data." in chart


def test_charts_are_reproducible_and_share_no_ids():
    def charts(_=0):
        return [
            line_chart(f"chart {n}", X, Y, [Line(name="one", points=[(0, 0.0), (1, 1.0)])], diagonal=True)
            for n in range(2)
        ]

    page = charts()
    ids = re.findall(r'\bid="([^"]*)"', "".join(page))
    assert len(ids) == len(set(ids)) >= 4
    assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', "".join(page))) == set(ids)
    with ThreadPoolExecutor(4) as threads:
        assert all(each == page for each in threads.map(charts, range(4)))


def test_colours_are_variables_of_the_style():
    chart = draw([(0, 0.0), (1, 1.0)])
    assert not re.findall("#[0-9a-fA-F]{6}", chart)
    used = set(re.findall(r"var\((--[\w-]+)\)", chart))
    assert {"--line-0", "--axis", "--rule"} <= used <= {name for name, *_ in COLOURS.values()}
    for name, light, dark in COLOURS.values():
        assert STYLE.count(f"{name}: {light};") == STYLE.count(f"{name}: {dark};") == 1


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.none() | st.floats(-1e9, 1e9)), max_size=60, unique_by=lambda p: p[0]),
    st.booleans(),
)
def test_any_values_are_inside_the_drawing(points, diagonal):
    series = [Line(name="one", points=sorted(points)), Line(name="two", points=[])]
    figure = parse(line_chart("t", X, Y, series, diagonal=diagonal))
    positions = [(float(x), float(y)) for path in lines(figure) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)]
    assert all(0 <= x <= 440 and 0 <= y <= 290 for x, y in positions + markers(figure))
    assert "nan" not in "".join(figure.itertext()).lower()


def test_many_points_have_no_markers_and_a_thinned_table():
    figure = parse(draw([(float(x), float(x)) for x in range(1000)]))
    rows = [row[0] for row in table(figure)][1:]
    assert len(rows) == 40 and (rows[0], rows[-1]) == ("0", "999")
    assert not markers(figure) and len(lines(figure)) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (-0.0, "0"), (12.0, "12"), (0.12345, "0.123"), (12345.6, "12,346"), (-2.5e6, "-2.5M")],
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text
