"""Several seeds: the mean of every score and its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, inf, pi, sin, sqrt
from statistics import fmean, stdev
from typing import Any


def over_seeds(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of `score`, one per seed with the same data and metric, as one result.

    Every score, per class too, is the mean over the runs; "detections" lists their numbers. New are
    "interval95", the half width of the 95 % interval of each score that is not per class, and
    "runs", the given results. A score that is None in one run is None here, and so is its interval.
    """
    first = results[0]
    figures = [k for k in first if k not in ("metric", "per_class", "images", "detections")]
    per_class = {
        name: {
            figure: mean_or_none([r["per_class"][name][figure] for r in results])
            for figure in entry
        }
        for name, entry in first["per_class"].items()
    }
    return {
        "metric": first["metric"],
        **{k: mean_or_none([r[k] for r in results]) for k in figures},
        "per_class": per_class,
        "images": first["images"],
        "detections": [r["detections"] for r in results],
        "interval95": {k: interval95([r[k] for r in results]) for k in figures},
        "runs": list(results),
    }


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is missing, because means over fewer runs do not compare."""
    known = [v for v in values if v is not None]
    return fmean(known) if known and len(known) == len(values) else None


def interval95(values: Sequence[float | None]) -> float | None:
    """Half width of the 95 % confidence interval of the mean: t(0.975, n - 1) s / sqrt(n).

    Student's t, because the deviation is estimated from the same few runs. None for fewer than two
    runs or if a value is missing.
    """
    known = [v for v in values if v is not None]
    n = len(known)
    if n < 2 or n < len(values):
        return None
    return student_t(0.95, n - 1) * stdev(known) / sqrt(n)


def student_t(inside: float, freedom: int) -> float:
    """The t > 0 with P(-t < T < t) = inside for Student's T, whole `freedom` >= 1, by bisection."""
    low, high = 0.0, pi / 2  # of the angle atan(t / sqrt(freedom)), which is bounded
    middle = inf
    while middle != (middle := (low + high) / 2):
        if student_inside(middle, freedom) < inside:
            low = middle
        else:
            high = middle
    return sqrt(freedom) * sin(middle) / cos(middle)


def student_inside(angle: float, freedom: int) -> float:
    """P(-t < T < t) for t = sqrt(freedom) tan(angle): Abramowitz and Stegun 26.7.3 and 26.7.4."""
    odd = freedom % 2 == 1
    total, term = 0.0, cos(angle) if odd else 1.0
    for k in range(3 if odd else 2, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
