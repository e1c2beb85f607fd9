"""The stage `online`: a detector of all classes, re-trained on base boxes and mined ones, with a
teacher that mines on, or without (paper, section 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import Floats
from mini_fsod.data.subsets import is_of, with_base_boxes
from mini_fsod.detector.batch import Targets, join_targets
from mini_fsod.detector.model import Detector
from mini_fsod.labels import LabelMap
from mini_fsod.loader.augment import draw_strong, strong_view
from mini_fsod.loader.resident import Batch, ScoredBoxes
from mini_fsod.loader.schedule import Plan
from mini_fsod.loader.stac import draw_stac, stac_view
from mini_fsod.mining.audit import GroundTruth, seem_complete
from mini_fsod.mining.extra import read_extra
from mini_fsod.mining.mined_images import MinedImages
from mini_fsod.mining.pool_io import NO_POOL
from mini_fsod.online.health import HealthCheck, Setup, readings_of
from mini_fsod.online.mingling import MAX_INSTANCES
from mini_fsod.online.targets import (
    MinedInputs,
    TrainingSet,
    boxes_in,
    epoch_images,
    losses_with_mined,
    oracle,
    training_images,
    with_extra,
    with_shots,
)
from mini_fsod.online.teacher import TeacherInputs, losses_with_teacher
from mini_fsod.runs.data import Batches, InputsOf
from mini_fsod.runs.detectors import load_detector, new_detector, to_device
from mini_fsod.runs.run import Run
from mini_fsod.train.ema import Average
from mini_fsod.train.log import FILE as LOG_FILE
from mini_fsod.train.log import read_log
from mini_fsod.train.step import draw_of


def online(run: Run, folder: Path) -> dict[str, Any]:
    """Re-train on the base boxes and the pool H; the detector is saved into `folder`."""
    config, section, labels = run.config, run.config.online, run.data.labels
    extra = read_extra(run) if section.uses_pool else None
    training = training_set(run, extra)
    missing = None
    if section.teacher and config.base.sure is not None and training.missing.any():
        missing = torch.from_numpy(training.missing).to(run.device)
    hidden = oracle(run.data.mined, labels).mined  # only the gauges see them
    student, weights = new_student(run)
    others = (training.ignored, hidden, training.rejected)
    boxes = [(training.mined, training.scores), *((other, None) for other in others)]
    batches, sizes = run.data.batches(training.data, boxes)
    images = epoch_images(training, labels, section)
    schedule = run.schedule(sizes, section, images)
    average = health = None
    convert: Callable[[Batch, Tensor, Tensor], MinedInputs | TeacherInputs] = mined_inputs
    if section.teacher:
        average = Average(student, run.device)
        truth = GroundTruth.of(run.data.mined, run.data.shots, labels)
        truth_known = extra is None and seem_complete(len(truth.hidden), len(training.mined))
        nms_iou = config.detector.nms_iou
        losses = losses_with_teacher(
            student,
            average.model,
            labels,
            section,
            config.mine,
            nms_iou,
            truth_known,
            config.base.sure,
        )
        shares = np.bincount(images, minlength=len(training.data)) / len(images)
        shown = boxes_per_image(training, labels, shares)
        setup = Setup.of(section.batch, MAX_INSTANCES, shown, section.iterations)
        health = HealthCheck(setup, readings_of(read_log(folder / LOG_FILE)), run.anyway)
        convert = partial(teacher_inputs, missing=missing)
    else:
        losses = losses_with_mined(student, section, config.mine)
    inputs = inputs_from_batches(batches, convert, section.strong, config.seed, run.device)
    further = [training.mined, training.ignored]
    further += [training.rejected] if len(training.rejected) else []
    feed = run.data.feed(training.data, schedule, inputs, run.team, section.accumulate, further)
    return run.train(
        "online", folder, student, labels, losses, feed, section, weights, average, health
    )


def new_student(run: Run) -> tuple[Detector, str | float | None]:
    """The detector to train, and what its backbone started from."""
    config, section = run.config, run.config.online
    weights: str | float | None
    torch.manual_seed(config.seed)
    if section.start == "weights":
        detector = new_detector(config, len(run.data.labels.classes), section.iou_branch)
        weights = config.detector.weights
    else:
        saved = load_detector(run, "transfer")
        settings = replace(saved.detector.settings, iou_branch=section.iou_branch)
        # a new module, because TFA has frozen most of the old one
        detector = Detector(settings)
        detector.load_state_dict(saved.detector.state_dict(), strict=False)
        weights = saved.about.get("weights")
    roi = replace(
        detector.settings.roi, iou_weight=section.iou_beta, focal_gamma=section.focal_gamma
    )
    detector.settings = replace(detector.settings, roi=roi)
    return to_device(detector, run.device), weights


def training_set(run: Run, extra: MinedImages | None) -> TrainingSet:
    """The images and boxes to train on, as the configuration asks for them."""
    section, labels, data = run.config.online, run.data.labels, run.data.mined
    sure, missing, is_open = run.config.base.sure, run.data.missing(data), run.data.is_open
    shots = run.data.shots if section.shots or is_open else data.select([])
    if section.oracle:
        training = oracle(data, labels)
    elif not section.uses_pool:
        training = training_images(MinedImages(data, NO_POOL, missing), labels, sure, False)
    else:
        candidates = section.ignore_candidates
        mine = run.folder("mine")
        images = MinedImages.read(data, run.pool, mine, labels, missing, candidates)
        novel = shots.with_boxes(shots.boxes.take(is_of(shots, labels.novel)))
        known = boxes_in(novel, data)
        training = training_images(images, labels, sure, candidates, known)
        if extra is not None:
            others = training_images(extra, labels, sure, ignore_candidates=True)
            training = with_extra(training, others)
    if not section.shots:
        return training
    if is_open:
        shots = with_base_boxes(shots, run.data.labelled, labels)
    return with_shots(training, shots, labels)


def mined_inputs(batch: Batch, strong: Tensor, draw: Tensor) -> MinedInputs:
    pool, candidates, *_ = batch.extra
    ignored = regions_to_ignore(pool, candidates)
    return MinedInputs(strong, batch.sizes, batch.targets, Targets(*pool[:3]), ignored, draw)


def regions_to_ignore(pool: ScoredBoxes, candidates: ScoredBoxes) -> Targets:
    """Regions without background loss (B, H + N): boxes of the pool (B, H) of which the view
    shows too little for a target, and candidates (B, N) of which it shows anything.
    """
    cut, ignored = pool.valid & False, candidates.valid
    if pool.cut is not None and candidates.cut is not None:
        cut, ignored = pool.cut, ignored | candidates.cut
    return join_targets(
        Targets(pool.boxes, pool.labels, cut), Targets(candidates.boxes, candidates.labels, ignored)
    )


def teacher_inputs(
    batch: Batch, strong: Tensor, draw: Tensor, missing: Tensor | None = None
) -> TeacherInputs:
    """`missing` (I, B) is that of the `TrainingSet`; None: the teacher finds no base objects."""
    pool = batch.extra[0]
    hidden, rejected = (Targets(*boxes[:3]) for boxes in batch.extra[2:])
    return TeacherInputs(
        batch.images,
        strong,
        batch.sizes,
        batch.targets,
        pool,
        regions_to_ignore(pool, batch.extra[1]),
        hidden,
        rejected,
        draw,
        None if missing is None else missing[batch.image_index],
    )


def inputs_from_batches(
    batches: Batches,
    convert: Callable[[Batch, Tensor, Tensor], Any],
    strong: Literal[True, False, "stac"],
    seed: int,
    device: torch.device,
) -> InputsOf:
    """From plans to the inputs of the losses, with the views of `online.strong`."""

    def inputs(plans: Iterable[Plan]) -> Iterator[Any]:
        for batch in batches(plans):
            view = batch.images
            if strong == "stac":
                pool = batch.extra[0]
                boxes = torch.cat([batch.targets.boxes, pool.boxes], 1)
                valid = torch.cat([batch.targets.valid, pool.valid], 1)
                drawn = draw_stac(seed, batch.plan)
                view = stac_view(view, batch.plan.sizes, boxes, valid, drawn)
            elif strong:
                view = strong_view(view, batch.sizes, draw_strong(seed, batch.plan))
            yield convert(batch, view, draw_of(batch.plan, device))

    return inputs


def boxes_per_image(training: TrainingSet, labels: LabelMap, shares: Floats) -> dict[str, float]:
    """Mined boxes of each novel class per image shown; `shares` (I,) of each image in an epoch."""
    mined = training.mined
    number = np.bincount(
        mined.label - len(labels.base), shares[mined.image], minlength=len(labels.novel)
    )
    return dict(zip(labels.novel, number.tolist(), strict=True))
