"""Charts: bars and lines where the numbers are, and words that say the same."""

from __future__ import annotations

import re
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.report.charts import (
    HEIGHT,
    LABEL_SPACE,
    MAX_POINTS,
    WIDTH,
    Part,
    Series,
    apart,
    bar,
    histogram,
    lines,
    ticks,
)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0, 100, [0, 25, 50, 75, 100]),
        (0, 7, [0, 2, 4, 6]),
        (0.3, 0.9, [0.4, 0.6, 0.8]),
        (5, 5, [5]),
        (nan, 1, None),
        (0, inf, [0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float] | None) -> None:
    found = ticks(low, high)
    assert len(found) == 1 if expected is None else found == expected


def bars(chart: str, style: str) -> list[tuple[float, float]]:
    """(x, height) of the bars of a style."""
    numbers = r'x="([\d.]+)" y="[\d.]+" width="[\d.]+" height="([\d.]+)"'
    found = re.findall(rf'<rect class="{style}" {numbers}/>', chart)
    return [(float(x), float(height)) for x, height in found]


def test_histogram_stacks_parts_and_marks_the_threshold() -> None:
    scores = [0.1, 0.1, 0.1, 0.9]
    parts = [Part("mined", "bar-right", [0.9, 0.91]), Part("left out", "bar-out", scores)]
    chart = histogram("Scores", parts, 0.5)
    assert len(bars(chart, "bar-right")) == 1
    low, high = bars(chart, "bar-out")
    assert low[1] == pytest.approx(3 * high[1], abs=0.2)
    assert "2 mined, 4 left out; threshold 0.500" in chart
    assert 'class="threshold"' in chart


def test_histogram_cuts_bars_of_the_many_low_scores() -> None:
    parts = [Part("left out", "bar-out", [0.05] * 5000 + [0.8] * 10)]
    chart = histogram("Scores", parts, 0.5)
    assert "cut bars reach 5,000" in chart
    heights = [height for _, height in bars(chart, "bar-out")]
    assert heights[0] == pytest.approx(3 * heights[1], abs=0.2)
    assert "cut bars" not in histogram("Scores", parts, 0.01)  # all are above it


@pytest.mark.parametrize("threshold", [None, 0.0, 0.5, 1.0, 7.0])
@pytest.mark.parametrize("values", [[], [0.0, 1.0, 2.0, -1.0]])
def test_histogram_of_any_threshold_and_scores(
    threshold: float | None, values: list[float]
) -> None:
    chart = histogram("Scores", [Part("all", "bar-out", values)], threshold)
    assert "nan" not in chart


def test_lines_stay_in_the_chart_and_are_named() -> None:
    one = Series("first", [(n, n * n) for n in range(1000)])
    two = Series("<second>", [(n, nan if n == 5 else -n) for n in range(1000)])
    chart = lines("Loss", [one, two, Series("empty", [])])
    path = re.findall(r'class="line line-\d" d="M([^"]+)"', chart)
    assert len(path) == 2
    for points in path:
        corners = [tuple(map(float, corner.split())) for corner in points.split("L")]
        assert 10 < len(corners) <= MAX_POINTS
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in corners)
    assert "&lt;second&gt;</text>" in chart
    assert not lines("Loss", [])


def test_lines_name_a_lone_one() -> None:
    chart = lines("The teacher against the pool", [Series("agreement", [(0, 1), (9, 2)])])
    (found,) = re.findall(r'<text x="([\d.]+)"[^>]*>agreement</text>', chart)
    (path,) = re.findall(r'class="line line-0" d="M([^"]+)"', chart)
    assert float(path.split("L")[-1].split()[0]) < float(found) < WIDTH


@given(st.lists(st.floats(0, 150), max_size=9).map(sorted))
def test_apart_keeps_labels_apart(wanted: list[float]) -> None:
    placed = apart(wanted, 10, 150)
    assert len(placed) == len(wanted)
    assert all(b - a >= LABEL_SPACE - 1e-9 for a, b in pairwise(placed))
    assert max(placed, default=0) <= 150


def test_bar_shows_a_value_and_a_mark() -> None:
    assert 'width="40"' in bar(50.0)
    assert "bar-mark" in bar(50.0, mark=80.0)
    assert not bar(None)
