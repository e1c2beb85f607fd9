"""What to ask next: the order in which a review offers mined boxes and candidates.

Offered is what most probably changes the pool, and first where a class has few right boxes. A mined
box changes it if it is wrong, a candidate that was not mined if it is right. How probable that is
follows from the score, compared with the threshold of the class, and from the answers so far.
"""

from __future__ import annotations

import numpy as np

from mini_fsod.data.dataset import Bools, Floats

SENTENCE = (
    "Order: pages of one class. First comes the class with the fewest boxes that seem right, and "
    "in it the boxes whose answer is most likely to change what is trained on: those next to the "
    "threshold, mined or not, as your answers so far place it."
)
PRIOR = 1.0  # deviation of a class's shift before any answer, in deviations of its scores
STEPS = 20  # of Newton's method; 5 suffice
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


def shift_by_answers(distance: Floats, right: Bools) -> float:
    """The shift b of sigmoid(distance + b) that fits the answers (n,) so far; 0 where n is 0.

    distance (n,) of the scores from the threshold, in deviations. The most probable b under a
    normal prior of mean 0: few answers shift little.
    """
    b = 0.0
    for _ in range(STEPS if len(distance) else 0):
        p = sigmoid(distance + b)
        gradient = float((right - p).sum()) - b / PRIOR**2
        b += gradient / (float((p * (1 - p)).sum()) + 1 / PRIOR**2)
    return b


def sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def probability_right(score: Floats, mined: Bools, decided: Bools, right: Bools) -> Floats:
    """(n,) the probability that each box of a class is right; n may be 0.

    0.5 at the threshold before any answer. Of `decided` boxes the answer `right` counts.
    """
    middle, width = threshold_and_width(score, mined)
    distance = (score - middle) / width
    p = sigmoid(distance + shift_by_answers(distance[decided], right[decided]))
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
