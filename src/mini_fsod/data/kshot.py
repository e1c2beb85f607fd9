"""The balanced K-shot set: exactly K boxes of every class, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, ImageId, Ints
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap


@dataclass(frozen=True, slots=True)
class Shots:
    """The chosen boxes (indices into the data set's), class by class, and what was unusual."""

    chosen: Mapping[str, list[int]]
    notes: tuple[str, ...] = ()

    @property
    def boxes(self) -> Ints:
        return np.array(sorted(b for part in self.chosen.values() for b in part), dtype=np.int64)


def in_order(own: ImageId) -> tuple[int, str]:
    """Sort key of image ids: numbers by value, names by letter."""
    return (own, "") if isinstance(own, int) else (0, own)


def is_plain(data: Dataset) -> Bools:
    """(B,) boxes with area that are not crowd, ignore or difficult."""
    boxes = data.boxes
    return data.boxes.sound & ~(boxes.crowd | boxes.ignore | boxes.difficult)


def draw(data: Dataset, labels: LabelMap, shots: int, seed: int) -> Shots:
    """K plain boxes of every class, from as many images as there are.

    The images of a class are put in an order that depends on seed and class alone, and give one box
    each, round after round. So a sample of more shots holds the one of fewer, and a crowded picture
    does not fill it alone.
    """
    plain = is_plain(data)
    chosen, short = {}, []
    for name in labels.classes:
        of_image: dict[ImageId, list[int]] = {}
        label = data.classes.index(name) if name in data.classes else -1
        for b in np.flatnonzero(plain & (data.boxes.label == label)).tolist():
            of_image.setdefault(data.ids[int(data.boxes.image[b])], []).append(b)
        count = sum(len(part) for part in of_image.values())
        if count < shots:
            short.append(f'"{name}" has {count}')
            continue
        rng = Random(f"{seed}/{name}")
        # sorted, so that the order of records in the file does not matter
        images = sorted(of_image, key=in_order)
        rng.shuffle(images)
        queues = [rng.sample(of_image[own], len(of_image[own])) for own in images]
        rounds = max(len(q) for q in queues)
        chosen[name] = [q[r] for r in range(rounds) for q in queues if r < len(q)][:shots]
    if short:
        raise UserError(
            f"Too few boxes for {shots} shot{'s' * (shots != 1)}: {', '.join(short)}.",
            "Ask for fewer shots, or annotate more. Crowd, ignore, difficult and empty boxes "
            "do not count.",
        )
    return Shots(chosen)


def balanced_set(data: Dataset, shots: Shots) -> Dataset:
    """The chosen boxes alone; an image chosen for several classes is one record with all of them.

    Boxes that were not chosen are no annotations of the record.
    """
    only = data.with_boxes(data.boxes.take(shots.boxes))
    return only.select(np.unique(only.boxes.image))


def fingerprint(data: Dataset) -> str:
    """SHA-256 of a sample: class, image and box of each, in an order that no tool can change."""
    boxes = data.boxes
    lines = sorted(
        f"{data.classes[label]}\t{data.ids[image]}\t" + " ".join(f"{v:.2f}" for v in box)
        for label, image, box in zip(
            boxes.label.tolist(), boxes.image.tolist(), boxes.xywh.tolist(), strict=True
        )
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
