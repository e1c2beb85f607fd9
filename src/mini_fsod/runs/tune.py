"""The stage `tune`: the last fine-tuning of the predictors on the K shots (paper, section 3.3)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.split import arranged, is_of
from mini_fsod.labels import LabelMap
from mini_fsod.mining.overlap import pairs_within
from mini_fsod.runs.base import load_stage, onto
from mini_fsod.runs.run import Run
from mini_fsod.runs.transfer import over_views


def tune(run: Run) -> None:
    """Classifier, box and IoU predictor of the re-trained detector; all else is frozen."""
    begun = time.perf_counter()
    own, labels = run.config.tune, run.material.labels
    _, saved = load_stage(run, "online", run.config.online.checkpoint, labels.classes)
    detector = onto(saved.detector, run.device).requires_grad_(False)
    detector.predictor.requires_grad_(True)
    if detector.iou_branch is not None:
        detector.iou_branch.predict.requires_grad_(True)
    data = run.material.shots
    if own.data == "novel":
        data = data.with_boxes(data.boxes.take(is_of(data, labels.novel)))
        data = data.select(np.unique(data.boxes.image))
    elif own.data == "known":
        everything = arranged(run.material.data, labels)
        data = _with_base_boxes(data, everything, labels)
    over_views(run, "tune", detector, data, own, own.short, saved.about.get("weights"), begun)


def _with_base_boxes(shots: Dataset, everything: Dataset, labels: LabelMap) -> Dataset:
    """The shots of novel classes, and every base box of their pictures.

    A picture of the balanced set shows more than its shots, and what the detector has learnt to
    find there would be taught as background. Of pictures that lie elsewhere the shots are kept.
    """
    place = {file: i for i, file in enumerate(everything.files)}
    known = np.array([place.get(file, -1) for file in shots.files], dtype=np.int64)
    base = everything.boxes.take(is_of(everything, labels.base))
    image, box = pairs_within(known, base.image)
    elsewhere = (known < 0)[shots.boxes.image]
    own = shots.boxes.take(is_of(shots, labels.novel) | elsewhere)
    both = (own, replace(base.take(box), image=image))
    columns = {n: np.concatenate([getattr(part, n) for part in both]) for n in Boxes.__slots__}
    return shots.with_boxes(Boxes.of(**columns))
