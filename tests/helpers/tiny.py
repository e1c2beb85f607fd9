"""Tiny data sets on disk, one for each format, with the same three pictures and five boxes.

a.png  100 x 80   bird (10, 20, 30, 40)   car (50, 10, 20, 20)
b.png   60 x 60   bird (0, 0, 60, 60)
c.png   90 x 50   car (5, 5, 10, 10)      bus (40, 20, 50, 30)

The car of c is difficult or crowd where the format knows such a thing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

SIZES = {"a": (100, 80), "b": (60, 60), "c": (90, 50)}
CLASSES = ("bird", "bus", "car")
BOXES = [
    ("a", "bird", (10, 20, 30, 40)),
    ("a", "car", (50, 10, 20, 20)),
    ("b", "bird", (0, 0, 60, 60)),
    ("c", "car", (5, 5, 10, 10)),
    ("c", "bus", (40, 20, 50, 30)),
]


def write_pictures(folder: Path, suffix: str = ".png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for n, (stem, size) in enumerate(SIZES.items()):
        Image.new("RGB", size, (40 * n, 90, 200 - 60 * n)).save(folder / f"{stem}{suffix}")


def coco() -> dict[str, Any]:
    stems = list(SIZES)
    return {
        "images": [
            {"id": 10 + n, "file_name": f"{s}.png", "width": w, "height": h}
            for n, (s, (w, h)) in enumerate(SIZES.items())
        ],
        "annotations": [
            {
                "id": n + 1,
                "image_id": 10 + stems.index(stem),
                "category_id": 5 + CLASSES.index(name),
                "bbox": list(box),
                "area": box[2] * box[3],
                "iscrowd": int(n == 3),
            }
            for n, (stem, name, box) in enumerate(BOXES)
        ],
        "categories": [{"id": 5 + n, "name": name} for n, name in enumerate(CLASSES)],
    }


def write_coco(folder: Path, content: Any = None) -> Path:
    """folder/annotations.json beside its pictures; `content` may be damaged on purpose."""
    write_pictures(folder)
    path = folder / "annotations.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content or coco()))
    return path


def voc_xml(stem: str) -> str:
    width, height = SIZES[stem]
    objects = "".join(
        f"<object><name>{name}</name><difficult>{int(n == 3)}</difficult><bndbox>"
        f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax>"
        "</bndbox></object>"
        for n, (own, name, (x, y, w, h)) in enumerate(BOXES)
        if own == stem
    )
    return (
        f"<annotation><filename>{stem}.png</filename><size><width>{width}</width>"
        f"<height>{height}</height><depth>3</depth></size>{objects}</annotation>"
    )


def write_voc(folder: Path, year: str = "VOC2007") -> Path:
    """A devkit of one year: a and b are trainval, c is test."""
    home = folder / year
    write_pictures(home / "JPEGImages")
    (home / "Annotations").mkdir(parents=True)
    for stem in SIZES:
        (home / "Annotations" / f"{stem}.xml").write_text(voc_xml(stem))
    lists = home / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "trainval.txt").write_text("a\nb\n")
    (lists / "test.txt").write_text("c\n")
    return folder


def write_yolo(folder: Path) -> Path:
    """a and b are train, c is val."""
    for part, stems in (("train", "ab"), ("val", "c")):
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for stem in stems:
            width, height = SIZES[stem]
            Image.new("RGB", (width, height)).save(folder / "images" / part / f"{stem}.png")
            lines = [
                f"{CLASSES.index(name)} {(x + w / 2) / width} {(y + h / 2) / height} "
                f"{w / width} {h / height}"
                for own, name, (x, y, w, h) in BOXES
                if own == stem
            ]
            (folder / "labels" / part / f"{stem}.txt").write_text("\n".join(lines) + "\n")
    names = "".join(f"  {n}: {name}\n" for n, name in enumerate(CLASSES))
    (folder / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames:\n{names}")
    return folder


def boxes_of(data: Any) -> set[tuple[str, str, tuple[float, ...]]]:
    """(picture's stem, class, box) of all boxes: the same for the same set in every format."""
    return {
        (Path(data.files[i]).stem, data.classes[c], tuple(round(v, 6) for v in box))
        for i, c, box in zip(
            data.boxes.image.tolist(),
            data.boxes.label.tolist(),
            data.boxes.xywh.tolist(),
            strict=True,
        )
    }


EXPECTED = {(stem, name, tuple(float(v) for v in box)) for stem, name, box in BOXES}
