"""How alike crops are: features of boxes cut out of their images (beyond the paper, which pools the
features of a whole image, Eq. 3; docs/decisions/0005).

NMS comes first, so features of all remaining boxes can be stored; `discriminator.whiten` and
`.refine` change how they are compared without another scan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.data.overlap import best_of_each
from mini_fsod.errors import UserError
from mini_fsod.mining.calibration import calibrated, cosine

AXES = 256  # principal axes of the base boxes' features that are kept
FEATURES = ("pairs", "base", "shots")
ROUNDS = 3  # of refining with classes that compete; further rounds change little
SHRINKAGE = 0.1  # towards a multiple of the identity: few boxes estimate a covariance badly


@dataclass(frozen=True, slots=True, eq=False)
class CropFeatures:
    """Features of d numbers, relative to the mean feature of base boxes.

    They are float32 numbers, stored as float64 for exact sums.
    """

    pairs: Floats  # (n, d) a row for each of `Pairs`; zeros where a box has no feature
    base: Floats  # (b, d) of annotated base boxes
    base_label: Ints  # (b,)
    shots: Floats  # (s, d) of the novel shots
    shots_label: Ints  # (s,) indices of novel classes
    correction: Floats  # (C, 3) the box correction of each class (`box_correction`)

    def whitened(self) -> CropFeatures:
        """The same, whitened by the covariance within base classes."""
        matrix = whitening(self.base, self.base_label)
        features = {name: getattr(self, name) @ matrix for name in FEATURES}
        return replace(self, **features)

    def similarity_to_shots(self, row: Ints, label: Ints, tau: float = 1.0) -> Floats:
        """(m,) Eq. 3, clamped at 0: pairs `row` (m,) against the prototypes (Eq. 2) of the shots.

        label (m,) are indices of novel classes; m may be 0.
        """
        prototypes = _class_means(self.shots, self.shots_label)
        return _similarity(self.pairs[row], label, prototypes, tau)

    def similarity_to_best(
        self, row: Ints, label: Ints, score: Floats, count: int, tau: float = 1.0
    ) -> Floats:
        """(m,) the same against the mean of the best `count` pairs of each class, by score (m,).

        One shot shows one pose and one background; the best candidates of its class show many, and
        wrong ones among them are wrong in different ways. Among equal scores earlier pairs win.
        """
        unit = unit_vectors(self.pairs[row])
        best = best_of_each(label, score, count)
        return _similarity(unit, label, _class_means(unit[best], label[best]), tau)

    def competing_similarity(
        self,
        row: Ints,
        label: Ints,
        score_detector: Floats,
        count: int,
        share: float,
        tau: float = 1.0,
    ) -> Floats:
        """(m,) the similarity to the own class, less `share` of that to the most similar other new
        class; 0 where another class is more similar: such a box is contested, and no class gets it.

        Prototypes are those of the shots at first, then ROUNDS times the mean of the best `count`
        pairs of each class, by the calibrated score that follows. So a class is not refined by
        boxes that are more like another one. m may be 0.
        """
        unit = unit_vectors(self.pairs[row])
        prototypes = _class_means(self.shots, self.shots_label)
        competing = _competing(unit, label, prototypes, share, tau)
        for _ in range(ROUNDS):
            best = best_of_each(label, calibrated(score_detector, competing), count)
            means = _class_means(unit[best], label[best])
            has_any = np.flatnonzero(means.any(axis=1))  # the other classes keep their shots
            prototypes[has_any] = means[has_any]
            competing = _competing(unit, label, prototypes, share, tau)
        return competing


def principal_axes(features: Tensor, count: int = AXES) -> tuple[Tensor, Tensor]:
    """The mean (D,) of features (b, D), and their principal axes (D, d), the largest first.

    d is at most `count`, and less where there are few boxes. b = 0 is a UserError.
    """
    if not len(features):
        raise UserError(
            "The discriminator found no box of a base class to compare with.",
            "Set discriminator.crop to null, or discriminator.weights to none.",
        )
    mean = features.mean(0)
    centred = (features - mean).double()
    variance, axes = torch.linalg.eigh(centred.T @ centred / len(centred))  # ascending
    significant = int((variance > 1e-9 * variance[-1].clamp(min=1e-30)).sum())
    d = max(1, min(count, significant, len(features) - 1))
    return mean, axes[:, -d:].flip(1).to(features.dtype)


def whitening(features: Floats, label: Ints) -> Floats:
    """(d, d) matrix that whitens features (b, d) by their covariance within classes, label (b,).

    Directions in which boxes of one class differ (pose, light, what stands beside) say little about
    another class. A class with a single box adds nothing; with b = 0 the result is finite too.
    """
    centred = features - _class_means(features, label)[label]
    covariance = centred.T @ centred / max(1, len(centred))
    spherical = np.eye(len(covariance)) * max(np.trace(covariance) / len(covariance), 1e-12)
    variance, axes = np.linalg.eigh((1 - SHRINKAGE) * covariance + SHRINKAGE * spherical)
    return np.asarray(axes / np.sqrt(variance))


def unit_vectors(features: Floats) -> Floats:
    """(..., D) features scaled to length 1; zero vectors stay zero."""
    length = np.sqrt((features**2).sum(-1, keepdims=True))
    return np.asarray(features / np.where(length > 0, length, 1.0))


def _class_means(features: Floats, label: Ints) -> Floats:
    """(C, d) the mean feature of each class; zeros for a class without any."""
    classes = int(label.max(initial=-1)) + 1
    total = np.zeros((classes, features.shape[1]))
    np.add.at(total, label, features)
    return total / np.maximum(np.bincount(label, minlength=classes), 1)[:, None]


def _competing(unit: Floats, label: Ints, prototypes: Floats, share: float, tau: float) -> Floats:
    similarity = unit @ unit_vectors(prototypes).T  # (m, C)
    mine = np.arange(len(unit)), label
    to_own_class = similarity[mine]
    similarity[mine] = -np.inf
    other = similarity.max(1, initial=-1.0)
    left = np.where(to_own_class < other, 0.0, to_own_class - share * np.maximum(other, 0.0))
    return np.asarray(tau * np.clip(left, 0.0, 1.0))


def _similarity(features: Floats, label: Ints, prototypes: Floats, tau: float) -> Floats:
    prototype = prototypes[label]
    squares = (features**2).sum(1), (prototype**2).sum(1)
    return np.maximum(cosine((features * prototype).sum(1), *squares, tau), 0.0)
