"""The stage `base`: a detector of the base classes, trained on the base set D^b or given."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mini_fsod import checkpoint, console
from mini_fsod.config.load import Config
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import (
    NORMALISATIONS,
    DetectorSettings,
    RoISettings,
    RPNSettings,
)
from mini_fsod.errors import UserError
from mini_fsod.files import digest, is_file, write_json
from mini_fsod.labels import LabelMap
from mini_fsod.runs import folder
from mini_fsod.runs.data import inputs_from
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import wait_for_all
from mini_fsod.train.step import losses_of


def base(run: Run) -> None:
    """The base detector: trained on the base set D^b, or given."""
    begun = time.perf_counter()
    config, own = run.config, run.config.base
    if own.checkpoint is not None:
        take(run, "base", *load_base(run), begun)
        return
    labels = LabelMap(run.material.labels.base, ())
    if config.detector.weights is None and config.detector.norm == "frozen":
        console.note(
            "from random weights frozen BatchNorm learns little: set detector.norm to group"
        )
    torch.manual_seed(config.seed)
    detector = onto(new_detector(config, len(labels.classes)), run.device)
    data = run.material.base
    batches, sizes = run.material.batches(data)
    schedule = run.schedule(sizes, own)
    inputs = inputs_from(batches, run.device)
    feed = run.material.feed(data, schedule, inputs, run.team, own.accumulate)
    run.train(
        "base", detector, labels, losses_of(detector), feed, own, config.detector.weights, begun
    )


def take(run: Run, stage: str, path: Path, saved: checkpoint.Saved, begun: float) -> None:
    """A stage's detector from elsewhere: its figures come along, or are measured here."""
    if run.team.leads:
        content = digest(path)
        figures = _figures_beside(path, content)
        test = run.material.test
        same = figures.get("metric") == run.config.data.metric
        same &= "test_set" in figures
        same &= figures.get("test_set") == (None if test is None else test.digest)
        same &= saved.detector.settings == checkpoint.read_header(path).settings
        if not same:
            figures = _measured(run, content, saved)
        for key in ("training_seconds", "test_seconds"):  # they were spent elsewhere
            figures.pop(key, None)
        figures |= {"seconds": time.perf_counter() - begun, "images_per_second": None}
        figures |= {"checkpoint": str(path), "checkpoint_sha256": content}
        write_json(run.out / stage / folder.METRICS, figures)
    wait_for_all(run.team)


def _figures_beside(path: Path, content: str) -> dict[str, Any]:
    """The figures that lie beside a checkpoint, if they are figures, and its own."""
    try:
        figures = folder.metrics(path.parent) or {}
    except UserError:
        return {}
    return figures if figures.get("checkpoint_sha256") == content else {}


_MEASURED: dict[tuple[Any, ...], dict[str, Any]] = {}  # the runs of a study are given the same


def _measured(run: Run, content: str, saved: checkpoint.Saved) -> dict[str, Any]:
    """The figures of a given detector, whose file has this digest: measured once by a process."""
    bf16 = run.bf16(run.config.base)
    key = (content, saved.detector.settings, run.config.data, run.device, bf16)
    if key not in _MEASURED:
        detector = onto(saved.detector, run.device)
        _MEASURED[key] = run.material.score(detector, saved.labels, bf16)
    return dict(_MEASURED[key])


def load_base(run: Run) -> tuple[Path, checkpoint.Saved]:
    """The base detector of a run, its own or the given one, and its file."""
    return load_stage(run, "base", run.config.base.checkpoint, run.material.labels.base)


def load_stage(
    run: Run, stage: str, given: Path | None, classes: tuple[str, ...]
) -> tuple[Path, checkpoint.Saved]:
    """The detector of a stage, the run's own or a given one, and its file."""
    path = checkpoint_of(given, stage) if given else run.out / stage / folder.CHECKPOINT
    if not is_file(path):
        raise UserError(
            f"{path}: the detector of {stage} is not there.", f"Repeat with --from {stage}."
        )
    saved = checkpoint.load(path, run.config.detector.weights)
    if saved.labels.classes != classes:
        raise UserError(
            f"{path}: its classes are not the {'base ' * (stage == 'base')}classes of this run: "
            f"{', '.join(saved.labels.classes)} instead of {', '.join(classes)}.",
            f"Take a {stage} detector of the same split, or train one.",
        )
    _refuse_other_build(path, saved.detector.settings, run.config)
    saved.detector.settings = configured(saved.detector.settings, run.config)
    return path, saved


def checkpoint_of(given: Path, stage: str) -> Path:
    """The stage's checkpoint that a file, a run or a stage's folder stands for."""
    for path in (given, given / stage / folder.CHECKPOINT, given / folder.CHECKPOINT):
        if is_file(path):
            return path
    raise UserError(
        f"{given}: there is no {stage} detector.",
        f"Give a checkpoint, or the folder of a run that has trained its {stage} stage.",
    )


def _refuse_other_build(path: Path, settings: DetectorSettings, config: Config) -> None:
    """Else `config.yaml` would say what is not true."""
    own, body = config.detector, settings.backbone
    pairs = {
        "backbone": (body.name, own.backbone),
        "norm": (body.norm, own.norm),
        "stride_in_1x1": (body.stride_in_1x1, own.stride_in_1x1),
        "anchors": (
            [size for sizes in settings.rpn.anchor_sizes for size in sizes],
            [*own.anchors],
        ),
        "channels": (settings.channels, own.channels),
        "width": (settings.roi.width, own.width),
    }
    wrong = [
        f"detector.{key} is {there} there and {here} here"
        for key, (there, here) in pairs.items()
        if there != here
    ]
    if wrong:
        raise UserError(
            f"{path}: not a detector of this configuration: {'; '.join(wrong)}.",
            "Set the keys as they were when it was trained, or take another.",
        )


def new_detector(config: Config, classes: int, iou_branch: bool = False) -> Detector:
    own = config.detector
    detector = build(
        classes,
        own.backbone,
        own.weights,
        norm=own.norm,
        stride_in_1x1=own.stride_in_1x1,
        frozen_stages=own.frozen_stages,
        normalisation=NORMALISATIONS[own.normalisation],
        channels=own.channels,
        iou_branch=iou_branch,
        rpn=RPNSettings(anchor_sizes=tuple((size,) for size in own.anchors)),
        roi=RoISettings(width=own.width),
    )
    detector.settings = configured(detector.settings, config)
    return detector


def configured(settings: DetectorSettings, config: Config) -> DetectorSettings:
    """How a detector is sampled and tested is the configuration's; what it is stays."""
    own = config.detector
    rpn = replace(
        settings.rpn,
        before_nms_train=own.rpn_before,
        before_nms_test=min(own.rpn_before, RPNSettings().before_nms_test),
        after_nms_train=own.rpn_after,
        after_nms_test=own.rpn_after,
        samples=own.rpn_samples,
    )
    test = replace(
        settings.test,
        score_cut=own.score_cut,
        nms=own.nms,
        detections=own.detections,
        use_iou=own.rank_by_iou,
        min_size=config.views.test,
        max_size=config.views.long,
    )
    return replace(settings, rpn=rpn, roi=replace(settings.roi, samples=own.roi_samples), test=test)


def onto(detector: Detector, device: torch.device) -> Detector:
    """A detector on the device, its weights laid out as its kernels want them."""
    moved = detector.to(device)
    moved.to(memory_format=torch.channels_last)
    return moved
