"""From a base detector to one that has rows for the novel classes too (the paper's Eq. 1: M^s)."""

from __future__ import annotations

from dataclasses import replace

import torch

from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import Classifier
from mini_fsod.labels import LabelMap

NEW_ROWS_STD = 0.01


def transfer(base: Detector, labels: LabelMap, seed: int, mean_boxes: bool = False) -> Detector:
    """TFA's detector of all classes: a cosine classifier of scale 20 without bias, and only
    classifier and box predictor learn.
    """
    detector = widened(base, labels, seed, "cosine", mean_boxes=mean_boxes)
    detector.requires_grad_(False)
    detector.predictor.requires_grad_(True)
    return detector


def widened(
    base: Detector,
    labels: LabelMap,
    seed: int,
    classifier: Classifier,
    iou_branch: bool = False,
    mean_boxes: bool = False,
) -> Detector:
    """A detector of all classes, on the base detector's device: base and background rows copied,
    novel rows drawn N(0, 0.01), their biases 0.

    With `mean_boxes` the box rows of a novel class are the mean of the base classes': where an
    object ends is much the same for all, and one shot does not teach it.

    The base detector knows `labels.base` in this order. Its classifier may be linear or cosine; a
    bias that the new one has no place for is dropped.
    """
    known = base.settings.num_classes
    if known != len(labels.base):
        raise ValueError(f"a detector of {known} classes for {len(labels.base)} base classes")
    settings = replace(
        base.settings,
        num_classes=len(labels.classes),
        classifier=classifier,
        iou_branch=iou_branch,
    )
    detector = Detector(settings).to(base.mean.device)
    detector.to(memory_format=torch.channels_last)
    state = {k: v for k, v in base.state_dict().items() if not k.startswith("predictor.")}
    detector.load_state_dict(state, strict=False)

    new, old = detector.predictor, base.predictor
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in (new.classifier, new.boxes):
            weight = layer.get_parameter("weight")
            weight.copy_(torch.empty(weight.shape).normal_(std=NEW_ROWS_STD, generator=rng))
        new.boxes.bias.zero_()
        new.classifier.get_parameter("weight")[: 1 + known] = old.classifier.get_parameter("weight")
        if classifier == "linear":
            bias = new.classifier.get_parameter("bias").zero_()
            bias[: 1 + known] = dict(old.classifier.named_parameters()).get("bias", 0.0)
        new.boxes.weight[: 4 * known] = old.boxes.weight
        new.boxes.bias[: 4 * known] = old.boxes.bias
        if mean_boxes:
            for rows, theirs in (
                (new.boxes.weight, old.boxes.weight),
                (new.boxes.bias, old.boxes.bias),
            ):
                mean = theirs.view(known, 4, *theirs.shape[1:]).mean(0)
                rows[4 * known :] = mean.repeat(len(labels.novel), *[1] * (mean.dim() - 1))
    return detector
