"""The tiny data set of `helpers.tiny` as labelling tools export it, from their documented formats.

Boxes have no flags: none of these formats knows crowd or difficult.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from helpers.tiny import BOXES, CLASSES, SIZES, write_pictures


def cvat_xml(images: str = "") -> str:
    """CVAT for images 1.1; `images` is put after those of the tiny data set."""
    labels = "".join(f"<label><name>{name}</name><type>any</type></label>" for name in CLASSES)
    parts = []
    for n, (stem, (width, height)) in enumerate(SIZES.items()):
        boxes = "".join(
            f'<box label="{name}" source="manual" occluded="0" xtl="{x:.2f}" ytl="{y:.2f}" '
            f'xbr="{x + w:.2f}" ybr="{y + h:.2f}" z_order="0"></box>'
            for own, name, (x, y, w, h) in BOXES
            if own == stem
        )
        parts.append(
            f'<image id="{n}" name="{stem}.png" width="{width}" height="{height}">{boxes}</image>'
        )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<annotations><version>1.1</version><meta><task>'
        f"<name>bolts</name><labels>{labels}</labels></task></meta>{''.join(parts)}{images}"
        "</annotations>"
    )


def write_cvat(folder: Path) -> Path:
    write_pictures(folder / "images")
    (folder / "annotations.xml").write_text(cvat_xml())
    return folder


def _percentages(stem: str, box: tuple[int, ...]) -> dict[str, float]:
    (width, height), (x, y, w, h) = SIZES[stem], box
    return {"x": 100 * x / width, "y": 100 * y / height, "width": 100 * w / width,
            "height": 100 * h / height, "rotation": 0}  # fmt: skip


def label_studio() -> list[dict[str, Any]]:
    """Label Studio's JSON."""
    tasks = []
    for n, (stem, (width, height)) in enumerate(SIZES.items(), start=1):
        result = [
            {"original_width": width, "original_height": height, "image_rotation": 0,
             "value": {**_percentages(stem, box), "rectanglelabels": [name]}, "id": f"r{k}",
             "from_name": "label", "to_name": "image", "type": "rectanglelabels"}
            for k, (own, name, box) in enumerate(BOXES)
            if own == stem
        ]  # fmt: skip
        tasks.append(
            {"id": n, "data": {"image": f"/data/upload/1/0a1b2c3d-{stem}.png"},
             "annotations": [{"id": n, "was_cancelled": False, "result": result}],
             "predictions": [], "file_upload": f"0a1b2c3d-{stem}.png"}
        )  # fmt: skip
    return tasks


def label_studio_min() -> list[dict[str, Any]]:
    """Label Studio's JSON-MIN."""
    return [
        {"image": task["data"]["image"], "id": task["id"], "annotator": 1, "annotation_id": 1,
         "lead_time": 4.2,
         "label": [
             {**part["value"], "original_width": part["original_width"],
              "original_height": part["original_height"]}
             for part in task["annotations"][0]["result"]
         ]}
        for task in label_studio()
    ]  # fmt: skip


def write_label_studio(folder: Path, content: Any = None) -> Path:
    """The JSON beside the pictures, which have the names that they were uploaded with."""
    write_pictures(folder)
    (folder / "project-1.json").write_text(json.dumps(content or label_studio()))
    return folder


def fiftyone(metadata: bool = True) -> dict[str, Any]:
    """samples.json of a FiftyOneDataset."""
    samples = []
    for stem, (width, height) in SIZES.items():
        detections = [
            {"_id": {"$oid": f"{k:024x}"}, "_cls": "Detection", "attributes": {}, "tags": [],
             "label": name, "bounding_box": [x / width, y / height, w / width, h / height],
             "mask": None}
            for k, (own, name, (x, y, w, h)) in enumerate(BOXES)
            if own == stem
        ]  # fmt: skip
        about = {"_cls": "ImageMetadata", "width": width, "height": height, "num_channels": 3}
        samples.append(
            {"_id": {"$oid": "0" * 24}, "filepath": f"data/{stem}.png", "tags": [],
             "metadata": about if metadata else None, "_media_type": "image",
             "ground_truth": {"_cls": "Detections", "detections": detections}}
        )  # fmt: skip
    return {"samples": samples}


def write_fiftyone(folder: Path, metadata: bool = True) -> Path:
    write_pictures(folder / "data")
    (folder / "metadata.json").write_text('{"name": "bolts", "media_type": "image"}')
    (folder / "samples.json").write_text(json.dumps(fiftyone(metadata)))
    return folder


def _yolo_lines(stem: str) -> str:
    width, height = SIZES[stem]
    lines = [
        f"{CLASSES.index(name)} {(x + w / 2) / width} {(y + h / 2) / height} {w / width} "
        f"{h / height}\n"
        for own, name, (x, y, w, h) in BOXES
        if own == stem
    ]
    return "".join(lines)


def write_darknet(folder: Path, pictures: bool = True) -> Path:
    """CVAT's "YOLO 1.1"."""
    home = folder / "obj_train_data"
    home.mkdir(parents=True)
    if pictures:
        write_pictures(home)
    for stem in SIZES:
        (home / f"{stem}.txt").write_text(_yolo_lines(stem))
    (folder / "obj.names").write_text("\n".join(CLASSES))
    (folder / "obj.data").write_text("classes = 3\ntrain = data/train.txt\nnames = data/obj.names")
    (folder / "train.txt").write_text("".join(f"data/obj_train_data/{s}.png\n" for s in SIZES))
    return folder


def write_label_studio_yolo(folder: Path, pictures: bool = True) -> Path:
    """Label Studio's YOLO: its pictures have a prefix if they are exported too."""
    (folder / "labels").mkdir(parents=True)
    (folder / "images").mkdir()
    if pictures:
        write_pictures(folder / "images")
    for stem in SIZES:
        (folder / "labels" / f"{stem}.txt").write_text(_yolo_lines(stem))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    (folder / "notes.json").write_text('{"categories": [], "info": {"year": 2026}}')
    return folder


def write_labelimg(folder: Path, pictures: bool = True) -> Path:
    """labelImg's YOLO: all in one folder, which may be another one than that of the pictures."""
    folder.mkdir(parents=True)
    if pictures:
        write_pictures(folder)
    for stem in SIZES:
        (folder / f"{stem}.txt").write_text(_yolo_lines(stem))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return folder


def zipped(folder: Path, target: Path, inside: str = "") -> Path:
    """A folder as a .zip, without pictures if the folder has none; below `inside` in it."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, f"{inside}{path.relative_to(folder).as_posix()}")
    return target
