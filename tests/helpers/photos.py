"""Photos and a few boxes of bolts, as a new user has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

SIZE = (320, 240)
Box = tuple[float, float, float, float]
BOLT: Box = (20, 30, 120, 90)


def write_photos(folder: Path, count: int = 8, size: tuple[int, int] = SIZE) -> Path:
    """photo0.jpg, photo1.jpg, ...: each one has a colour of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        Image.new("RGB", size, (20 * n % 255, 90, 200)).save(folder / f"photo{n}.jpg")
    return folder


def write_boxes(
    path: Path, *boxes: tuple[int, str, Box], size: tuple[int, int] = SIZE, images: int = 0
) -> Path:
    """COCO with boxes of (photo's number, class, box), and `images` photos at least."""
    names = list(dict.fromkeys(name for _, name, _ in boxes))
    numbers = sorted({*range(images), *(n for n, _, _ in boxes)})
    content = {
        "images": [
            {"id": n, "file_name": f"photo{n}.jpg", "width": size[0], "height": size[1]}
            for n in numbers
        ],
        "annotations": [
            {"id": k, "image_id": n, "category_id": names.index(name), "bbox": list(box)}
            for k, (n, name, box) in enumerate(boxes)
        ],
        "categories": [{"id": k, "name": name} for k, name in enumerate(names)],
    }
    path.write_text(json.dumps(content))
    return path


def bolts(photos: Sequence[int] = (0, 1, 2), box: Box = BOLT) -> list[tuple[int, str, Box]]:
    return [(n, "bolt", box) for n in photos]
