"""The stage `base`: a detector of the base classes, trained on the base set D^b or given."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from mini_fsod import checkpoint
from mini_fsod.config import Config
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import CAFFE, IMAGENET, RoISettings, RPNSettings, TestSettings
from mini_fsod.errors import UserError
from mini_fsod.feed.batches import Schedule
from mini_fsod.files import write_json
from mini_fsod.labels import LabelMap
from mini_fsod.runs import folder
from mini_fsod.runs.material import require_boxes
from mini_fsod.runs.run import Run, recipe_of
from mini_fsod.train.distributed import wait_for_all
from mini_fsod.train.loop import train
from mini_fsod.train.step import losses_of

KERNELS_TRIED = 4  # by cudnn for each convolution of each canvas, in training


def base(run: Run) -> None:
    """The base detector: trained on the base set D^b, or given."""
    config, own = run.config, run.config.base
    if own.checkpoint is not None:
        _take_base(run, own.checkpoint)
        return
    begun = time.perf_counter()
    torch.manual_seed(config.seed)
    labels = LabelMap(run.material.labels.base, ())
    detector = onto(new_detector(config, len(labels.classes)), run.device)
    data = run.material.base
    require_boxes(data, "of a base class to train on")
    _, sizes = run.material.batches(data)
    views = config.views
    zoom = None if views.zoom is None else (views.zoom[0], views.zoom[1])
    schedule = Schedule(
        sizes, own.batch, views.short, views.long, config.seed, flip=views.flip, zoom=zoom
    )
    feed = run.material.feed(data, schedule, run.team, own.accumulate)
    recipe = recipe_of(own, run.bf16(own))
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = KERNELS_TRIED
    try:
        learned, trained = train(
            detector,
            losses_of(detector),
            feed,
            recipe,
            run.out / "base",
            "base",
            run.device,
            run.team,
        )
    finally:
        torch.backends.cudnn.benchmark = False
    run.finish("base", learned, labels, trained, begun, recipe.bf16)


def _take_base(run: Run, given: Path) -> None:
    """A base detector from elsewhere: its figures come along, or are measured here."""
    begun = time.perf_counter()
    path = base_of(given)
    saved = checkpoint.load(path, run.config.detector.weights)
    labels = _base_labels(run, path, saved.labels)
    place = run.out / "base"
    if run.team.leads:
        digest = folder.digest(path)
        beside = folder.metrics(path.parent) if folder.is_finished(path.parent) else {}
        if beside.get("checkpoint_sha256", digest) != digest or "bAP50" not in beside:
            beside = run.material.score(
                onto(saved.detector, run.device), labels, run.bf16(run.config.base)
            )
            beside |= {"seconds": time.perf_counter() - begun, "images_per_second": None}
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / folder.METRICS, beside | {"checkpoint": str(path)})
    wait_for_all(run.team)


def load_base(run: Run) -> Detector:
    """The base detector of a run, on its device."""
    path = base_of(run.config.base.checkpoint or run.out / "base" / folder.CHECKPOINT)
    saved = checkpoint.load(path, run.config.detector.weights)
    _base_labels(run, path, saved.labels)
    return onto(saved.detector, run.device)


def base_of(given: Path) -> Path:
    """The base checkpoint that a file, a run or a stage's folder stands for."""
    inside = given / "base" / folder.CHECKPOINT
    return inside if inside.is_file() else checkpoint.find(given)


def _base_labels(run: Run, path: Path, known: LabelMap) -> LabelMap:
    wanted = run.material.labels.base
    if known.classes != wanted:
        raise UserError(
            f"{path}: its classes are not the base classes of this run: {', '.join(known.classes)} "
            f"instead of {', '.join(wanted)}.",
            "Take a base detector of the same split, or train one.",
        )
    return known


def new_detector(config: Config, classes: int) -> Detector:
    own, views = config.detector, config.views
    normalisation = {"auto": None, "imagenet": IMAGENET, "caffe": CAFFE}[own.normalisation]
    is_file = own.weights is not None and Path(own.weights).is_file()
    return build(
        classes,
        own.backbone,
        Path(own.weights or "") if is_file else own.weights,
        norm=own.norm,
        stride_in_1x1=own.stride_in_1x1,
        frozen_stages=own.frozen_stages,
        normalisation=normalisation,
        channels=own.channels,
        rpn=RPNSettings(
            anchor_sizes=tuple((size,) for size in own.anchors),
            before_nms_train=own.rpn_before,
            before_nms_test=min(own.rpn_before, RPNSettings().before_nms_test),
            after_nms_train=own.rpn_after,
            after_nms_test=own.rpn_after,
            samples=own.rpn_samples,
        ),
        roi=RoISettings(width=own.width, samples=own.roi_samples),
        test=TestSettings(
            score_cut=own.score_cut,
            nms=own.nms,
            detections=own.detections,
            min_size=views.test,
            max_size=views.long,
        ),
    )


def onto(detector: Detector, device: torch.device) -> Detector:
    """A detector on the device, its weights laid out as its kernels want them."""
    moved = detector.to(device)
    moved.to(memory_format=torch.channels_last)
    return moved
