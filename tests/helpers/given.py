"""Coloured shapes without labels: photos, five boxes of the new class, and a test set beside them.

The photos' annotations are kept apart, for judging what was found in them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from helpers import shapes
from helpers.tiny_run import config
from mini_fsod import checkpoint
from mini_fsod.labels import LabelMap
from mini_fsod.runs.detectors import new_detector


class Photos(NamedTuple):
    root: Path  # a plain folder of pictures
    shots: Path  # five boxes of the new class
    truth: dict[str, Any]  # COCO's records of the photos


def write_photos(folder: Path, count: int = 24, seed: int = 5) -> Photos:
    root = folder / "photos"
    truth = shapes.pictures(root, count, seed, name="photo")
    return Photos(root, write_shots(folder / "five.json", truth), truth)


def write_shots(path: Path, truth: dict[str, Any], number: int = 5) -> Path:
    """The first boxes of the new class in different pictures, as COCO."""
    of_image = {box["image_id"]: box for box in truth["annotations"][::-1] if is_new(box)}
    boxes = [of_image[image] for image in sorted(of_image)][:number]
    content = truth | {
        "images": [i for i in truth["images"] if i["id"] in {box["image_id"] for box in boxes}],
        "annotations": boxes,
        "categories": [c for c in truth["categories"] if c["name"] == shapes.NOVEL],
    }
    path.write_text(json.dumps(content))
    return path


def write_detector(path: Path, classes: tuple[str, ...], novel: tuple[str, ...] = ()) -> Path:
    """An untrained detector, whose scores differ from region to region."""
    torch.manual_seed(0)
    labels = LabelMap(classes, novel)
    detector = new_detector(config(path.parent), len(labels.classes))
    torch.nn.init.normal_(detector.predictor.classifier.weight, std=0.3)
    torch.nn.init.normal_(detector.rpn_head.predict.weight, std=0.1)
    checkpoint.save(path, detector, labels, {"stage": "base", "weights": None})
    return path


def is_new(box: dict[str, Any]) -> bool:
    return box["category_id"] == 1 + shapes.CLASSES.index(shapes.NOVEL)
