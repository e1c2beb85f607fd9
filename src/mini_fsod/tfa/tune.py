"""The stage `tune`: the last fine-tuning of the predictors on the K shots (paper, section 3.3)."""

from __future__ import annotations

import time

import numpy as np

from mini_fsod import console
from mini_fsod.data.subsets import arranged, is_of, with_base_boxes
from mini_fsod.runs.base import load_stage, onto, take
from mini_fsod.runs.run import Run
from mini_fsod.tfa.transfer import over_views


def tune(run: Run) -> None:
    """Classifier, box and IoU predictor of the re-trained detector; all else is frozen."""
    begun = time.perf_counter()
    own, labels = run.config.tune, run.material.labels
    path, saved = load_stage(run, "online", run.config.online.checkpoint, labels.classes)
    if own.data == "none":
        console.note("tune.data is none: no fine-tuning, the detector of online is the run's")
        take(run, "tune", path, saved, begun)
        return
    detector = onto(saved.detector, run.device).requires_grad_(False)
    detector.predictor.requires_grad_(True)
    if detector.iou_branch is not None:
        detector.iou_branch.predict.requires_grad_(True)
    data = run.material.shots
    if own.data == "novel":
        data = data.with_boxes(data.boxes.take(is_of(data, labels.novel)))
        data = data.select(np.unique(data.boxes.image))
    elif own.data == "known":
        data = with_base_boxes(data, arranged(run.material.data, labels), labels)
    over_views(run, "tune", detector, data, own, own.short, saved.about.get("weights"), begun)
