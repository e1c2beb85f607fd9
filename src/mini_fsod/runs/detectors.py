"""Detectors as a configuration describes them: new ones, and those of finished stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from mini_fsod import checkpoint
from mini_fsod.config.schema import Config
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import CAFFE, DetectorSettings, RoISettings, RPNSettings
from mini_fsod.errors import UserError
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.runs.run import Run


def new_detector(config: Config, classes: int, iou_branch: bool = False) -> Detector:
    """A detector with random heads; its backbone has the weights of `detector.weights`."""
    section = config.detector
    detector = build(
        classes,
        section.backbone,
        section.weights,
        norm=section.norm,
        stride_in_1x1=section.caffe,
        frozen_stages=section.frozen_stages,
        normalisation=CAFFE if section.caffe else None,
        channels=section.fpn_channels,
        iou_branch=iou_branch,
        rpn=RPNSettings(anchor_sizes=tuple((size,) for size in section.anchors)),
        roi=RoISettings(width=section.head_width),
    )
    detector.settings = configured(detector.settings, config)
    return detector


def configured(settings: DetectorSettings, config: Config) -> DetectorSettings:
    """The settings with the configuration's sampling and test keys; the architecture stays."""
    section = config.detector
    rpn = replace(
        settings.rpn,
        before_nms_train=section.rpn_pre_nms,
        before_nms_test=min(section.rpn_pre_nms, RPNSettings().before_nms_test),
        after_nms_train=section.rpn_post_nms,
        after_nms_test=section.rpn_post_nms,
        samples=section.rpn_samples,
    )
    # the focal loss is the stage `online`'s alone
    roi = replace(settings.roi, samples=section.roi_samples, focal_gamma=0.0)
    test = replace(
        settings.test,
        score_cut=section.score_threshold,
        nms=section.nms_iou,
        detections=section.max_detections,
        use_iou=section.rank_by_iou,
        min_size=config.views.test,
        max_size=config.views.long,
    )
    return replace(settings, rpn=rpn, roi=roi, test=test)


def to_device(detector: Detector, device: torch.device) -> Detector:
    """Move the detector, in place, its weights channels-last as the CUDA kernels want them."""
    moved = detector.to(device)
    moved.to(memory_format=torch.channels_last)
    return moved


def load_detector(run: Run, stage: str, path: Path | None = None) -> checkpoint.Saved:
    """The detector of a finished stage, on the CPU, with this run's sampling and test settings.

    `path`: a checkpoint of that kind which is not the stage's result.
    """
    path = path or run.folder(stage) / CHECKPOINT_FILE
    saved = checkpoint.load(path, run.config.detector.weights)
    labels = run.data.labels
    classes = labels.base if stage == "base" else labels.classes
    if saved.labels.classes != classes:
        kind = "base classes" if stage == "base" else "classes"
        raise UserError(
            f"{path}: its classes are not the {kind} of this run: "
            f"{', '.join(saved.labels.classes)} instead of {', '.join(classes)}.",
            f"Use a {stage} detector of the same split, or train one.",
        )
    refuse_other_architecture(path, saved.detector.settings, run.config)
    saved.detector.settings = configured(saved.detector.settings, run.config)
    return saved


def refuse_other_architecture(path: Path, settings: DetectorSettings, config: Config) -> None:
    """A checkpoint of another architecture would make the run's `config.yaml` wrong.

    Not so the normalisation and stride of its backbone, which a given checkpoint brings along.
    """
    section, backbone = config.detector, settings.backbone
    anchors = tuple(size for sizes in settings.rpn.anchor_sizes for size in sizes)
    pairs = (
        ("backbone", backbone.name, section.backbone),
        ("norm", backbone.norm, section.norm),
        ("anchors", [*anchors], [*section.anchors]),
        ("fpn_channels", settings.channels, section.fpn_channels),
        ("head_width", settings.roi.width, section.head_width),
    )
    wrong = [
        f"detector.{key} is {saved} in the checkpoint, {wanted} in the configuration"
        for key, saved, wanted in pairs
        if saved != wanted
    ]
    if wrong:
        keys = ", ".join(f"{key}: {saved}" for key, saved, wanted in pairs if saved != wanted)
        if backbone.norm == "group" and section.weights is not None:
            keys += ", weights: null"  # norm: group is refused with weights
        raise UserError(
            f"{path}: the detector does not fit the configuration: {'; '.join(wrong)}.",
            f"Write what it was trained with into the configuration: detector: {{{keys}}}; or use "
            "another checkpoint.",
        )
