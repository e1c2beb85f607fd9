"""Write a data set, detections or a pool in the format of a labelling tool. Scores are kept."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import numpy as np

from mini_fsod.data.dataset import Dataset
from mini_fsod.data.pictures import drawn_size, picture_sizes
from mini_fsod.data.subsets import image_sets
from mini_fsod.data.text import shown
from mini_fsod.data.write import write_coco
from mini_fsod.errors import UserError
from mini_fsod.files import mode, write_bytes, write_json
from mini_fsod.labels import LabelMap

MADE_BY = "mini convert"
FORMATS = ("coco", "cvat", "label-studio", "fiftyone", "yolo", "voc")
NAMING_PICTURES = ("label-studio", "fiftyone", "yolo", "voc")  # have links or paths to pictures
SUFFIXES = {"coco": ".json", "cvat": ".xml", "label-studio": ".json"}  # the others are folders
NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
NAMESPACE = uuid.UUID("a2a1d1e4-6d33-4b53-9b0a-0d6f2f8b3c11")  # so that equal boxes have equal ids


@dataclass(frozen=True, slots=True)
class _Box:
    label: str
    xywh: tuple[float, float, float, float]
    score: float | None
    difficult: bool
    crowd: bool


def convert(data: Dataset, out: Path, to: str) -> None:
    """Write all images and boxes to `out`, which must be new.

    coco, cvat and label-studio are one file; fiftyone, yolo and voc a folder, in which yolo and voc
    get links to the pictures. Crowd boxes and boxes to ignore are left out of all but coco.
    """
    suffix = SUFFIXES.get(to, "")
    if suffix and out.suffix.lower() != suffix:
        raise UserError(f"{out}: {to} is a {suffix} file.", f"Name it {out}{suffix}.")
    if mode(out):
        raise UserError(f"{out}: exists already.", "Choose a new name.")
    if to in ("cvat", "voc"):
        _refuse_controls(data)
    if to != "coco":
        data = _with_sizes(data)
    _WRITERS[to](data, out)


def _with_sizes(data: Dataset) -> Dataset:
    """Sizes that the data does not declare, from the pictures."""
    sizes = data.sizes.copy()
    unknown = np.flatnonzero((sizes < 1).any(axis=1))
    paths = [data.path(i) for i in unknown.tolist()]
    for i, path, found in zip(unknown, paths, picture_sizes(paths), strict=True):
        if isinstance(found, Exception):
            raise UserError(
                f"{path}: {found}.",
                "Its size is needed: name the folder of the pictures with --root.",
            )
        sizes[i] = drawn_size(*found)
    return replace(data, sizes=sizes)


def _images(data: Dataset) -> Iterator[tuple[int, str, tuple[int, int], list[_Box]]]:
    """Index, file, size (width, height) and boxes of each image."""
    boxes, offsets = data.boxes, data.offsets
    usable = boxes.sound & ~boxes.ignore
    for i, file in enumerate(data.files):
        rows = [n for n in range(int(offsets[i]), int(offsets[i + 1])) if usable[n]]
        width, height = data.sizes[i].tolist()
        yield (
            i,
            file,
            (width, height),
            [
                _Box(
                    data.classes[int(boxes.label[n])],
                    tuple(boxes.xywh[n].tolist()),
                    float(boxes.score[n]) if boxes.score[n] >= 0 else None,
                    bool(boxes.difficult[n]),
                    bool(boxes.crowd[n]),
                )
                for n in rows
                if not boxes.crowd[n]
            ],
        )


def _write_coco(data: Dataset, out: Path) -> None:
    write_coco(out, data, LabelMap(data.classes, ()), {"description": MADE_BY})


def _write_cvat(data: Dataset, out: Path) -> None:
    """CVAT for images 1.1: upload it to a task with these images. The score is an attribute."""
    scored = bool((data.boxes.score >= 0).any())
    root = Element("annotations")
    SubElement(root, "version").text = "1.1"
    labels = SubElement(SubElement(SubElement(root, "meta"), "task"), "labels")
    for name in data.classes:
        label = SubElement(labels, "label")
        SubElement(label, "name").text = name
        attributes = SubElement(label, "attributes")
        if scored:
            attribute = SubElement(attributes, "attribute")
            settings = {"name": "score", "mutable": "False", "input_type": "text"}
            for key, value in {**settings, "default_value": "", "values": ""}.items():
                SubElement(attribute, key).text = value
    for i, file, (width, height), boxes in _images(data):
        about = {"id": str(i), "name": file, "width": str(width), "height": str(height)}
        image = SubElement(root, "image", about)
        for box in boxes:
            x, y, w, h = box.xywh
            corners = dict(zip(("xtl", "ytl", "xbr", "ybr"), (x, y, x + w, y + h), strict=True))
            shape = {"label": box.label, "source": "auto" if box.score is not None else "manual"}
            shape |= {"occluded": "0", "z_order": "0"}
            shape |= {key: f"{value:.3f}" for key, value in corners.items()}
            element = SubElement(image, "box", shape)
            if box.score is not None:
                SubElement(element, "attribute", {"name": "score"}).text = f"{box.score:.6f}"
    write_bytes(out, _xml(root))


def _write_label_studio(data: Dataset, out: Path) -> None:
    """Tasks to import. Boxes with scores are predictions, to be reviewed; others annotations."""
    tasks = []
    for i, file, (width, height), boxes in _images(data):
        regions: dict[str, list[Any]] = {"annotations": [], "predictions": []}
        for n, box in enumerate(boxes):
            x, y, w, h = box.xywh
            share = {"x": x / width, "y": y / height, "width": w / width, "height": h / height}
            region = {
                "id": _id(file, n)[:10],
                "type": "rectanglelabels",
                "from_name": "label",
                "to_name": "image",
                "original_width": width,
                "original_height": height,
                "image_rotation": 0,
                "value": {key: 100 * value for key, value in share.items()}
                | {"rotation": 0, "rectanglelabels": [box.label]},
            }
            kind = "annotations" if box.score is None else "predictions"
            regions[kind].append(region | ({} if box.score is None else {"score": box.score}))
        scores = [region["score"] for region in regions["predictions"]]
        task: dict[str, Any] = {"data": {"image": f"/data/local-files/?d={quote(file)}"}}
        if regions["annotations"] or not scores:
            task["annotations"] = [{"result": regions["annotations"]}]
        if scores:
            prediction = {"model_version": MADE_BY, "score": max(scores)}
            task["predictions"] = [{**prediction, "result": regions["predictions"]}]
        tasks.append(task | {"id": i + 1})
    lines = ",\n ".join(json.dumps(task, ensure_ascii=False, allow_nan=False) for task in tasks)
    write_bytes(out, f"[{lines}]\n".encode())


def _write_fiftyone(data: Dataset, out: Path) -> None:
    """FiftyOneDataset: from_dir(dataset_dir=OUT, dataset_type=fo.types.FiftyOneDataset).

    Boxes with scores are in the field predictions, others in ground_truth.
    """
    scored = bool((data.boxes.score >= 0).any())
    field = "predictions" if scored else "ground_truth"
    sets = {int(i): name for name, part in data.subsets.items() for i in part}
    samples = []
    for i, file, (width, height), boxes in _images(data):
        detections = []
        for n, box in enumerate(boxes):
            x, y, w, h = box.xywh
            share = [x / width, y / height, w / width, h / height]
            detection = {"_id": {"$oid": _id(file, n)[:24]}, "_cls": "Detection"}
            detection |= {"attributes": {}, "tags": [], "label": box.label}
            confidence = {} if box.score is None else {"confidence": box.score}
            detections.append(detection | {"bounding_box": share} | confidence)
        samples.append(
            {
                "filepath": os.path.relpath(data.path(i), out),
                "tags": [sets[i]] if i in sets else [],
                "_media_type": "image",
                "metadata": {"_cls": "ImageMetadata", "width": width, "height": height},
                field: {"_cls": "Detections", "detections": detections},
            }
        )
    write_json(out / "metadata.json", {"name": out.name, "media_type": "image", "info": {}})
    write_json(out / "samples.json", {"samples": samples})


def _write_yolo(data: Dataset, out: Path) -> None:
    """data.yaml, a list of pictures for each image set, labels/, and images/ with links."""
    _refuse_scores(data, "yolo")
    numbers = {name: n for n, name in enumerate(data.classes)}
    for i, file, (width, height), boxes in _images(data):
        lines = []
        for box in boxes:
            x, y, w, h = box.xywh
            centre = ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
            lines.append(" ".join([str(numbers[box.label]), *(f"{v:.8f}" for v in centre)]))
        label = out / "labels" / PurePosixPath(file).with_suffix(".txt")
        write_bytes(label, "".join(f"{line}\n" for line in lines).encode())
        _link(out / "images" / file, data.path(i))
    parts = {name: data.subsets[name] for name in image_sets(data) if name in data.subsets}
    lists = parts or {"train": np.arange(len(data))}
    for name, part in lists.items():
        files = "".join(f"./images/{data.files[i]}\n" for i in part.tolist())
        write_bytes(out / f"{name}.txt", files.encode())
    text = f"path: .\n{''.join(f'{name}: {name}.txt{chr(10)}' for name in lists)}names:\n"
    names = "".join(f"  {n}: {json.dumps(c, ensure_ascii=False)}\n" for c, n in numbers.items())
    write_bytes(out / "data.yaml", (text + names).encode())


def _write_voc(data: Dataset, out: Path) -> None:
    """Annotations/, ImageSets/Main/, and JPEGImages/ with links. Pixels count from 1.

    Datumaro, and so CVAT, takes other classes than VOC's from labelmap.txt alone.
    """
    _refuse_scores(data, "voc")
    stems = [PurePosixPath(file).stem for file in data.files]
    if len(set(stems)) < len(stems):
        raise UserError(
            "VOC needs a different name for each picture, even in different folders.",
            "Rename them, or convert to coco or yolo.",
        )
    for i, file, (width, height), boxes in _images(data):
        root = Element("annotation")
        SubElement(root, "folder").text = "JPEGImages"
        SubElement(root, "filename").text = PurePosixPath(file).name
        size = SubElement(root, "size")
        for key, value in (("width", width), ("height", height), ("depth", 3)):
            SubElement(size, key).text = str(value)
        for box in boxes:
            entry = SubElement(root, "object")
            SubElement(entry, "name").text = box.label
            SubElement(entry, "difficult").text = str(int(box.difficult))
            corners = SubElement(entry, "bndbox")
            x, y, w, h = box.xywh
            values = {"xmin": x + 1, "ymin": y + 1, "xmax": x + w, "ymax": y + h}
            for key, edge in values.items():
                SubElement(corners, key).text = f"{edge:.2f}"
        write_bytes(out / "Annotations" / f"{stems[i]}.xml", _xml(root))
        _link(out / "JPEGImages" / PurePosixPath(file).name, data.path(i))
    lists = dict(data.subsets) or {"train": np.arange(len(data))}
    for name, part in lists.items():
        lines = "".join(f"{stems[i]}\n" for i in part.tolist())
        write_bytes(out / "ImageSets" / "Main" / f"{PurePosixPath(name).name}.txt", lines.encode())
    if not any(":" in name for name in data.classes):  # it separates the columns there
        lines = "".join(f"{name}:::\n" for name in ("background", *data.classes))
        head = "# label:color_rgb:parts:actions\n"
        write_bytes(out / "labelmap.txt", (head + lines).encode())


_WRITERS: dict[str, Callable[[Dataset, Path], None]] = {
    "coco": _write_coco, "cvat": _write_cvat, "label-studio": _write_label_studio,
    "fiftyone": _write_fiftyone, "yolo": _write_yolo, "voc": _write_voc,
}  # fmt: skip


def _refuse_controls(data: Dataset) -> None:
    for name in (*data.classes, *data.files):
        if NOT_IN_XML.search(name):
            raise UserError(
                f"{shown(name)}: has a control character, which XML cannot hold.", "Rename it."
            )


def _refuse_scores(data: Dataset, to: str) -> None:
    if (data.boxes.score >= 0).any():
        raise UserError(
            f"{to} cannot store scores: detections would become annotations.",
            "Convert to coco, cvat, label-studio or fiftyone.",
        )


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target.absolute(), link.parent.absolute()))


def _xml(root: Element) -> bytes:
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _id(file: str, n: int) -> str:
    """32 hexadecimal digits, the same for the same box."""
    return uuid.uuid5(NAMESPACE, f"{file} {n}").hex
