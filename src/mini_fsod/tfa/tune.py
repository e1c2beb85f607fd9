"""The stage `tune`: the last fine-tuning on the K shots (section 4.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from mini_fsod.data.subsets import is_of, with_base_boxes
from mini_fsod.detector.model import Detector
from mini_fsod.runs.detectors import load_detector, to_device
from mini_fsod.runs.run import Run
from mini_fsod.tfa.fine_tune import fine_tune


def tune(run: Run, folder: Path) -> dict[str, Any]:
    """Fine-tunes the predictors, or the whole R-CNN head, of the re-trained detector."""
    section, labels = run.config.tune, run.data.labels
    saved = load_detector(run, "online")
    detector = to_device(saved.detector, run.device)
    freeze_all_but(detector, section.part)
    data = run.data.shots
    if section.data == "novel":
        data = data.with_boxes(data.boxes.take(is_of(data, labels.novel)))
        data = data.select(np.unique(data.boxes.image))
    elif section.data == "known":
        data = with_base_boxes(data, run.data.labelled, labels)
    return fine_tune(run, "tune", folder, detector, data, section, saved.about.get("weights"))


def freeze_all_but(detector: Detector, part: Literal["predictors", "head"]) -> None:
    """Freezes the detector but for the predictors (classes, boxes, IoU) or the whole R-CNN head."""
    detector.requires_grad_(False)
    detector.predictor.requires_grad_(True)
    detector.box_head.requires_grad_(part == "head")
    branch = detector.iou_branch
    if branch is not None:
        (branch if part == "head" else branch.predict).requires_grad_(True)
