"""A delta for each class: it rises where the teacher finds more of a class than offline mining
expects, and comes back where it finds less. Beyond the paper, whose delta is one number.

It never falls below that number: a young teacher finds too little of everything, and what a lower
delta lets in then is wrong (docs/on-the-way.md, K = 5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import Floats, Ints

MOST = 0.99  # at 1 the log-odds have no end: a delta could not come back
# How far the log-odds of a delta move in an iteration where e times too many are found: from 0.7 to
# 0.86 in 500. Boxes of a class are rare, and their number in a few iterations is an accident.
PACE = 0.002


def expected_objects(scores: Floats, label: Ints, classes: int) -> Floats:
    """(classes,) how many objects of each class there are, by candidates' detector scores (n,).

    A detector reads its scores as probabilities: their sum is its guess. 0 where n is 0.
    """
    return np.bincount(label, weights=scores, minlength=classes).astype(np.float64)


def adapted(delta: float, found: float, expected: float, images: int, iterations: int) -> float:
    """The delta of a class after `iterations` in which `found` boxes an image were seen in so many
    `images`, where `expected` are right; at most MOST. One box more on both sides: none at all is
    no infinity.
    """
    one = 1 / images
    excess = math.log((found + one) / (expected + one))
    delta = min(max(delta, 1 - MOST), MOST)
    odds = math.log(delta / (1 - delta)) + PACE * iterations * min(max(excess, -1.0), 1.0)
    return min(1 / (1 + math.exp(-odds)), MOST)


@dataclass(slots=True)
class Deltas:
    """The delta of each novel class, which a recorded step reads from the device.

    Each look at the gauges moves them, and is logged with where they went, so that a run which was
    killed goes on with the same ones.
    """

    value: Tensor  # (C,) on the device
    expected: Mapping[str, float]  # objects an image of each class
    batch: int
    start: float

    def begin(self, last: Mapping[str, float]) -> None:
        """As they were after the last look, which is empty where there was none."""
        self._set([last.get(f"delta_{name}", self.start) for name in self.expected])

    def look(
        self, iterations: int, before: Mapping[str, float], means: Mapping[str, float]
    ) -> dict[str, float]:
        """Moved by what was found in so many iterations; `before` is the last look, as above."""
        told = {}
        for name, right in self.expected.items():
            delta = before.get(f"delta_{name}", self.start)
            found, images = means[f"found_{name}"], self.batch * iterations
            moved = adapted(delta, found, right, images, iterations)
            told[f"delta_{name}"] = max(moved, self.start)
        self._set(list(told.values()))
        return told

    def _set(self, deltas: Sequence[float]) -> None:
        self.value.copy_(torch.tensor(deltas))
