"""The learning rate, and how many iterations fit into a budget of minutes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

# A budget in minutes is turned into a number of iterations after this share of it, or after this
# many seconds if that is later: by then kernels are chosen and graphs are recorded.
ESTIMATE_SHARE = 0.1
ESTIMATE_SECONDS = 20.0


def rate_at(
    step: int, total: int | None, rate: float, warm_up: int, decay: Sequence[float]
) -> float:
    """The learning rate of iteration `step`, from 0: linear warm-up, then a tenth after each share
    of the run in `decay`. While `total` is None, the end is not known and the rate does not fall.

    The warm-up takes at most a third of the run, or a short run would end before it learns.
    """
    if total is not None:
        warm_up = min(warm_up, total // 3)
    warm = min(1.0, (step + 1) / warm_up) if warm_up else 1.0
    passed = 0 if total is None else sum(step >= round(share * total) for share in decay)
    return rate * warm * float(0.1**passed)


def can_estimate(minutes: float, seconds: float) -> bool:
    """Whether enough of a budget has passed to estimate how many iterations fit into it."""
    budget = 60 * minutes
    return seconds >= max(ESTIMATE_SHARE * budget, min(ESTIMATE_SECONDS, 0.5 * budget))


def iterations_in_budget(minutes: float, pace: Sequence[tuple[float, int]]) -> int:
    """How many iterations fit into a budget, from pairs of seconds and iterations done so far.

    The pace is the median in the second half of the time: the first half includes the start, and an
    interval may include the recording of a graph or a save.
    """
    seconds, done = pace[-1]
    first = sum(at < seconds / 2 for at, _ in pace)
    recent = pace[min(first, len(pace) - 2) :]
    each = median((t - before) / (n - m) for (before, m), (t, n) in pairwise(recent))
    return max(done + 1, done + int((60 * minutes - seconds) / max(each, 1e-9)))
