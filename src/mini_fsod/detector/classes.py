"""A detector that reports fewer classes: the others become background, or are forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from mini_fsod.detector.model import Detector


def with_classes(detector: Detector, kept: Sequence[int], forget: bool = False) -> Detector:
    """A detector of the classes `kept`, in this order, on the same device.

    The rows of the others stay in the classifier and count as background (`negatives` of the
    settings), so that scores and boxes of the kept classes do not change. With `forget` those rows
    are left out too.
    """
    settings, old = detector.settings, detector.predictor
    others = [c for c in range(settings.num_classes) if c not in kept]
    negatives = 0 if forget else settings.negatives + len(others)
    smaller = Detector(replace(settings, num_classes=len(kept), negatives=negatives))
    smaller.to(detector.mean.device)
    state = detector.state_dict()
    first = 1 + settings.negatives  # row of the first class
    before = [0] if forget else [*range(first), *(first + c for c in others)]
    rows = torch.tensor([*before, *(first + c for c in kept)])
    sides = torch.tensor([4 * c + side for c in kept for side in range(4)])
    for name, _ in old.classifier.named_parameters():
        state[f"predictor.classifier.{name}"] = state[f"predictor.classifier.{name}"][rows]
    for name, _ in old.boxes.named_parameters():
        state[f"predictor.boxes.{name}"] = state[f"predictor.boxes.{name}"][sides]
    smaller.load_state_dict(state)
    return smaller
