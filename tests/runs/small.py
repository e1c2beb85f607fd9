"""A data set and a configuration so small that a whole run takes a second or two.

Coloured shapes on grey, a class a colour: "red" and "green" are base, "blue, light" is novel.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import torch
from PIL import Image, ImageDraw

from mini_fsod.config.load import resolve
from mini_fsod.runs.data import Material

CPU = torch.device("cpu")
COLOURS = {"red": (200, 30, 30), "green": (30, 180, 30), "blue, light": (120, 160, 250)}
CLASSES = tuple(COLOURS)
NOVEL = CLASSES[2]
SIZES = ((64, 64), (96, 64), (64, 90), (72, 48))  # width, height: several canvases

SETTINGS = {
    "device": "cpu",
    "data.novel": json.dumps([NOVEL]),
    "data.metric": "voc",
    "detector.backbone": "resnet18-narrow",
    "detector.norm": "group",
    "detector.anchors": "[8, 16, 32, 64, 128]",
    "detector.channels": "16",
    "detector.width": "32",
    "detector.rpn_before": "60",
    "detector.rpn_after": "30",
    "detector.rpn_samples": "32",
    "detector.roi_samples": "32",
    "views.short": "[48, 64]",
    "views.long": "96",
    "views.test": "64",
    "base.iterations": "12",
    "base.batch": "4",
    "base.save_seconds": "0",
    "transfer.iterations": "25",
    "transfer.batch": "4",
    "transfer.save_seconds": "0",
    # those of a batch of 16: so few iterations must learn something
    "base.rate": "0.02",
    "transfer.rate": "0.001",
    "online.rate": "0.02",
    "tune.rate": "0.001",
}


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


def sets(data: Path, **changes: object) -> list[str]:
    """KEY=VALUE of the configuration; `base__iterations=3` changes a key."""
    values: dict[str, object] = {
        **SETTINGS,
        "data.root": data,
        "data.cache": data.parent / "cache",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return [f"{key}={value}" for key, value in values.items()]


def words(data: Path, out: Path, *more: object, **changes: object) -> list[str]:
    """The words of `mini run` behind `mini`, up to transfer unless `more` says otherwise; the
    configuration is an empty file.
    """
    config = data.parent / "small.yaml"
    config.touch()
    options = [word for text in sets(data, **changes) for word in ("--set", text)]
    last = [] if "--to" in more else ["--to", "transfer"]
    return ["run", str(config), "-o", str(out), *options, *map(str, more), *last]


def process(
    words: Sequence[str], before: str = "", timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`mini WORDS` in a process of its own, in which the lines `before` are run first."""
    return subprocess.run(
        _call(words, before),
        env=_one_thread(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def kill_soon(words: Sequence[str], file: Path, pause: float) -> None:
    """Begin `mini WORDS`, and kill it so many seconds after it has written this file anew: in its
    midst, however fast the machine is.
    """
    before = _stamp(file)
    with subprocess.Popen(_call(words), env=_one_thread(), stderr=subprocess.DEVNULL) as running:
        while _stamp(file) == before and running.poll() is None:
            sleep(0.005)
        sleep(pause)
        running.kill()
    assert running.returncode == -signal.SIGKILL


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _call(words: Sequence[str], before: str = "") -> list[str]:
    return [sys.executable, "-c", f"{before}\nfrom mini_fsod import cli\ncli.main()", *words]


def _one_thread() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def json_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def material(root: Path, device: torch.device = CPU, **changes: object) -> Material:
    """What a run of this data set works on."""
    source = root.parent / "small.yaml"
    source.touch()
    return Material(resolve(str(source), sets(root, **changes)), device)


def rewrite(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
