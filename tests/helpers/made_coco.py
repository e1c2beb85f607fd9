"""COCO's official folders with 80 classes, made: small pictures, test ids of the official list."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from mini_fsod.data.official_shots import coco_test_images
from mini_fsod.labels import COCO_BASE, COCO_NOVEL

CLASSES = (*COCO_BASE, *COCO_NOVEL)
BOXES = 6  # of each picture
COUNTS = {"train2014": 48, "val2014": 12}  # of pictures to train on
TESTED = 8  # of val2014


def write_official(home: Path) -> Path:
    (home / "annotations").mkdir(parents=True)
    rng = Random(0)
    tested = sorted(coco_test_images())[:TESTED]
    label = 0
    for part, count in COUNTS.items():
        first = 1 if part == "train2014" else 10_000_000
        ids = [*range(first, first + count), *(tested if part == "val2014" else [])]
        (home / part).mkdir()
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number in ids:
            name = f"COCO_{part}_{number:012}.png"
            pixels = np.full((64, 96, 3), 110, dtype=np.uint8)
            for n in range(BOXES):
                # a place of its own for each, and a colour for each class
                x, y = 32 * (n % 3) + rng.randint(0, 8), 32 * (n // 3) + rng.randint(0, 8)
                pixels[y : y + 22, x : x + 22] = [37 * label % 256, 91 * label % 256, 3 * label]
                annotations.append(
                    {"id": int(first + len(annotations)), "image_id": number, "area": 484}
                    | {"category_id": label + 1, "bbox": [x, y, 22, 22], "iscrowd": 0}
                )
                label = (label + 1) % len(CLASSES)
            Image.fromarray(pixels).save(home / part / name)
            images.append({"id": number, "file_name": name, "width": 96, "height": 64})
        categories = [{"id": n, "name": name} for n, name in enumerate(CLASSES, start=1)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (home / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return home
