from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from helpers import tiny
from mini_fsod.data.read import read
from mini_fsod.data.subsets import arranged
from mini_fsod.detector.model import build
from mini_fsod.detector.settings import RoISettings, RPNSettings
from mini_fsod.eval.inference import detect_all
from mini_fsod.eval.score import score
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import each_once

CPU = torch.device("cpu")
LABELS = LabelMap(("car", "bus"), ("bird",))


def test_detect_all_detects_every_image_once(tmp_path: Path) -> None:
    """Images that fill up the last batch are left out; boxes are in pixels of the pictures."""
    data = arranged(read(tiny.write_coco(tmp_path / "data")), LABELS)
    pictures = cached_pictures(data, tmp_path / "cache", 64, 128, workers=1)
    loader = Resident(pictures, Annotations.of(data.boxes, len(data)), CPU)
    torch.manual_seed(0)
    rpn = RPNSettings(
        before_nms_train=100, before_nms_test=50, after_nms_train=60, after_nms_test=40
    )
    roi = RoISettings(samples=32, width=64)
    detector = build(3, "resnet18", norm="group", rpn=rpn, roi=roi)
    with torch.no_grad():
        detector.predictor.classifier.weight.normal_(std=0.5)
    plans = each_once(pictures.sizes, 2, 48, 96)
    found = detect_all(detector, loader.batches, plans, CPU, bf16=False)
    assert set(found.image.tolist()) == {0, 1, 2}
    assert np.bincount(found.image).max() <= detector.settings.test.detections
    right = found.xywh[:, :2] + found.xywh[:, 2:]
    assert (right <= pictures.sizes[found.image][:, ::-1] + 1e-3).all()
    assert score(data, found, LABELS, "voc07")["images"] == 3
