"""What to ask next: the order in which a review offers mined boxes and candidates.

Offered is what most probably changes the pool, and first where a class has few right boxes. A mined
box changes it if it is wrong, a candidate that was not mined if it is right. How probable that is
follows from the score, compared with the threshold of the class, and from the answers so far.
"""

from __future__ import annotations

import numpy as np

from mini_fsod.data.dataset import Bools, Floats

SENTENCE = (
    "Each page shows one class, usually the one with the fewest correct boxes so far. First come "
    "the boxes where your answer is most likely to change the mined boxes: mined ones that are "
    "probably wrong, and others that are probably right, judging by score and your answers so far."
)
STEPS = 10  # of Newton's method; 5 suffice
SMALLEST_STEP = 1e-6  # a step that changes nothing
LEAST_WIDTH = 1e-3  # of the scores of a class, where all are equal


def threshold_and_width(score: Floats, mined: Bools) -> tuple[float, float]:
    """Where the scores (n,) of a class change from mined to not mined, and their deviation.

    In the middle between the lowest mined score and the highest one below it that was not mined.
    Without a mined box, a deviation above the best candidate; 0 and 1 where n is 0.
    """
    if not len(score):
        return 0.0, 1.0
    width = max(float(score.std()), LEAST_WIDTH)
    if not mined.any():
        return float(score.max()) + width, width
    lowest = float(score[mined].min())
    below = score[~mined & (score <= lowest)]
    return (lowest + float(below.max()) if len(below) else 2 * lowest - width) / 2, width


def fit_answers(distance: Floats, right: Bools) -> tuple[float, float]:
    """Slope a and shift b of sigmoid(a * distance + b) that fit the answers (n,) so far.

    distance (n,) of the scores from the threshold, in deviations. The most probable a and b under
    normal priors of mean 1 and 0, by Newton's method: few answers change little, none nothing. The
    slope is 0 at least, where scores say nothing.
    """
    columns = np.stack([distance, np.ones_like(distance)], axis=1)
    prior = np.array([1.0, 0.0])

    def loss(found: Floats) -> float:
        z = columns @ found
        return float((np.logaddexp(0, z) - right * z).sum() + ((found - prior) ** 2).sum() / 2)

    found = prior
    for _ in range(STEPS):
        p = sigmoid(columns @ found)
        gradient = columns.T @ (p - right) + found - prior
        curvature = (columns * (p * (1 - p))[:, None]).T @ columns + np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        while loss(found - step) > loss(found) and np.abs(step).max() > SMALLEST_STEP:
            step = step / 2
        found = found - step
    return max(float(found[0]), 0.0), float(found[1])


def sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def probability_right(score: Floats, mined: Bools, decided: Bools, right: Bools) -> Floats:
    """(n,) the probability that each box of a class is right; n may be 0.

    0.5 at the threshold before any answer. Of `decided` boxes the answer `right` counts.
    """
    middle, width = threshold_and_width(score, mined)
    distance = (score - middle) / width
    slope, shift = fit_answers(distance[decided], right[decided])
    p = sigmoid(slope * distance + shift)
    return np.where(decided, right.astype(np.float64), p)


def benefit(score: Floats, mined: Bools, decided: Bools, right: Bools) -> Floats:
    """(n,) what an answer about each box of one class is worth; 0 for decided ones.

    The probability that the answer changes the pool, over one more than the boxes of the class that
    the pool seems to have right: the tenth bus teaches less than the second.
    """
    p = probability_right(score, mined, decided, right)
    changes = np.where(mined, 1 - p, p)
    right_boxes = p[np.where(decided, right, mined)].sum()
    return np.where(decided, 0.0, changes / (1 + right_boxes))
