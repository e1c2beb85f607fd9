"""Co-mining with a discriminator: prototypes, cosines, calibrated scores (paper, section 3.2).

A cosine needs three products of its two vectors, and so does that of centred ones. They are a few
numbers a proposal instead of thousands, and all that is kept: tau and centring can be changed later
without looking at a picture again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import Floats
from mini_fsod.errors import UserError


def prototypes(features: Tensor, label: Tensor, classes: Sequence[str]) -> Tensor:
    """Eq. 2: the mean feature (C, D) of the shots of each class.

    features (S, D), label (S,) places in `classes`. A class without a shot is an error.
    """
    count = torch.bincount(label, minlength=len(classes)).to(features.dtype)
    missing = [name for name, n in zip(classes, count.tolist(), strict=True) if not n]
    if missing:
        raise UserError(
            f"There is no shot of {', '.join(missing)}, so the discriminator knows no prototype.",
            "Choose other shots, or mine with mine.discriminator: none.",
        )
    total = features.new_zeros(len(classes), features.shape[1]).index_add_(0, label, features)
    return total / count[:, None]


def products(features: Tensor, prototypes: Tensor, mean: Tensor) -> Tensor:
    """(M, C + 2) double: f . p of each prototype (C, D), f . mean (D,), and |f|^2 of each f (M, D).

    In doubles, since centring takes differences of nearly equal products. Zero features are fine.
    """
    wide = features.double()
    table = torch.cat([prototypes, mean[None]]).double()
    return torch.cat([wide @ table.T, (wide * wide).sum(1, keepdim=True)], 1)


def centred(
    dot: Floats,
    square: Floats,
    prototype_square: Floats,
    dot_mean: Floats,
    prototype_mean: Floats,
    mean_square: float,
) -> tuple[Floats, Floats, Floats]:
    """f . p, |f|^2 and |p|^2 once the mean has been taken from f and p; all (n,), pair by pair.

    dot_mean is f . mean, prototype_mean p . mean, mean_square |mean|^2. Features of everyday
    objects share most of their direction; what is left without it tells classes apart.
    """
    return (
        dot - dot_mean - prototype_mean + mean_square,
        np.maximum(square - 2 * dot_mean + mean_square, 0.0),
        np.maximum(prototype_square - 2 * prototype_mean + mean_square, 0.0),
    )


def cosine(dot: Floats, square: Floats, prototype_square: Floats, tau: float = 1.0) -> Floats:
    """Eq. 3: tau f . p / (|f| |p|), (n,) pair by pair, in -tau to tau. Zero vectors have cosine 0.

    dot is f . p, square |f|^2, prototype_square |p|^2.
    """
    length = np.sqrt(square) * np.sqrt(prototype_square)
    unit = np.divide(dot, length, out=np.zeros_like(dot), where=length > 0)
    return np.asarray(tau * np.clip(unit, -1.0, 1.0))


def calibrated(score: Floats, cosine: Floats) -> Floats:
    """Eq. 4: sqrt(cosine x score), (n,); a cosine below 0 counts as 0."""
    return np.asarray(np.sqrt(np.maximum(cosine, 0.0) * score))
