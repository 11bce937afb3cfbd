"""Charts as a browser reads them: whole XML, values where they belong, every name escaped.

python -m pytest tests/evaluation/test_pictures.py
"""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from axml_ray.evaluation.pictures import HEIGHT, LEFT, WIDTH, Axis, Bars, Line, bar_chart, line_chart

EVIL = "<script>alert(1)</script>\"'&"


def parsed(markup):
    assert isinstance(markup, Markup)
    return ElementTree.fromstring(str(markup))


def marks(figure, number):
    return [tuple(float(each.get(key)) for key in ("cx", "cy")) for each in figure.iter("circle") if each.get("cx")]


def test_points_stand_where_their_values_say():
    points = [(0, 0.0), (5, 50.0), (10, 100.0)]
    lines = [Line(name="one", points=points)]
    figure = parsed(line_chart("t", Axis(label="x"), Axis(label="y, %"), lines))
    first, middle, last = [mark for mark in marks(figure, 0) if mark != (14, 6)]
    assert first[0] == LEFT and first[0] < middle[0] < last[0] and first[1] > middle[1] > last[1]
    assert middle == pytest.approx(((first[0] + last[0]) / 2, (first[1] + last[1]) / 2), abs=0.1)
    texts = [each.text for each in figure.iter("text")]
    assert {"x", "y, %", "0", "10", "100"} <= set(texts)


def test_equal_factors_are_equal_steps_on_a_logarithmic_axis():
    lines = [Line(name="one", points=[(1, 1.0), (10, 2.0), (100, 3.0)])]
    figure = parsed(line_chart("t", Axis(label="x", log=True), Axis(label="y"), lines))
    first, middle, last = [mark for mark in marks(figure, 0) if mark != (14, 6)]
    assert middle[0] - first[0] == pytest.approx(last[0] - middle[0], abs=0.1)
    with pytest.raises(ValueError, match="can't show 0"):
        line_chart("t", Axis(label="x", log=True), Axis(label="y"), [Line(name="one", points=[(0, 1.0)])])


def test_bars_are_as_high_as_their_values():
    figure = parsed(bar_chart("t", Axis(label="x"), Axis(label="n"), ["a", "b"], [Bars(name="one", values=[10, 5])]))
    svg = next(each for each in figure.iter("svg") if each.get("role") == "img")
    tall, short = [float(each.get("height")) for each in svg.iter("rect")]
    assert tall == pytest.approx(2 * short, abs=0.2)
    log = Axis(label="n", log=True)
    figure = parsed(bar_chart("t", Axis(label="x"), log, ["a", "b", "c"], [Bars(name="one", values=[100, 10, 0])]))
    svg = next(each for each in figure.iter("svg") if each.get("role") == "img")
    tall, short = [float(each.get("height")) for each in svg.iter("rect")]
    assert tall == pytest.approx(2 * short, abs=0.2)


def test_a_gap_breaks_the_line_and_shows_as_a_dash():
    lines = [Line(name="one", points=[(1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, 2.0)])]
    figure = parsed(line_chart("t", Axis(label="x"), Axis(label="y"), lines))
    path = next(each.get("d") for each in figure.iter("path") if each.get("class") == "line c0")
    assert path.count("M") == 2
    rows = [[cell.text for cell in row] for row in figure.iter("tr")]
    assert rows == [["x", "one"], ["1", "1"], ["2", "2"], ["3", "–"], ["4", "1"], ["5", "2"]]


def test_those_who_do_not_see_it_are_told():
    lines = [Line(name="loss", points=[(1, 0.5), (9, 0.25)])]
    figure = parsed(line_chart("How it went", Axis(label="step"), Axis(label="loss"), lines))
    svg = next(each for each in figure.iter("svg") if each.get("role") == "img")
    assert svg.find("title").text == "How it went"
    assert svg.find("desc").text == "loss against step: loss from 0.5 to 0.25."
    assert svg.get("aria-label").startswith("How it went.")
    region = next(figure.iter("div"))
    assert region.get("tabindex") == "0" and region.get("aria-label")


def test_names_are_escaped_everywhere():
    axis = Axis(label=EVIL)
    for chart in (
        line_chart(EVIL, axis, axis, [Line(name=EVIL, points=[(0, 1.0), (1, 2.0)])]),
        bar_chart(EVIL, axis, axis, [EVIL, "b"], [Bars(name=EVIL, values=[1, 2])]),
        line_chart(EVIL, axis, axis, []),
    ):
        assert "<script" not in chart
        assert EVIL in "".join(parsed(chart).itertext())


def test_nothing_to_draw_is_said():
    for chart in (
        line_chart("t", Axis(label="x"), Axis(label="y"), [Line(name="one", points=[(1, None)])]),
        bar_chart("t", Axis(label="x"), Axis(label="y"), ["a"], [Bars(name="one", values=[0])]),
    ):
        assert "Nothing was recorded." in chart


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.none() | st.floats(-1e9, 1e9)), max_size=60, unique_by=lambda p: p[0]),
    st.booleans(),
)
def test_any_values_stay_on_the_picture(points, even):
    lines = [Line(name="one", points=sorted(points)), Line(name="two", points=[])]
    figure = parsed(line_chart("t", Axis(label="x"), Axis(label="y"), lines, even=even))
    for path in figure.iter("path"):
        if (path.get("class") or "").startswith("line"):
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
            assert all(0 <= x <= WIDTH for x in numbers[::2]) and all(0 <= y <= HEIGHT for y in numbers[1::2])
    assert "nan" not in "".join(figure.itertext()).lower()


def test_a_table_of_many_points_is_thinned():
    lines = [Line(name="one", points=[(float(x), float(x)) for x in range(1000)])]
    figure = parsed(line_chart("t", Axis(label="x"), Axis(label="y"), lines))
    rows = [row[0].text for row in figure.iter("tr")][1:]
    assert len(rows) == 40 and (rows[0], rows[-1]) == ("0", "999")
    assert len([mark for mark in marks(figure, 0) if mark != (14, 6)]) == 0
