"""A data set of coloured shapes on grey, one colour per class: a run takes seconds.

"red" and "green" are base classes, "blue, light" is novel.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image, ImageDraw

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 30), "blue, light": (120, 160, 250)}
CLASSES = tuple(COLOURS)
NOVEL = CLASSES[2]
SIZES = ((64, 64), (96, 64), (64, 90), (72, 48))  # width, height: several canvases


def pictures(folder: Path, count: int, seed: int, name: str = "") -> dict[str, Any]:
    """Pictures in a folder, and COCO's records of them: one to three boxes each."""
    rng = Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for n in range(count):
        width, height = SIZES[n % len(SIZES)]
        picture = Image.new("RGB", (width, height), (110, 110, 110))
        for k in range(1 + n % 3):
            label = (n + k) % 3
            w, h = rng.randint(14, 30), rng.randint(14, 30)
            x, y = rng.randint(0, width - w), rng.randint(0, height - h)
            ImageDraw.Draw(picture).rectangle((x, y, x + w - 1, y + h - 1), COLOURS[CLASSES[label]])
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": n + 1,
                    "category_id": label + 1,
                    "bbox": [x, y, w, h],
                    "area": w * h,
                    "iscrowd": 0,
                }
            )
        picture.save(folder / f"{name}{n}.png")
        file = {"id": n + 1, "file_name": f"{name}{n}.png", "width": width, "height": height}
        images.append(file)
    categories = [{"id": n + 1, "name": name} for n, name in enumerate(CLASSES)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_data(folder: Path, parts: Sequence[str] = ("train", "test")) -> Path:
    """annotations/train.json of 8 pictures, annotations/test.json of 4."""
    (folder / "annotations").mkdir(parents=True)
    for n, part in enumerate(parts):
        content = pictures(folder / part, 4 if part in ("test", "val") else 8, seed=n)
        (folder / "annotations" / f"{part}.json").write_text(json.dumps(content))
    return folder


def write_yolo(folder: Path) -> Path:
    """The same, with data.yaml, as train and val."""
    for n, (part, count) in enumerate((("train", 8), ("val", 4))):
        content = pictures(folder / "images" / part, count, seed=n)
        (folder / "labels" / part).mkdir(parents=True)
        for image in content["images"]:
            width, height = image["width"], image["height"]
            lines = [
                f"{box['category_id'] - 1} {(x + w / 2) / width} {(y + h / 2) / height} "
                f"{w / width} {h / height}\n"
                for box in content["annotations"]
                for x, y, w, h in [box["bbox"]]
                if box["image_id"] == image["id"]
            ]
            name = Path(image["file_name"]).with_suffix(".txt")
            (folder / "labels" / part / name).write_text("".join(lines))
    names = json.dumps(CLASSES)
    (folder / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: {names}\n")
    return folder


def write_voc(folder: Path) -> Path:
    """The same, as a devkit of one year with trainval and test."""
    home = folder / "VOC2007"
    (home / "Annotations").mkdir(parents=True)
    (home / "ImageSets" / "Main").mkdir(parents=True)
    for n, (part, count) in enumerate((("trainval", 8), ("test", 4))):
        content = pictures(home / "JPEGImages", count, seed=n, name=part)
        for image in content["images"]:
            objects = "".join(
                f"<object><name>{CLASSES[box['category_id'] - 1]}</name><bndbox><xmin>{x + 1}"
                f"</xmin><ymin>{y + 1}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox>"
                "</object>"
                for box in content["annotations"]
                for x, y, w, h in [box["bbox"]]
                if box["image_id"] == image["id"]
            )
            (home / "Annotations" / image["file_name"]).with_suffix(".xml").write_text(
                f"<annotation><filename>{image['file_name']}</filename><size><width>"
                f"{image['width']}</width><height>{image['height']}</height><depth>3</depth></size>"
                f"{objects}</annotation>"
            )
        stems = "".join(f"{Path(image['file_name']).stem}\n" for image in content["images"])
        (home / "ImageSets" / "Main" / f"{part}.txt").write_text(stems)
    return folder


WRITE = {"coco": write_data, "yolo": write_yolo, "voc": write_voc}


def json_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def rewrite(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
