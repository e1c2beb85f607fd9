"""Boxes of a class that are all too small, or too large, in the same way (`mine.box_correction`).

Beyond the paper: one shot may teach a detector to find sofas by their seats. One correction per
class is fitted, since one crop's similarity is too noisy.
"""

from __future__ import annotations

import numpy as np

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.mining.crop_similarity import unit_vectors

WIDTHS, HEIGHTS = (1.0, 0.85, 1.2), (1.0, 0.8, 1.2, 1.4)
MIN_ERRORS = 3.0  # standard errors by which a correction must be better than none
MIN_GAIN = 0.01  # mean cosine that it must gain

# (T, 3): factors of width and height, and the share of the growth that goes to the top. Width grows
# to both sides alike, since pictures may be mirrored. The first one changes nothing.
CORRECTIONS = np.array(
    [
        (width, height, top)
        for width in WIDTHS
        for height in HEIGHTS
        for top in ((0.5,) if height == 1 else (0.5, 0.0, 1.0))
    ]
)


def corrected_boxes(xywh: Floats, correction: Floats, sizes: Ints) -> Floats:
    """Boxes (n, 4) changed by corrections (n, 3), clipped to images of sizes (n, 2), width and
    height. n may be 0.
    """
    grown = xywh[:, 2:] * correction[:, :2]
    share = np.stack([np.full(len(xywh), 0.5), correction[:, 2]], axis=1)
    corner = xywh[:, :2] - (grown - xywh[:, 2:]) * share
    left_top = np.clip(corner, 0, sizes)
    right_bottom = np.clip(corner + grown, 0, sizes)
    return np.concatenate([left_top, right_bottom - left_top], axis=1)


def best_correction(features: Floats, shot: Floats) -> int:
    """Index of the correction, of T, that makes n boxes of a class most like their class.

    features (n, T, D) of the corrected boxes, shot (D,) the prototype of the shots, all relative to
    a common mean. A correction must bring the boxes closer both to the shots and to the mean of the
    uncorrected boxes: in both cases the mean cosine has to gain MIN_GAIN, and MIN_ERRORS standard
    errors. Among those the one whose smaller gain is largest wins. 0, no correction, where none
    does, and where n < 2.
    """
    if len(features) < 2:
        return 0
    unit = unit_vectors(features)
    gains = []
    for reference in (shot, unit[:, 0].mean(axis=0)):
        similarity = unit @ unit_vectors(reference)  # (n, T)
        gain = similarity - similarity[:, :1]
        error = gain.std(axis=0, ddof=1) / np.sqrt(len(gain))
        mean = gain.mean(axis=0)
        gains.append(np.where((mean >= MIN_GAIN) & (mean > MIN_ERRORS * error), mean, 0.0))
    return int(np.minimum(*gains).argmax())
