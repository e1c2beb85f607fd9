"""From candidates to the pool H: one fixed threshold (Eq. 1), or one per class (Eq. 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Bools, Floats
from mini_fsod.mining.candidates import Candidates

FEW = 10  # boxes of a class, found shots included, that hardly teach it


@dataclass(frozen=True, slots=True)
class Threshold:
    """How the boxes of one class were chosen. None where there are no scores, or where a fixed
    threshold knows no such number.
    """

    mean: float | None
    deviation: float | None
    alpha: float | None
    per_class: int | None  # N
    delta: float | None
    candidates: int
    kept: int

    def to_json(self) -> dict[str, Any]:
        return {"N" if key == "per_class" else key: v for key, v in asdict(self).items()}


def statistics(scores: Floats) -> tuple[float | None, float | None]:
    """Mean and population standard deviation of scores (n,); None, None where n is 0.

    Summed from the lowest score on, so that the mean of equal scores is exactly that score: rounded
    up by one bit, none of them would reach it.
    """
    if not len(scores):
        return None, None
    above = scores - scores.min()
    return float(scores.min() + above.mean()), float(above.std())


def adaptive_threshold(scores: Floats, alpha: float) -> float | None:
    """Eq. 5: delta = mean + alpha x deviation of a class's scores (n,); None where n is 0."""
    mean, deviation = statistics(scores)
    return None if mean is None or deviation is None else mean + alpha * deviation


def at_least(scores: Floats, delta: float | None, limit: int | None = None) -> Bools:
    """(n,) which scores (n,) are at least delta, and among the best `limit` of those (Eq. 1, 5).

    Among equal scores at the last place the earlier ones are taken. None are where delta is None.
    """
    mask = np.zeros(len(scores), dtype=np.bool_)
    if delta is not None:
        best = np.argsort(-scores, kind="stable")
        mask[best[scores[best] >= delta][:limit]] = True
    return mask


def count_by_mean_score(scores: Floats, detector_scores: Floats, mean_score: float) -> int:
    """The most best-scored boxes whose mean detector score (n,) is at least `mean_score`.

    Beyond the paper, whose N is the same for all classes. Detector scores are probabilities, so
    their mean estimates the precision. 0 where n is 0, or where even the best box scores less.
    """
    best = np.argsort(-scores, kind="stable")
    mean = np.cumsum(detector_scores[best]) / np.arange(1, len(best) + 1)
    enough = np.flatnonzero(mean >= mean_score)
    return int(enough[-1]) + 1 if len(enough) else 0


def choose_pool(
    found: Candidates,
    novel: Sequence[str],
    threshold: float | None = None,
    alpha: float = 1.5,
    per_class: int | None = 300,
    mean_score: float | None = None,
    eligible: Bools | None = None,
) -> tuple[Bools, dict[str, Threshold]]:
    """(n,) which candidates are in the pool H, and the threshold of each class.

    A fixed `threshold` is Eq. 1 and ignores the other numbers; None is Eq. 5 with at most
    `per_class` (the paper's N) of a class. `mean_score` keeps more than N, and below delta, where
    `count_by_mean_score` allows it. All candidates count in the statistics; only those `eligible`
    (n,) can be chosen, by default all. n may be 0.
    """
    kept = np.zeros(len(found), dtype=np.bool_)
    table = {}
    for index, name in enumerate(novel):
        of_class = found.label == index
        rows = np.flatnonzero(of_class if eligible is None else of_class & eligible)
        scores, all_scores = found.score[rows], found.score[of_class]
        fixed = threshold is not None
        delta = threshold if fixed else adaptive_threshold(all_scores, alpha)
        limit = None if fixed else per_class
        mask = at_least(scores, delta, limit)
        if mean_score is not None and not fixed:
            count = count_by_mean_score(scores, found.score_detector[rows], mean_score)
            mask |= at_least(scores, -np.inf, count)
            limit = None if limit is None else max(limit, count)
        kept[rows[mask]] = True
        table[name] = Threshold(
            *statistics(all_scores),
            alpha=None if fixed else alpha,
            per_class=limit,
            delta=delta,
            candidates=len(all_scores),
            kept=int(mask.sum()),
        )
    return kept, table


def few_mined_note(table: Mapping[str, Threshold]) -> str:
    """A note on classes with few mined boxes; empty if there are none, or nothing at all was mined.

    Of n different scores none is more than sqrt(n - 1) deviations above their mean: with the
    paper's alpha of 1.5, Eq. 5 keeps none of two or three.
    """
    few = [name for name, row in table.items() if row.kept < FEW]
    if not few or not any(row.kept for row in table.values()):
        return ""  # `runs/hopeless.py` says what to do where nothing was mined
    note = (
        f"few boxes were mined of {', '.join(few)}: larger or more typical shots find more, a "
        "lower mine.alpha or mine.threshold keeps more; see the contact sheets"
    )
    beyond = [
        name
        for name in few
        if (row := table[name]).alpha is not None
        and not row.kept
        and 1 < row.candidates < row.alpha**2 + 1
    ]
    if beyond:
        note += (
            f". Of {', '.join(beyond)} there are so few candidates that none can be "
            "mine.alpha deviations above their mean"
        )
    return note
