"""From candidates to the pool H: a fixed threshold, or one for each class (paper, Eq. 1 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Bools, Floats
from mini_fsod.mining.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Threshold:
    """What decided about one class. None where there is nothing to take a mean of, or no such rule:
    alpha and N belong to the adaptive threshold.
    """

    mean: float | None
    deviation: float | None
    alpha: float | None
    most: int | None
    delta: float | None
    candidates: int
    kept: int

    def to_json(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "deviation": self.deviation,
            "alpha": self.alpha,
            "N": self.most,
            "delta": self.delta,
            "candidates": self.candidates,
            "kept": self.kept,
        }


def statistics(scores: Floats) -> tuple[float | None, float | None]:
    """Mean and population deviation of scores (n,); None, None where there are none.

    Taken from the lowest on: of equal scores the mean is that very score, not the next float, which
    none of them would reach.
    """
    if not len(scores):
        return None, None
    above = scores - scores.min()
    return float(scores.min() + above.mean()), float(above.std())


def adaptive(scores: Floats, alpha: float) -> float | None:
    """Eq. 5: delta = mean + alpha x deviation of a class's scores (n,); None where n is 0."""
    mean, deviation = statistics(scores)
    return None if mean is None or deviation is None else mean + alpha * deviation


def chosen(scores: Floats, delta: float | None, most: int | None = None) -> Bools:
    """(n,) which scores (n,) are at least delta, the best `most` of them at most (Eq. 1, 5).

    Of equal scores at the last place the earlier ones are taken.
    """
    mask = np.zeros(len(scores), dtype=np.bool_)
    if delta is not None:
        best = np.argsort(-scores, kind="stable")
        mask[best[scores[best] >= delta][:most]] = True
    return mask


def as_many(scores: Floats, detector_scores: Floats, expected: float) -> int:
    """How many of the best by scores (n,) have a mean detector score (n,) of at least `expected`.

    Beyond the paper, whose N is the same for all classes. A detector reads its scores as
    probabilities, so their mean is its guess of how many are right. 0 where n is 0, or where not
    even the best one is so sure.
    """
    best = np.argsort(-scores, kind="stable")
    mean = np.cumsum(detector_scores[best]) / np.arange(1, len(best) + 1)
    enough = np.flatnonzero(mean >= expected)
    return int(enough[-1]) + 1 if len(enough) else 0


def pool(
    found: Candidates,
    novel: Sequence[str],
    threshold: float | None = None,
    alpha: float = 1.5,
    most: int | None = 300,
    expected: float | None = None,
    eligible: Bools | None = None,
) -> tuple[Bools, dict[str, Threshold]]:
    """(n,) which candidates are in the pool H, and what decided it for each class.

    A fixed `threshold` is Eq. 1, and knows neither alpha nor `most` (the paper's N) nor `expected`,
    which raises N and passes over delta where a class has more good candidates. All candidates
    count in the statistics; those that are `eligible` (n,) may be chosen, None: all.
    """
    kept = np.zeros(len(found), dtype=np.bool_)
    table = {}
    for place, name in enumerate(novel):
        every = found.label == place
        own = np.flatnonzero(every if eligible is None else every & eligible)
        scores, all_scores = found.score[own], found.score[every]
        fixed = threshold is not None
        delta = threshold if fixed else adaptive(all_scores, alpha)
        limit = None if fixed else most
        mask = chosen(scores, delta, limit)
        if expected is not None and not fixed:
            good = as_many(scores, found.score_detector[own], expected)
            mask |= chosen(scores, -np.inf, good)
            limit = None if limit is None else max(limit, good)
        kept[own[mask]] = True
        table[name] = Threshold(
            *statistics(all_scores),
            alpha=None if fixed else alpha,
            most=limit,
            delta=delta,
            candidates=len(all_scores),
            kept=int(mask.sum()),
        )
    return kept, table
