"""How long a stage trains and how fast it learns meanwhile: pure functions of the iteration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

# A budget in minutes becomes a number of iterations at this share of it, or after this many
# seconds, whichever is later: kernels are chosen and graphs recorded by then.
SETTLE_SHARE = 0.1
SETTLE_SECONDS = 20.0


def rate_at(
    step: int, total: int | None, rate: float, warm_up: int, decay: Sequence[float]
) -> float:
    """The learning rate of iteration `step` from 0: a line up to `rate`, then a tenth at each share
    of the run in `decay`. `total` None: the end is not known yet, and no decay is due.

    A short run warms up for a third of its iterations at most: it would end before it had learnt.
    """
    if total is not None:
        warm_up = min(warm_up, total // 3)
    warm = min(1.0, (step + 1) / warm_up) if warm_up else 1.0
    passed = 0 if total is None else sum(step >= round(share * total) for share in decay)
    return rate * warm * float(0.1**passed)


def may_settle(minutes: float, seconds: float) -> bool:
    """Whether enough of a budget has passed to tell how many iterations fit into it."""
    return seconds >= max(SETTLE_SHARE * 60 * minutes, min(SETTLE_SECONDS, 0.5 * 60 * minutes))


def fitting_iterations(minutes: float, looks: Sequence[tuple[float, int]]) -> int:
    """How many iterations fit into a budget, from looks so far: seconds, iterations done.

    The pace is the median between looks in the second half of the time: the first half pays for the
    start, and a look may still have waited for a graph to be recorded or a state to be written.
    """
    seconds, done = looks[-1]
    first = sum(look[0] < seconds / 2 for look in looks)
    recent = looks[min(first, len(looks) - 2) :]
    pace = median((t - before) / (n - m) for (before, m), (t, n) in pairwise(recent))
    return max(done + 1, done + int((60 * minutes - seconds) / max(pace, 1e-9)))
