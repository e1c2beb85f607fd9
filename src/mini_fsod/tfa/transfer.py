"""The stage `transfer`: TFA's few-shot detector, which mines first (the paper's Eq. 1: M^s)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mini_fsod.data.dataset import Dataset
from mini_fsod.data.subsets import with_base_boxes
from mini_fsod.detector.model import Detector
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.labels import LabelMap
from mini_fsod.runs.detectors import load_detector, to_device
from mini_fsod.runs.run import Run
from mini_fsod.tfa.fine_tune import fine_tune
from mini_fsod.tfa.mined_shots import is_scanned, scan_for_shots, with_mined_shots
from mini_fsod.train.state import delete_state

NEW_ROWS_STD = 0.01
FIRST = "first"  # folder, in that of the stage, of the detector that mines further shots


def transfer(run: Run, folder: Path) -> dict[str, Any]:
    """Adds rows for the novel classes to the base detector, then trains both predictors on the
    balanced K-shot set. With `transfer.mined_shots` that is done twice: see `tfa/mined_shots.py`.
    """
    mined_shots = run.config.transfer.mined_shots
    if not mined_shots:
        return _fine_tune(run, folder, run.data.shots)
    first = folder / FIRST
    if not is_scanned(run, first):
        first.mkdir(exist_ok=True)
        _fine_tune(run, first, run.data.shots)
        scan_for_shots(run, first, first / CHECKPOINT_FILE)
    shots, found = with_mined_shots(run, first, mined_shots)
    figures = _fine_tune(run, folder, shots)
    if run.team.leads:
        delete_state(first)
        (first / CHECKPOINT_FILE).unlink(missing_ok=True)
    return figures | {"mined_shots": found}


def _fine_tune(run: Run, folder: Path, shots: Dataset) -> dict[str, Any]:
    section, labels, data = run.config.transfer, run.data.labels, shots
    saved = load_detector(run, "base")
    base = to_device(saved.detector, run.device)
    detector = few_shot_detector(base, labels, run.config.seed, section.boxes != "new")
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
