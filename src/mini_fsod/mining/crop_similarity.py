"""Candidates cut out of their pictures and seen by themselves: what the discriminator says of them.

Beyond the paper, which reads a map of the whole picture at every proposal. After NMS so few boxes
are left that their features are kept whole. What is known of the base classes, and what the first
prototypes have found, then makes a better measure of likeness.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.errors import UserError
from mini_fsod.mining.calibration import cosine

AXES = 256  # principal axes of the base boxes' features that are kept
FEATURES = ("candidates", "base", "shots")
SHRUNK = 0.1  # share of a round scatter in the measured one: few boxes know few directions well


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Features of d numbers, relative to the mean feature of base boxes: float32 numbers, held as
    float64 to sum them.
    """

    candidates: Floats  # (n, d) a row for each pair of `Raw`; zeros where nothing could be seen
    base: Floats  # (b, d) of annotated base boxes
    base_label: Ints  # (b,)
    shots: Floats  # (s, d) of the novel shots
    shots_label: Ints  # (s,) places among the novel classes
    stretch: Floats  # (C, 3) what makes the boxes of a class most like its shots (`stretch.py`)

    def whitened(self) -> Seen:
        """The same in a space in which the base classes are round."""
        to = whitening(self.base, self.base_label)
        seen = (self.candidates @ to, self.base @ to, self.shots @ to)
        return replace(self, candidates=seen[0], base=seen[1], shots=seen[2])

    def likeness(self, row: Ints, label: Ints, tau: float = 1.0) -> Floats:
        """(m,) Eq. 3, clamped at 0: candidates (m,) against the prototypes (Eq. 2) of the shots.

        label (m,) are places among the novel classes.
        """
        return _likeness(self.candidates[row], label, _means(self.shots, self.shots_label), tau)

    def refined(self, row: Ints, label: Ints, score: Floats, most: int, tau: float = 1.0) -> Floats:
        """The same against prototypes of the best `most` candidates of each class.

        One shot is one pose and one background. The best candidates of its class are many, and the
        wrong ones among them are wrong in different ways. Of equal scores the earlier are taken.
        """
        unit = unit_vectors(self.candidates[row])
        best = np.concatenate(
            [
                own[np.argsort(-score[own], kind="stable")[:most]]
                for own in (np.flatnonzero(label == c) for c in np.unique(label))
            ]
            or [np.zeros(0, dtype=np.int64)]
        )
        return _likeness(unit, label, _means(unit[best], label[best]), tau)


def principal_axes(features: Tensor, most: int = AXES) -> tuple[Tensor, Tensor]:
    """The mean (D,) of features (b, D), and their principal axes (D, d), the largest first.

    d is at most `most`, and less where there are few boxes. No box at all is an error.
    """
    if not len(features):
        raise UserError(
            "The discriminator saw no box of a base class, so that nothing can be compared.",
            "Leave mine.discriminator_crop out, or mine without a discriminator.",
        )
    mean = features.mean(0)
    away = (features - mean).double()
    variance, axes = torch.linalg.eigh(away.T @ away / len(away))  # ascending
    known = int((variance > 1e-9 * variance[-1].clamp(min=1e-30)).sum())
    d = max(1, min(most, known, len(features) - 1))
    return mean, axes[:, -d:].flip(1).to(features.dtype)


def whitening(features: Floats, label: Ints) -> Floats:
    """(d, d) by which features are multiplied so that classes scatter alike in all directions.

    features (b, d), label (b,). Directions in which the boxes of one class differ (pose, light,
    what stands beside) tell nothing about another class. A class of one box says nothing either.
    """
    away = features - _means(features, label)[label]
    scatter = away.T @ away / max(1, len(away))
    round_ = np.eye(len(scatter)) * max(np.trace(scatter) / len(scatter), 1e-12)
    variance, axes = np.linalg.eigh((1 - SHRUNK) * scatter + SHRUNK * round_)
    found: Floats = axes / np.sqrt(variance)
    return found


def _means(features: Floats, label: Ints) -> Floats:
    """(C, d) the mean feature of each class; zeros for a class without any."""
    classes = int(label.max(initial=-1)) + 1
    total = np.zeros((classes, features.shape[1]))
    np.add.at(total, label, features)
    return total / np.maximum(np.bincount(label, minlength=classes), 1)[:, None]


def _likeness(features: Floats, label: Ints, prototypes: Floats, tau: float) -> Floats:
    own = prototypes[label]
    squares = (features**2).sum(1), (own**2).sum(1)
    return np.maximum(cosine((features * own).sum(1), *squares, tau), 0.0)


def unit_vectors(features: Floats) -> Floats:
    """(..., D) vectors of length 1; those of no length stay so."""
    length = np.sqrt((features**2).sum(-1, keepdims=True))
    found: Floats = features / np.where(length > 0, length, 1.0)
    return found
