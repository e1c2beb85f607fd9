"""The stage `tune`: the last fine-tuning on the K shots (section 4.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from mini_fsod import console
from mini_fsod.data.subsets import arranged, is_of, with_base_boxes
from mini_fsod.detector.model import Detector
from mini_fsod.files import CHECKPOINT_FILE, write_bytes
from mini_fsod.runs.detectors import load_detector, to_device
from mini_fsod.runs.run import Run
from mini_fsod.tfa.fine_tune import fine_tune
from mini_fsod.train.distributed import wait_for_all


def tune(run: Run, folder: Path) -> dict[str, Any]:
    """Fine-tunes the predictors, or the whole R-CNN head, of the re-trained detector."""
    section, labels = run.config.tune, run.data.labels
    if section.data == "none":
        return _copy_online(run, folder)
    saved = load_detector(run, "online")
    detector = to_device(saved.detector, run.device)
    freeze_all_but(detector, section.part)
    data = run.data.shots
    if section.data == "novel":
        data = data.with_boxes(data.boxes.take(is_of(data, labels.novel)))
        data = data.select(np.unique(data.boxes.image))
    elif section.data == "known":
        data = with_base_boxes(data, arranged(run.data.whole, labels), labels)
    return fine_tune(run, "tune", folder, detector, data, section, saved.about.get("weights"))


def freeze_all_but(detector: Detector, part: Literal["predictors", "head"]) -> None:
    """Freezes the detector but for the predictors (classes, boxes, IoU) or the whole R-CNN head."""
    detector.requires_grad_(False)
    detector.predictor.requires_grad_(True)
    branch = detector.iou_branch
    if part == "head":
        detector.box_head.requires_grad_(True)
    if branch is not None:
        (branch if part == "head" else branch.predict).requires_grad_(True)


def _copy_online(run: Run, folder: Path) -> dict[str, Any]:
    """Without fine-tuning, the re-trained detector is the result."""
    if run.team.leads:
        console.note("tune.data is none: no fine-tuning, the detector of online is the result")
        content = (run.folder("online") / CHECKPOINT_FILE).read_bytes()
        write_bytes(folder / CHECKPOINT_FILE, content)
    wait_for_all(run.team)
    return {"iterations": 0, "training_seconds": 0.0, "images_per_second": None}
