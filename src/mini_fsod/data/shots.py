"""The balanced K-shot set: exactly K boxes of every class, the same on every computer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, Floats, ImageId, Ints
from mini_fsod.data.subsets import NO_ROWS, boxes_by_class, is_of, is_target, shared_images
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap


@dataclass(frozen=True, slots=True)
class ChosenShots:
    """Indices of the chosen boxes of each class, and notes."""

    chosen: Mapping[str, list[int]]
    notes: tuple[str, ...] = ()

    @property
    def boxes(self) -> Ints:
        return np.array(sorted(b for part in self.chosen.values() for b in part), dtype=np.int64)


def id_order(image_id: ImageId) -> tuple[int, str]:
    """Sort key of image ids: numbers by value, names alphabetically."""
    return (image_id, "") if isinstance(image_id, int) else (0, image_id)


def can_be_a_shot(data: Dataset) -> Bools:
    """(B,) boxes with area that are not crowd, ignore or difficult."""
    boxes = data.boxes
    return boxes.sound & ~(boxes.crowd | boxes.ignore | boxes.difficult)


def draw_shots(
    data: Dataset,
    labels: LabelMap,
    shots: int,
    seed: int,
    part: str | None = None,
    whole: Dataset | None = None,
    fewer: bool = False,
) -> ChosenShots:
    """K boxes of every class (`can_be_a_shot`), from as many images as possible.

    The images of a class are shuffled by seed and class name alone, and give one box each, round
    after round. So K shots contain those of a smaller K, and one crowded picture does not give them
    all. `part` is the name of the image set that `data` is, `whole` the data set it is a part of;
    an error says where more boxes are. `fewer`: all boxes of a class that has fewer than K.
    """
    plain = can_be_a_shot(data)
    chosen, short, found = {}, {}, boxes_by_class(data)
    for name in labels.classes:
        of_image: dict[ImageId, list[int]] = {}
        for b in (b for b in found.get(name, NO_ROWS).tolist() if plain[b]):
            of_image.setdefault(data.ids[int(data.boxes.image[b])], []).append(b)
        count = sum(len(part) for part in of_image.values())
        if count < shots and not fewer:
            short[name] = count
            continue
        rng = Random(f"{seed}/{name}")
        # sorted, so that the order of records in the file has no effect
        images = sorted(of_image, key=id_order)
        rng.shuffle(images)
        queues = [rng.sample(of_image[id_], len(of_image[id_])) for id_ in images]
        rounds = max((len(q) for q in queues), default=0)
        chosen[name] = [q[r] for r in range(rounds) for q in queues if r < len(q)][:shots]
    if short:
        elsewhere = {n: {} if whole is None else other_boxes(whole, data, n) for n in short}
        raise _too_few(labels, shots, short, part, elsewhere)
    return ChosenShots(chosen)


def _too_few(
    labels: LabelMap,
    shots: int,
    short: Mapping[str, int],
    part: str | None,
    elsewhere: Mapping[str, Mapping[str, int]],
) -> UserError:
    """Which classes have too few boxes, and where more are."""
    counts = []
    for name, count in short.items():
        listed = ", ".join(f"{n:,} in {other}" for other, n in elsewhere[name].items())
        counts.append(f'"{name}" has {count}' + (f" (others: {listed})" if listed else ""))
    among = "" if part is None else f' in the image set "{part}"'
    what = f"Too few boxes for {shots} shot{'s' * (shots != 1)}{among}: {', '.join(counts)}."
    fix = (
        "Ask for fewer shots, or annotate more. Boxes that are crowd, ignore, difficult or empty "
        "do not count."
    )
    if any(elsewhere.values()):
        fix += (
            " Or draw from another image set that is not scored: --subset, or shots.subset in the "
            "configuration."
        )
    if {*short} & {*labels.novel}:
        fix += " Boxes of a new class may be in a file or data set of their own: shots.file."
    return UserError(what, fix)


def other_boxes(whole: Dataset, data: Dataset, name: str) -> dict[str, int]:
    """{image set: number of plain boxes of a class in images that are not in `data`}, if any."""
    wanted = can_be_a_shot(whole) & is_of(whole, (name,))
    wanted &= ~shared_images(whole, data)[whole.boxes.image]
    boxes = np.bincount(whole.boxes.image[wanted], minlength=len(whole))
    # "VOC2007/test" is a part of "test"
    counts = {n: int(boxes[i].sum()) for n, i in whole.subsets.items() if "/" not in n}
    return {n: count for n, count in counts.items() if count}


def balanced_set(data: Dataset, shots: ChosenShots) -> Dataset:
    """The images of the chosen boxes, with these boxes only.

    An image chosen for several classes appears once, with all its chosen boxes.
    """
    only = data.with_boxes(data.boxes.take(shots.boxes))
    return only.select(np.unique(only.boxes.image))


def box_sides(data: Dataset, short: int, long: int) -> Floats:
    """(B,) square root of each box's area, in a picture resized to a side `short`, at most `long`.

    NaN where a picture's size is not known.
    """
    sizes = data.sizes[data.boxes.image]  # (B, 2)
    known = np.asarray((sizes > 0).all(axis=1))
    sides = np.sort(np.where(known[:, None], sizes, 1), axis=1)  # (B, 2) short, long
    scale = np.minimum(short / sides[:, 0], long / sides[:, 1])
    width, height = data.boxes.xywh[:, 2:].T
    return np.where(known, np.sqrt(width) * np.sqrt(height) * scale, np.nan)


def tiny_shots(
    sample: Dataset, names: tuple[str, ...], short: int, long: int, least: float
) -> list[str]:
    """A warning for each class at least half of whose shots have a side below `least`."""
    sample = sample.with_boxes(sample.boxes.take(is_target(sample)))
    boxes, tiny = sample.boxes, box_sides(sample, short, long) < least
    lines, by_class = [], boxes_by_class(sample)
    for name in names:
        of_class = by_class.get(name, NO_ROWS)
        found = of_class[tiny[of_class]].tolist()
        if not found or 2 * len(found) < len(of_class):
            continue
        examples = ", ".join(
            f"{sample.files[int(boxes.image[b])]} {boxes.xywh[b, 2]:.0f} x {boxes.xywh[b, 3]:.0f}"
            for b in found[:3]
        )
        lines.append(
            f"{name}: {len(found)} of {len(of_class)} shot{'s' * (len(of_class) != 1)} smaller "
            f"than {least:.0f} pixels at the detector's scale (in the picture: {examples}"
            f"{', ...' * (len(found) > 3)}); larger ones train better"
        )
    return lines


def sample_digest(data: Dataset) -> str:
    """SHA-256 of the class, image id and box of every shot, in sorted order."""
    boxes = data.boxes
    lines = sorted(
        f"{data.classes[label]}\t{data.ids[image]}\t" + " ".join(f"{v:.2f}" for v in box)
        for label, image, box in zip(
            boxes.label.tolist(), boxes.image.tolist(), boxes.xywh.tolist(), strict=True
        )
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
