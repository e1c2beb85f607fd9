"""The stage `base`: a detector of the base classes, trained on the base set D^b."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mini_fsod import console
from mini_fsod.labels import LabelMap
from mini_fsod.runs.detectors import new_detector, to_device
from mini_fsod.runs.run import Run, inputs_from
from mini_fsod.train.step import losses_of


def base(run: Run, folder: Path) -> dict[str, Any]:
    config, section = run.config, run.config.base
    labels = LabelMap(run.data.labels.base, ())
    if config.detector.weights is None and config.detector.norm == "frozen":
        console.note(
            "frozen BatchNorm learns little from random weights: set detector.norm to group"
        )
    torch.manual_seed(config.seed)
    detector = to_device(new_detector(config, len(labels.classes)), run.device)
    batches, sizes = run.data.batches(run.data.base)
    schedule = run.schedule(sizes, section)
    inputs = inputs_from(batches, run.device)
    feed = run.data.feed(run.data.base, schedule, inputs, run.team, section.accumulate)
    weights = config.detector.weights
    return run.train("base", folder, detector, labels, losses_of(detector), feed, section, weights)
