"""The stage `transfer`: TFA's few-shot detector, which mines first (the paper's Eq. 1: M^s)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mini_fsod.data.subsets import with_base_boxes
from mini_fsod.detector.model import Detector
from mini_fsod.labels import LabelMap
from mini_fsod.runs.detectors import load_detector, to_device
from mini_fsod.runs.run import Run
from mini_fsod.tfa.fine_tune import fine_tune

NEW_ROWS_STD = 0.01


def transfer(run: Run, folder: Path) -> dict[str, Any]:
    """Adds rows for the novel classes to the base detector, then trains both predictors on the
    balanced K-shot set.
    """
    section, labels = run.config.transfer, run.data.labels
    saved = load_detector(run, "base")
    base = to_device(saved.detector, run.device)
    detector = few_shot_detector(base, labels, run.config.seed, section.boxes != "new")
    data = run.data.shots
    if section.data == "known":
        data = with_base_boxes(data, run.data.labelled, labels)
    weights = saved.about.get("weights")  # of the frozen layers
    box_classes = len(labels.base) if section.boxes == "fixed" else None
    return fine_tune(run, "transfer", folder, detector, data, section, weights, box_classes)


def few_shot_detector(
    base: Detector, labels: LabelMap, seed: int, mean_boxes: bool = False
) -> Detector:
    """A detector of all classes on the base detector's device; only its predictors are trained.

    The classifier is TFA's: cosine, scale 20, no bias. Base and background rows are copied from the
    base detector, which knows `labels.base` in this order; novel rows are drawn from N(0, 0.01).
    With `mean_boxes`, the box regression of a novel class starts as the mean of the base classes':
    where an object ends is much the same for all classes, and one shot does not teach it.
    """
    known = base.settings.num_classes
    if known != len(labels.base):
        raise ValueError(f"a detector of {known} classes for {len(labels.base)} base classes")
    settings = replace(
        base.settings,
        num_classes=len(labels.classes),
        classifier="cosine",
        negatives=0,  # a class that base.drop names is not background any more
        iou_branch=False,
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
        of_base = old.classifier.get_parameter("weight")
        new.classifier.get_parameter("weight")[: 1 + known] = torch.cat(
            [of_base[:1], of_base[-known:]]
        )
        for rows, base_rows in (
            (new.boxes.weight, old.boxes.weight),
            (new.boxes.bias, old.boxes.bias),
        ):
            rows[: 4 * known] = base_rows
            if mean_boxes:
                mean = base_rows.view(known, 4, *base_rows.shape[1:]).mean(0)
                rows[4 * known :] = mean.repeat(len(labels.novel), *[1] * (mean.dim() - 1))
    detector.requires_grad_(False)
    detector.predictor.requires_grad_(True)
    return detector
