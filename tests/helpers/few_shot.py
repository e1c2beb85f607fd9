"""Runs on coloured shapes, with untrained detectors in place of finished stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from helpers.run_data import CPU, run_data
from mini_fsod import checkpoint
from mini_fsod.detector.model import Detector
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.labels import LabelMap
from mini_fsod.runs.detectors import new_detector
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import Team

DETECTOR = {
    "backbone": "resnet18-narrow",
    "norm": "group",
    "anchors": [8, 16, 32, 64, 128],
    "fpn_channels": 16,
    "head_width": 32,
    "rpn_pre_nms": 60,
    "rpn_post_nms": 30,
    "rpn_samples": 32,
    "roi_samples": 32,
}
STAGE = {"iterations": 12, "batch": 4, "save_seconds": 0, "rate": 0.02}


def make_run(data: Path, folder: Path, **changes: Any) -> Run:
    """A run whose stages lie in `folder`; `tune__part="head"` sets the key tune.part."""
    for key, value in DETECTOR.items():
        changes.setdefault(f"detector__{key}", value)
    for stage in ("transfer", "tune"):
        for key, value in STAGE.items():
            changes.setdefault(f"{stage}__{key}", value)
    changes.setdefault("shots__k", 2)
    material = run_data(data, **changes)
    pool = folder / "pool.json"
    return Run(material.config, material, CPU, Team(), lambda stage: folder / stage, pool, pool)


def save_detector(run: Run, stage: str) -> Detector:
    """An untrained detector as the result of the stage `base` or `online`."""
    labels = run.data.labels
    if stage == "base":
        labels = LabelMap(labels.base, ())
    torch.manual_seed(0)
    iou_branch = stage == "online" and run.config.online.iou_branch
    detector = new_detector(run.config, len(labels.classes), iou_branch)
    if detector.iou_branch is not None:
        with torch.no_grad():  # predicted IoUs that differ from region to region
            detector.iou_branch.predict.weight.normal_(std=0.5)
    about = {"stage": stage, "iterations": 0, "seed": 0, "weights": None}
    run.folder(stage).mkdir(parents=True, exist_ok=True)
    checkpoint.save(run.folder(stage) / CHECKPOINT_FILE, detector, labels, about)
    return detector


def changed_parameters(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}
