"""A tiny detector with random weights, and images to run it on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import (
    BackboneSettings,
    DetectorSettings,
    RoISettings,
    RPNSettings,
    TestSettings,
)
from mini_fsod.labels import LabelMap

LABELS = LabelMap(("car", "bus"), ("bird",))
SIZES = {"a": (100, 80), "b": (60, 60), "c": (90, 50), "d": (50, 90), "e": (200, 50)}


def tiny_detector() -> Detector:
    """Large random weights in the predictors, so that it finds something in noise."""
    torch.manual_seed(0)
    settings = DetectorSettings(
        num_classes=3,
        backbone=BackboneSettings("resnet18", norm="group"),
        channels=16,
        rpn=RPNSettings(before_nms_test=50, after_nms_test=20),
        roi=RoISettings(width=16),
        test=TestSettings(min_size=64, max_size=96, detections=20),
    )
    detector = Detector(settings)
    with torch.no_grad():
        detector.predictor.classifier.weight.normal_(std=0.3)
        detector.predictor.boxes.weight.normal_(std=0.2)
    return detector.eval()


def write_photos(folder: Path) -> Path:
    """Noise in five sizes: no two images, and no two rotations of one, look alike."""
    folder.mkdir()
    random = np.random.RandomState(0)
    for stem, (width, height) in SIZES.items():
        pixels = random.randint(0, 256, (4, 5, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((width, height)).save(folder / f"{stem}.png")
    return folder


def files(folder: Path) -> list[Path]:
    return [folder / f"{stem}.png" for stem in SIZES]
