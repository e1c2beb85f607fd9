"""Boxes of a class that all end too early, or too late: what a person has drawn tells (beyond the
paper).

One shot may teach a detector to find sofas by their seats. Each box then is wrong in its own way,
and all of them in the same: stretched alike, they look more like a sofa. A single box is no
witness, since its likeness changes by accident as much as by its place; a hundred are. Nor is the
shot alone, whose shape is one of many, nor are the boxes alone, which are all wrong.
"""

from __future__ import annotations

import numpy as np

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.mining.crop_similarity import unit_vectors

WIDTHS, HEIGHTS = (1.0, 0.85, 1.2), (1.0, 0.8, 1.2, 1.4)
SURE = 3.0  # standard errors by which a stretch must be better than none,
WORTH = 0.01  # and by how much

# (T, 3) factors of width and height, and the share of the growth that goes to the top. Width grows
# evenly: pictures are as likely mirrored as not. The first one changes nothing.
STRETCHES = np.array(
    [
        (width, height, top)
        for width in WIDTHS
        for height in HEIGHTS
        for top in ((0.5,) if height == 1 else (0.5, 0.0, 1.0))
    ]
)


def stretched(xywh: Floats, stretch: Floats, sizes: Ints) -> Floats:
    """Boxes (n, 4) by stretches (n, 3), cut at the edges of pictures of sizes (n, 2), width and
    height. n may be 0.
    """
    grown = xywh[:, 2:] * stretch[:, :2]
    share = np.stack([np.full(len(xywh), 0.5), stretch[:, 2]], axis=1)
    corner = xywh[:, :2] - (grown - xywh[:, 2:]) * share
    left_top = np.clip(corner, 0, sizes)
    right_bottom = np.clip(corner + grown, 0, sizes)
    return np.concatenate([left_top, right_bottom - left_top], axis=1)


def best_stretch(features: Floats, shot: Floats) -> int:
    """Which of T stretches makes n boxes of a class most like the class: features (n, T, D) of the
    boxes stretched, shot (D,) the prototype of the shots, all relative to a common mean.

    Two witnesses must agree: the shots, and the mean of the boxes as they are. For both the mean
    cosine has to gain WORTH, and SURE standard errors of the boxes' gains; the smaller gain counts.
    0, as they are, where nothing does, and where there are fewer than two boxes.
    """
    if len(features) < 2:
        return 0
    unit = unit_vectors(features)
    gains = []
    for witness in (shot, unit[:, 0].mean(axis=0)):
        likeness = unit @ unit_vectors(witness)  # (n, T)
        gain = likeness - likeness[:, :1]
        error = gain.std(axis=0, ddof=1) / np.sqrt(len(gain))
        mean = gain.mean(axis=0)
        gains.append(np.where((mean >= WORTH) & (mean > SURE * error), mean, 0.0))
    return int(np.minimum(*gains).argmax())
