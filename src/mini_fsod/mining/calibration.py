"""Co-mining with a discriminator: prototypes, cosines, calibrated scores (paper, Eq. 2 to 4).

A scan keeps the dot products that cosines are made of, a few numbers per proposal instead of
thousands of features, so that another `mine.tau` needs no new scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.errors import UserError

Singles = npt.NDArray[np.float32]

PROTOTYPE_ALPHA = 0.5  # as published for DeFRCN


def prototypes(features: Tensor, label: Tensor, classes: Sequence[str]) -> Tensor:
    """Eq. 2: the mean feature (C, D) of the shots of each class.

    features (S, D), label (S,) indices into `classes`. A class without a shot is a UserError.
    """
    count = torch.bincount(label, minlength=len(classes)).to(features.dtype)
    missing = [name for name, n in zip(classes, count.tolist(), strict=True) if not n]
    if missing:
        raise UserError(
            f"There is no shot of {', '.join(missing)} for the discriminator to compare with.",
            "Choose other shots, or set discriminator.weights to none.",
        )
    total = features.new_zeros(len(classes), features.shape[1])
    return total.index_add_(0, label, features) / count[:, None]


def dot_products(features: Tensor, prototypes: Tensor) -> Tensor:
    """(n, C + 1) float64: f . p for each of C prototypes (C, D), then |f|^2, of features (n, D).

    Summed in float64, as features have thousands of numbers. n may be 0.
    """
    wide = features.double()
    return torch.cat([wide @ prototypes.double().T, (wide * wide).sum(1, keepdim=True)], 1)


def cosine(dot: Floats, square: Floats, prototype_square: Floats, tau: float = 1.0) -> Floats:
    """Eq. 3: tau f . p / (|f| |p|), (n,) pair by pair, in -tau to tau. Zero vectors have cosine 0.

    dot is f . p, square |f|^2, prototype_square |p|^2, each (n,); n may be 0.
    """
    length = np.sqrt(square) * np.sqrt(prototype_square)
    unit = np.divide(dot, length, out=np.zeros_like(dot), where=length > 0)
    return np.asarray(tau * np.clip(unit, -1.0, 1.0))


def calibrated(score: Floats, cosine: Floats) -> Floats:
    """Eq. 4: sqrt(cosine x score), (n,); negative cosines count as 0. n may be 0."""
    return np.asarray(np.sqrt(np.maximum(cosine, 0.0) * score))


def prototype_calibrated(score: Floats, cosine: Floats) -> Floats:
    """DeFRCN's calibration of a detector's score, 0.5 score + 0.5 cosine, (n,); n may be 0."""
    return np.asarray(PROTOTYPE_ALPHA * score + (1 - PROTOTYPE_ALPHA) * cosine)


@dataclass(frozen=True, slots=True, eq=False)
class DotProducts:
    """The dot products of m proposals with C prototypes, from which Eq. 3 follows."""

    prototype: Singles  # (m, C) f . p
    square: Singles  # (m,) |f|^2
    prototype_square: Floats  # (C,) |p|^2

    @classmethod
    def of(cls, proposals: Any, prototypes: Any) -> DotProducts:
        """What `dot_products` gave of the proposals (m, C + 1) and of the prototypes (C, C + 1)."""
        rows = np.asarray(proposals, dtype=np.float32)
        return cls(rows[:, :-1], rows[:, -1], np.asarray(prototypes, dtype=np.float64)[:, -1])

    def cosine(self, proposal: Ints, label: Ints, tau: float = 1.0) -> Floats:
        """Eq. 3, clamped at 0, for n pairs of a proposal (n,) and a class (n,); n may be 0."""
        dot = self.prototype[proposal, label].astype(np.float64)
        square = self.square[proposal].astype(np.float64)
        return np.maximum(cosine(dot, square, self.prototype_square[label], tau), 0.0)
