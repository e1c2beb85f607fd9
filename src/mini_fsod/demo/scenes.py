"""Draw the scenes of the demo data set and write them as COCO JSON with images.

A scene is a crop of a photograph, a few clutter strokes, then one to five digits that may overlap a
little. Each has its own seed, so scene 17 is the same in a small set and a large one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from glob import escape
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from mini_fsod.demo.digits import (
    CLASSES,
    INK,
    LABELS,
    NOVEL,
    Digit,
    Material,
    background,
    handwritten,
    material,
)
from mini_fsod.errors import UserError
from mini_fsod.files import real

RECIPE = 1  # increase it whenever a scene changes, to distinguish old sets from new ones
PARTS = {"train": (1000, 1), "shots": (150, 100_001), "test": (250, 200_001)}  # scenes, first id
LEAST = {"shots": 50}  # at any scale: five boxes of each class, since the classes take turns

HOW_MANY = ((1, 12), (2, 24), (3, 28), (4, 22), (5, 14))  # digits in a scene, weight
NOVEL_SCENES = 0.44  # share of train scenes with a novel digit beside base ones
MOST_IOU = 0.2  # between the boxes of two digits
MOST_INSIDE = 0.4  # share of the smaller box inside the other one
MOST_HIDDEN = 0.15  # share of a digit's ink under all later digits together

Rgb = tuple[int, int, int]
Record = dict[str, Any]
Box = tuple[int, int, int, int]  # left, top, right, bottom; the last two exclusive


@dataclass(slots=True, eq=False)
class Scene:
    """A picture with the strokes and digits drawn on it so far."""

    picture: Image.Image
    owner: npt.NDArray[np.int8]  # (H, W) index of the digit whose ink is on top; -1 for none
    digits: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    ink: list[int] = field(default_factory=list)  # pixels of ink of each digit, hidden ones too
    strokes: list[tuple[Box, Rgb]] = field(default_factory=list)  # everything drawn


def draw_scene(sources: Material, part: str, number: int, seed: int) -> Scene:
    """Scene `number` (from 0) of a part."""
    rng = random.Random(f"mini demo {seed} {part} {number}")
    picture = background(rng, rng.choice(sources.photographs))
    scene = Scene(picture, np.full((picture.height, picture.width), -1, dtype=np.int8))
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        _add_clutter(rng, scene)
    for digit in choose_digits(rng, part, number):
        _add_digit(rng, scene, digit, rng.choice(sources.digits[digit]))
    return scene


def choose_digits(rng: random.Random, part: str, number: int) -> list[int]:
    """Digits of a scene. Train: mostly base digits, in some scenes with one or two novel ones.
    Shots and test: all ten in turn, so that even a few scenes have every class."""
    count = rng.choices(*zip(*HOW_MANY, strict=True))[0]
    if part != "train":
        return [number % len(CLASSES)] + [rng.randrange(len(CLASSES)) for _ in range(count - 1)]
    base = [i for i, name in enumerate(CLASSES) if name not in NOVEL]
    novel = [i for i, name in enumerate(CLASSES) if name in NOVEL]
    few = 0
    if rng.random() < NOVEL_SCENES:
        count = max(count, 2)
        few = 2 if count > 2 and rng.random() < 0.25 else 1
    chosen = rng.choices(novel, k=few) + rng.choices(base, k=count - few)
    rng.shuffle(chosen)
    return chosen


def _ink_colour(rng: random.Random, scene: Scene, box: Box) -> Rgb:
    """A colour that contrasts with the box's background, sometimes barely.

    It also differs from the strokes in the box, so that touching digits stay separate.
    """
    grey = np.asarray(scene.picture.crop(box).convert("L"), dtype=np.int64)
    mean = int(grey.sum()) / grey.size
    spread = max(int((grey * grey).sum()) / grey.size - mean * mean, 0) ** 0.5
    wanted = rng.uniform(50, 66) if rng.random() < 0.2 else rng.uniform(72, 150)
    step = max(wanted, 34 + 1.1 * spread)  # a busy photograph swallows faint ink
    goals = [goal for goal in (mean - step, mean + step) if 0 <= goal <= 255]
    goals = goals or [255.0 * (mean < 128)]
    near = [colour for other, colour in scene.strokes if _shared(box, other)]
    colours = [_colour_of_light(rng, rng.choice(goals)) for _ in range(8)]
    return max(colours, key=lambda c: min([_colour_distance(c, other) for other in near] + [120]))


def _colour_of_light(rng: random.Random, light: float) -> Rgb:
    """A random colour, made darker or paler to have this lightness (0 to 255)."""
    colour = [rng.uniform(0, 255) for _ in range(3)]
    now = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    if now > light:
        r, g, b = (round(c * light / now) for c in colour)
    else:
        r, g, b = (round(c + (255 - c) * (light - now) / (255 - now)) for c in colour)
    return r, g, b


def _colour_distance(a: Rgb, b: Rgb) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


def _add_clutter(rng: random.Random, scene: Scene) -> None:
    """Draw one stroke as thick as a digit's: a long curve, a squiggle, a dash or dots.

    Short upright strokes are avoided: they would look like ones.
    """
    width, height = scene.picture.size
    x, y = rng.uniform(0, width), rng.uniform(0, height)
    kind = rng.choice(("curve", "curve", "squiggle", "dash", "dots"))
    pen = rng.uniform(4, 13) if kind == "dots" else rng.uniform(1.5, 6)
    steps = [i / 90 for i in range(91)]
    if kind == "curve":  # a quadratic Bezier curve
        u, v, p, q = (rng.uniform(-0.2, 1.2) * side for side in (width, height) * 2)
        weights = [((1 - t) ** 2, 2 * t * (1 - t), t * t) for t in steps]
        path = [(a * x + b * u + c * p, a * y + b * v + c * q) for a, b, c in weights]
    elif kind == "squiggle":
        length, swing, slope = rng.uniform(40, 110), rng.uniform(3, 11), rng.uniform(-0.5, 0.5)
        waves, hurry, fade = rng.uniform(1.5, 4.5), rng.uniform(-0.5, 0.5), rng.uniform(-0.8, 0.8)
        path = []
        for t in steps:
            wave = swing * (1 + fade * (2 * t - 1)) * sin(2 * pi * waves * t * (1 + hurry * t))
            path.append((x + length * (t - 0.5), y + slope * length * (t - 0.5) + wave))
    elif kind == "dash":
        length, angle = rng.uniform(18, 60), rng.uniform(-0.5, 0.5)
        bow = rng.uniform(-0.2, 0.2) * length
        path = [
            (x + length * t * cos(angle), y + length * t * sin(angle) + bow * t * t)
            for t in (step - 0.5 for step in steps)
        ]
    else:
        path = [
            (x + rng.uniform(-40, 40), y + rng.uniform(-40, 40)) for _ in range(rng.randint(1, 4))
        ]
    fine = 3  # drawn enlarged, then reduced, for smooth edges
    mask = Image.new("L", (width * fine, height * fine))
    canvas, r = ImageDraw.Draw(mask), fine * pen / 2
    points = [(fine * px, fine * py) for px, py in path]
    if kind != "dots":
        canvas.line(points, fill=255, width=round(2 * r), joint="curve")
    for px, py in points if kind == "dots" else (points[0], points[-1]):
        canvas.ellipse([px - r, py - r, px + r, py + r], fill=255)
    mask = mask.reduce(fine)
    box = mask.getbbox()
    if box:
        strength = rng.uniform(0.7, 1.0)
        colour = _ink_colour(rng, scene, box)
        scene.picture.paste(colour, (0, 0), mask.point(lambda value: value * strength))
        scene.strokes.append((box, colour))


def _add_digit(rng: random.Random, scene: Scene, digit: int, image: Digit) -> None:
    """Draw one digit where it hides no other; leave it out if there is no such position."""
    height = round(20 * (66 / 20) ** rng.random())
    mask = handwritten(rng, image, height)
    outlined = rng.random() < 0.12
    shape = mask.filter(ImageFilter.MaxFilter(3 if height < 40 else 5)) if outlined else mask
    ink = np.asarray(shape) >= INK
    position = _find_position(rng, scene, ink)
    if position is None:
        return
    x, y = position
    scene.owner[y : y + shape.height, x : x + shape.width][ink] = len(scene.digits)
    scene.digits.append(digit)
    scene.boxes.append(_tight(ink, x, y))
    scene.ink.append(int(ink.sum()))

    picture, strength = scene.picture, rng.uniform(0.86, 1.0)
    # With the mask's margin: the digit must contrast with its surroundings too.
    around = (x, y, x + shape.width, y + shape.height)
    colour = _ink_colour(rng, scene, around)
    scene.strokes.append((around, colour))
    if rng.random() < 0.15:
        shadow = ImageChops.offset(mask, 2, 2).filter(ImageFilter.GaussianBlur(1.2))
        picture.paste((0, 0, 0), (x, y), shadow.point(lambda value: value * 0.45))
    if outlined:
        edge = 245 if sum(colour) < 380 else 12
        picture.paste((edge, edge, edge), (x, y), shape)
    picture.paste(colour, (x, y), mask.point(lambda value: value * strength))


def _find_position(
    rng: random.Random, scene: Scene, ink: npt.NDArray[np.bool_]
) -> tuple[int, int] | None:
    """Left and top for this (h, w) ink: all of it in the picture, little of it on other digits."""
    height, width = ink.shape
    box = _tight(ink, 0, 0)
    for _ in range(40):
        x = rng.randint(0, scene.picture.width - width)
        y = rng.randint(0, scene.picture.height - height)
        moved = (box[0] + x, box[1] + y, box[2] + x, box[3] + y)
        if any(_too_close(moved, other) for other in scene.boxes):
            continue
        after = scene.owner.copy()
        after[y : y + height, x : x + width][ink] = -1
        visible = [int((after == k).sum()) for k in range(len(scene.digits))]
        if all(v >= (1 - MOST_HIDDEN) * n for v, n in zip(visible, scene.ink, strict=True)):
            return x, y
    return None


def _tight(ink: npt.NDArray[np.bool_], x: int, y: int) -> Box:
    """The box of the ink whose array starts at x, y."""
    columns, rows = np.flatnonzero(ink.any(axis=0)), np.flatnonzero(ink.any(axis=1))
    return x + int(columns[0]), y + int(rows[0]), x + int(columns[-1]) + 1, y + int(rows[-1]) + 1


def _shared(a: Box, b: Box) -> int:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0) * max(height, 0)


def _too_close(a: Box, b: Box) -> bool:
    shared = _shared(a, b)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return shared > MOST_IOU * (sum(areas) - shared) or shared > MOST_INSIDE * min(areas)


def write_demo_data(
    out: Path,
    scale: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Write the embedded data set to `out`; False if it exists there already.

    `out/annotations/{train,shots,test}.json` are COCO files with `file_name`s relative to `out`,
    and with all boxes, novel ones too. `scale` multiplies the number of scenes, but there are
    always enough for five shots of each class; `progress(done, total)` is called after each one.
    The set is written beside `out` and renamed when complete.
    """
    if not 0 < scale <= 50:
        what = f"The demo data cannot have {scale:g} times as many scenes."
        raise UserError(what, "Use 0 < scale <= 50.")
    counts = {
        part: max(LEAST.get(part, 1), round(scenes * scale)) for part, (scenes, _) in PARTS.items()
    }
    fingerprint = _fingerprint(seed, counts)
    out = real(out)
    partial = out.parent / f".{out.name}.{os.getpid()}.partial"
    try:
        if _is_complete(out, fingerprint, counts):
            return False
        _remove_leftovers(out)
        (partial / "annotations").mkdir(parents=True)
        done = 0
        for part, count in counts.items():
            images: list[Record] = []
            boxes: list[Record] = []
            for record, records in _write_pictures(partial, part, count, seed):
                images.append(record)
                boxes += records
                done += 1
                if progress:
                    progress(done, sum(counts.values()))
            coco = {
                "info": _info(part, boxes, count) | {"fingerprint": fingerprint},
                "images": images,
                "annotations": boxes,
                "categories": [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)],
            }
            text = json.dumps(coco) + "\n"
            (partial / f"annotations/{part}.json").write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        what = f"The demo data cannot be written to {out}: {error}."
        raise UserError(what, "Give another folder.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def _remove_leftovers(out: Path) -> None:
    """Unfinished demo data of processes that were killed, by the id in its name."""
    for partial in out.parent.glob(f".{escape(out.name)}.*.partial"):
        try:
            os.kill(int(partial.name.split(".")[-2]), 0)
        except ProcessLookupError:
            shutil.rmtree(partial, ignore_errors=True)
        except (ValueError, OverflowError, OSError):
            continue  # not ours, or of another user's process


def _write_pictures(
    folder: Path, part: str, count: int, seed: int
) -> Iterator[tuple[Record, list[Record]]]:
    """Write the scenes of a part into `folder / part`; yields COCO records of image and boxes."""
    sources = material(part)
    (folder / part).mkdir()
    for number in range(count):
        scene = draw_scene(sources, part, number, seed)
        name, image_id = f"{part}/{number + 1:05d}.jpg", PARTS[part][1] + number
        scene.picture.save(folder / name, quality=92)
        width, height = scene.picture.size
        boxes: list[Record] = [
            {
                "id": 10 * image_id + k,
                "image_id": image_id,
                "category_id": digit + 1,
                "bbox": [left, top, right - left, bottom - top],
                "area": (right - left) * (bottom - top),
                "iscrowd": 0,
            }
            for k, digit in enumerate(scene.digits)
            for left, top, right, bottom in [scene.boxes[k]]
        ]
        yield {"id": image_id, "file_name": name, "width": width, "height": height}, boxes


def _info(part: str, boxes: list[Record], images: int) -> Record:
    labels = [box["category_id"] - 1 for box in boxes]
    return {
        "description": f"Handwritten digits on photographs ({part}), by mini demo-data",
        "label_map": LABELS.to_json(),
        "counts": {
            "images": images,
            "boxes": len(boxes),
            "boxes_by_class": {name: labels.count(i) for i, name in enumerate(CLASSES)},
        },
    }


def _fingerprint(seed: int, counts: dict[str, int]) -> str:
    recipe = json.dumps([RECIPE, seed, counts, CLASSES, NOVEL])
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def _is_complete(out: Path, fingerprint: str, counts: dict[str, int]) -> bool:
    """Whether `out` holds this set; UserError if it holds anything else."""
    fix = "Give a new or empty folder, or delete this one first."
    if not out.exists():
        return False
    if not out.is_dir():
        raise UserError(f"{out} is a file, not a folder.", fix)
    if not any(out.iterdir()):
        return False
    try:
        info = json.loads((out / "annotations/train.json").read_text(encoding="utf-8"))["info"]
        found = info["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{out} is not empty and holds no demo data.", fix) from None
    if found != fingerprint:
        raise UserError(f"{out} holds demo data of another size, seed or version.", fix)
    for part, count in counts.items():
        pictures = sum(1 for _ in (out / part).glob("*.jpg"))
        if pictures != count or not (out / f"annotations/{part}.json").is_file():
            raise UserError(f"{out} holds demo data without some of its {part} files.", fix)
    return True
