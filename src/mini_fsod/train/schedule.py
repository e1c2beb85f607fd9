"""The learning rate, and how many iterations fit into a time limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

# A time limit is turned into a number of iterations after this share of it, or after this many
# seconds if that is later: by then kernels are chosen and graphs are recorded.
ESTIMATE_SHARE = 0.1
ESTIMATE_SECONDS = 20.0
LEAST_LOOKS = 4  # at the clock, before a fit is replaced

Look = tuple[float, int]  # seconds of training, and iterations done by then
Decay = Sequence[float] | None  # shares of the run after each of which the rate is a tenth; None:
# it falls along half a cosine, to zero


def rate_at(step: int, total: int | None, rate: float, warm_up: int, decay: Decay) -> float:
    """The learning rate of iteration `step`, from 0: linear warm-up, then the fall. While `total`
    is None, the end is not known and the rate does not fall.

    The warm-up takes at most a third of the run, or a short run would end before it learns.
    """
    if total is None:
        left = 1.0
    elif decay is None:
        left = _cosine(step / total)
    else:
        left = float(0.1 ** sum(step >= round(share * total) for share in decay))
    return _rate(step, rate, _shortened(warm_up, total), left)


@dataclass(slots=True)
class TimeLimit:
    """The schedule of a training that ends after so many seconds.

    The rate falls as time passes, not as iterations do: with every look at the clock the iterations
    that are left are counted anew. So the rate never rises after the warm-up, all its falls happen,
    and a machine that becomes faster or slower ends in time.
    """

    seconds: float
    total: int | None = None  # iterations that fit; None: too early to say
    step: int = 0  # at the last look
    share: float = 0.0  # of the schedule that was done by then
    warm_up: int | None = None  # iterations of it, since the first fit

    def look(self, looks: Sequence[Look], warm_up: int) -> None:
        """Fit the iterations that are left into the time that is left; the latest look is last."""
        spent, step = looks[-1]
        if self.total is None:
            early = not can_estimate(self.seconds / 60, spent)
        else:  # a resumed training starts slowly
            early = len(looks) < LEAST_LOOKS and step < self.total and spent < self.seconds
        if early:
            return
        share = max(self.share_at(step), min(spent / self.seconds, 1.0))
        left = max(self.seconds - spent, 0.0)
        self.total = step + int(left / seconds_each(looks))
        self.step, self.share = step, share
        if self.warm_up is None:
            self.warm_up = _shortened(warm_up, self.total)

    def share_at(self, step: float) -> float:
        """The share of the schedule that is done before an iteration."""
        if self.total is None:
            return 0.0
        left = max(self.total - self.step, 1)
        return min(self.share + (1 - self.share) * (step - self.step) / left, 1.0)

    def rate_at(self, step: int, rate: float, warm_up: int, decay: Decay) -> float:
        """The learning rate of iteration `step`, as the function of this name has it."""
        done = self.share_at(step + 0.5)
        left = _cosine(done) if decay is None else float(0.1 ** sum(done > s for s in decay))
        return _rate(step, rate, warm_up if self.warm_up is None else self.warm_up, left)


def _shortened(warm_up: int, total: int | None) -> int:
    return warm_up if total is None else min(warm_up, total // 3)


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _rate(step: int, rate: float, warm_up: int, left: float) -> float:
    warm = min(1.0, (step + 1) / warm_up) if warm_up else 1.0
    return rate * warm * left


def can_estimate(minutes: float, seconds: float) -> bool:
    """Whether enough of a time limit has passed to estimate how many iterations fit into it."""
    limit = 60 * minutes
    return seconds >= max(ESTIMATE_SHARE * limit, min(ESTIMATE_SECONDS, 0.5 * limit))


def seconds_each(looks: Sequence[Look]) -> float:
    """Seconds of an iteration, from at least two looks.

    The median in the second half of the time: the first half includes the start, and an interval
    may include the recording of a graph or a save.
    """
    half = (looks[0][0] + looks[-1][0]) / 2
    first = sum(at < half for at, _ in looks)
    recent = [*looks][min(first, len(looks) - 2) :]
    each = median((t - before) / (n - m) for (before, m), (t, n) in pairwise(recent))
    return max(each, 1e-9)
