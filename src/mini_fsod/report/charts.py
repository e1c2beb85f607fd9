"""Charts as SVG: histograms, lines and bars. No colour stands alone: hatching, dashes and words say
the same.

Colours come from classes in `templates/report.css`, so that charts follow the light and dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from mini_fsod.report.html import Html, join, tag

WIDTH, HEIGHT = 340, 170
LEFT, RIGHT, TOP, BOTTOM = 34, 12, 14, 26
INNER_WIDTH, INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
MAX_POINTS = 120  # of a line; more are averaged
LABEL_SPACE = 12  # between the names of two lines
NAME_SPACE = 78  # for the names, right of the lines


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of bar of a histogram: `class_` is its style."""

    name: str
    class_: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]  # x ascending


def _number(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers from low to high; one of them where both are equal."""
    if not (isfinite(low) and isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / wanted
    base = 10 ** floor(log10(raw))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= raw * 0.999)
    first = ceil(low / step - 1e-9)
    last = floor(high / step + 1e-9)
    return [round(n * step, 10) for n in range(first, last + 1)]


def tick_label(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:,g}"


def _figure(title: str, description: str, content: Html, height: int = HEIGHT) -> Html:
    drawn = tag(
        "svg",
        tag("title", description),
        content,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        class_="chart",
    )
    return tag("figure", tag("figcaption", title), drawn, class_="chart-box")


def _axes(x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]]) -> list[Html]:
    """Grid lines and labels at positions in pixels."""
    base = TOP + INNER_HEIGHT
    parts = []
    for y, label in y_ticks:
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        parts.append(_text(LEFT - 5, y + 3.5, label, "tick end"))
    for x, label in x_ticks:
        anchor = "tick start" if x < LEFT + 8 else "tick end" if x > WIDTH - RIGHT - 8 else "tick"
        parts.append(_text(x, base + 15, label, anchor))
    parts.append(_line(LEFT, base, WIDTH - RIGHT, base, "axis"))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return tag("line", class_=class_, **{name: _number(value) for name, value in ends.items()})


def _bar(x: float, y: float, width: float, height: float, class_: str) -> Html:
    box = {"x": x, "y": y, "width": width, "height": height}
    return tag("rect", class_=class_, **{name: _number(value) for name, value in box.items()})


def _text(x: float, y: float, words: object, class_: str) -> Html:
    return tag("text", words, x=_number(x), y=_number(y), class_=class_)


def histogram(
    title: str,
    parts: Sequence[Part],
    threshold: float | None,
    low: float = 0.0,
    high: float = 1.0,
    bins: int = 25,
) -> Html:
    """Stacked bars of scores from `low` to `high`, and the threshold.

    There are always many more low scores than high ones. Bars that are more than three times as
    high as the highest one above the threshold are cut; the title says how high they are.
    """
    span = max(high - low, 1e-9)
    counts = [[0] * bins for _ in parts]
    for part, row in zip(parts, counts, strict=True):
        for value in part.values:
            row[min(max(int((value - low) / span * bins), 0), bins - 1)] += 1
    totals = [sum(column) for column in zip(*counts, strict=True)] if parts else [0] * bins
    from_bin = 0 if threshold is None else min(max(int((threshold - low) / span * bins), 0), bins)
    above = max(totals[from_bin:], default=0)
    top = min(max(totals, default=0), max(3 * above, 6)) or 1
    scale = INNER_HEIGHT / top
    width = INNER_WIDTH / bins
    shapes: list[Html] = []
    for n in range(bins):
        y = float(TOP + INNER_HEIGHT)
        for part, row in zip(parts, counts, strict=True):
            room = y - TOP
            height = min(row[n] * scale, room)
            if height > 0:
                y -= height
                shapes.append(_bar(LEFT + n * width + 0.5, y, width - 1, height, part.class_))
        if totals[n] > top:
            x = LEFT + (n + 0.5) * width
            start = f"M{_number(x - width / 2)} {TOP + 5}l{_number(width / 2)} -4l"
            shapes.append(tag("path", class_="cut", d=f"{start}{_number(width / 2)} 4"))
    if max(totals, default=0) > top:
        title += f" (cut bars reach {max(totals):,})"
    if threshold is not None and low <= threshold <= high:
        x = LEFT + (threshold - low) / span * INNER_WIDTH
        shapes.append(_line(x, TOP - 4, x, TOP + INNER_HEIGHT, "threshold"))
        on_left = x > LEFT + INNER_WIDTH * 0.6
        at = x - 4 if on_left else x + 4
        words = f"threshold {threshold:.2f}"
        shapes.append(_text(at, TOP + 18, words, "mark end" if on_left else "mark start"))
    axes = _axes(
        [(LEFT + (v - low) / span * INNER_WIDTH, tick_label(v)) for v in ticks(low, high)],
        [
            (TOP + INNER_HEIGHT - v * scale, tick_label(v))
            for v in ticks(0, top, 3)
            if float(v).is_integer()
        ],
    )
    said = ", ".join(f"{len(part.values):,} {part.name}" for part in parts)
    cut = "" if threshold is None else f"; threshold {threshold:.3f}"
    return _figure(title, f"Histogram of scores: {said}{cut}.", join(axes, shapes))


def lines(title: str, series: Sequence[Series], zero: bool = True, unit: str = "") -> Html:
    """Lines over iterations, named at their right ends, a lone one too; the first is
    solid, the others dashed."""
    thin = [Series(one.name, _averaged(one.points)) for one in series if one.points]
    if not thin:
        return Html("")
    xs = [x for one in thin for x, _ in one.points]
    ys = [y for one in thin for _, y in one.points]
    low, high = (min(0.0, *ys) if zero else min(ys)), max(ys)
    if high <= low:
        high = low + 1
    x0, x1 = min(0.0, *xs), max(xs)
    right = WIDTH - RIGHT - NAME_SPACE

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x0) / max(x1 - x0, 1e-9) * (right - LEFT)
        return across, TOP + INNER_HEIGHT * (1 - (y - low) / (high - low))

    shapes = []
    ends = sorted(range(len(thin)), key=lambda n: place(*thin[n].points[-1])[1])
    for n, one in enumerate(thin):
        corners = (place(*point) for point in one.points)
        path = "L".join(f"{_number(x)} {_number(y)}" for x, y in corners)
        shapes.append(tag("path", class_=f"line line-{n % 4}", d=f"M{path}"))
    wanted = [place(*thin[n].points[-1])[1] + 3.5 for n in ends]
    for n, y in zip(ends, apart(wanted, TOP, TOP + INNER_HEIGHT), strict=True):
        shapes.append(_text(right + 5, y, thin[n].name, f"name name-{n % 4}"))
    axes = _axes(
        [(place(v, low)[0], tick_label(v)) for v in ticks(x0, x1, 3)],
        [(place(x0, v)[1], tick_label(v)) for v in ticks(low, high, 4)],
    )
    last = ", ".join(f"{one.name} {one.points[-1][1]:.3g}" for one in thin)
    said = f"Lines over {x1:,.0f} iterations; at the end: {last}{unit}."
    return _figure(title, said, join(axes, shapes))


def apart(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Positions of labels, in this order and LABEL_SPACE apart, near those wanted (ascending).

    They end at `bottom`, and begin above `top` only where they do not fit between both.
    """
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + LABEL_SPACE) if placed else max(y, top))
    for n in reversed(range(len(placed))):
        most = bottom if n == len(placed) - 1 else placed[n + 1] - LABEL_SPACE
        placed[n] = min(placed[n], most)
    return placed


def _averaged(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MAX_POINTS points: means of neighbours. Values that are not finite are left out."""
    known = [(x, y) for x, y in points if isfinite(y)]
    size = -(-len(known) // MAX_POINTS)
    groups = [known[n : n + size] for n in range(0, len(known), size)] if known else []
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def bar(value: float | None, of: float = 100.0, mark: float | None = None) -> Html:
    """A small bar beside a number of a table, with a mark such as the oracle's value."""
    if value is None:
        return Html("")
    width = 80
    shapes = [
        tag("rect", class_="bar-back", x="0", y="3", width=width, height="8"),
        tag(
            "rect",
            class_="bar-fill",
            x="0",
            y="3",
            width=_number(width * min(max(value / of, 0), 1)),
            height="8",
        ),
    ]
    if mark is not None:
        x = _number(width * min(max(mark / of, 0), 1))
        shapes.append(tag("line", class_="bar-mark", x1=x, x2=x, y1="0", y2="14"))
    return tag("svg", shapes, viewBox=f"0 0 {width} 14", class_="bar", aria_hidden="true")
