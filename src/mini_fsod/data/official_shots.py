"""The field's few-shot lists of images, turned into exactly K boxes.

The lists name images, not boxes, repeat images and hold too many or too few boxes; tools that fill
the gaps differently get different results. The four rules here give the same boxes everywhere.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Dataset, ImageId
from mini_fsod.data.shots import Shots, in_order
from mini_fsod.errors import UserError
from mini_fsod.files import open_regular
from mini_fsod.labels import LabelMap

# {shots: {class: [image ids]}} of one seed
Lists = Mapping[int, Mapping[str, Sequence[ImageId]]]


def voc_lists(seed: int) -> Lists:
    """The lists of seed 0 to 29 that travel inside the package; their public download is dead."""
    packed = (files("mini_fsod.data") / "official_voc.json.xz").read_bytes()
    return _of_seed(json.loads(lzma.decompress(packed))["lists"], seed, "the official VOC lists")


def lists_from_file(path: Path, seed: int) -> tuple[Lists, bool]:
    """A file in VOC's layout {seed: {K: {class: [id]}}} or COCO's {K: {class: [[set, id]]}}.

    Also tells whether it is COCO's: those lists name images of train and val alike.
    """
    layout = "Layouts: {seed: {K: {class: [image ids]}}} or {K: {class: [[set, image id]]}}."
    try:
        with open_regular(path) as source:
            content = json.loads(source.read().decode("utf-8-sig"))
        first = next(iter(next(iter(content.values())).values()))
        if isinstance(first, dict):
            return _of_seed(content, seed, str(path)), False
        if seed != 0:
            raise UserError(
                f"{path} holds the lists of one seed, 0, not of {seed}.", "Use --seed 0."
            )
        lists = {
            k: {name: [image for _, image in listed] for name, listed in part.items()}
            for k, part in content.items()
        }
        return _checked(lists), True
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).", "Check the path.") from None
    except (ValueError, AttributeError, TypeError, StopIteration, RecursionError):
        raise UserError(f"{path}: not a file of few-shot lists.", layout) from None


def _of_seed(content: Mapping[str, Any], seed: int, source: str) -> Lists:
    if str(seed) not in content:
        numbers = sorted(int(s) for s in content)
        raise UserError(f"{source}: no seed {seed}.", f"There are {numbers[0]} to {numbers[-1]}.")
    return _checked(content[str(seed)])


def _checked(part: Mapping[str, Mapping[str, Any]]) -> Lists:
    for listed in (listed for classes in part.values() for listed in classes.values()):
        if not isinstance(listed, list) or not {*map(type, listed)} <= {int, str}:
            raise ValueError(listed)
    return {int(k): classes for k, classes in part.items()}


def choose_shots(data: Dataset, labels: LabelMap, lists: Lists, shots: int, seed: int) -> Shots:
    """Exactly K boxes of every class by the four rules. `data` are the training images."""
    if shots not in lists:
        known = ", ".join(map(str, sorted(lists)))
        raise UserError(
            f"There are no official lists of {shots} shot{'s' * (shots != 1)}.",
            f"There are {known}.",
        )
    unlisted = [name for name in labels.classes if name not in lists[shots]]
    if unlisted:
        raise UserError(
            f"The lists do not know the classes {', '.join(unlisted)}.",
            "Take the data set they were made for, or draw shots without --official.",
        )
    place = {own: i for i, own in enumerate(data.ids)}
    listed = {own for name in labels.classes for own in lists[shots][name]}
    missing = sorted(str(own) for own in listed if own not in place)
    if missing:
        raise UserError(
            f"Images that the lists name are not in the data: {', '.join(missing[:5])}"
            f"{f' ... ({len(missing)} in all)' if len(missing) > 5 else ''}.",
            "Give the whole training set (VOC: 2007 and 2012 trainval; COCO: 2014 train and val).",
        )
    notes: list[str] = []
    chosen = {
        name: _class_boxes(data, place, lists, shots, seed, name, notes) for name in labels.classes
    }
    short = [f'"{name}" has {len(boxes)}' for name, boxes in chosen.items() if len(boxes) < shots]
    if short:
        raise UserError(
            f"Too few boxes for {shots} shot{'s' * (shots != 1)}: {', '.join(short)}.",
            "Ask for fewer shots, or give the whole training set.",
        )
    return Shots(chosen, tuple(notes))


def _class_boxes(
    data: Dataset,
    place: Mapping[ImageId, int],
    lists: Lists,
    shots: int,
    seed: int,
    name: str,
    notes: list[str],
) -> list[int]:
    """K boxes of a class, or all there are."""
    offsets = data.offsets
    usable = data.boxes.sound & ~(data.boxes.crowd | data.boxes.ignore)
    # a named split may have classes that a part of the data lacks
    usable &= data.boxes.label == (data.classes.index(name) if name in data.classes else -1)

    def boxes_in(images: Iterable[ImageId], difficult: bool) -> list[int]:
        return [
            b
            for own in dict.fromkeys(images)  # repeats count once, list order stays
            if own in place
            for b in range(offsets[place[own]], offsets[place[own] + 1])
            if usable[b] and bool(data.boxes.difficult[b]) == difficult
        ]

    # 1. the class's boxes of the listed images that are not difficult
    found = boxes_in(lists[shots][name], difficult=False)
    # 2. more than K: draw
    if len(found) > shots:
        return Random(f"{seed}/{shots}/{name}").sample(found, shots)
    # 3. fewer: the difficult ones of the same images, in order
    found = (found + boxes_in(lists[shots][name], difficult=True))[:shots]
    if len(found) == shots:
        return found
    # 4. still fewer: lists of larger K, then all other training images in id order
    larger = [own for k in sorted(lists) if k > shots for own in lists[k].get(name, ())]
    holders = {data.ids[int(i)] for i in np.unique(data.boxes.image[usable])}
    spare = boxes_in([*larger, *sorted(holders, key=in_order)], difficult=False)
    added = [b for b in spare if b not in found][: shots - len(found)]
    if len(found) + len(added) < shots:
        return found + added
    sources = ", ".join(sorted({str(data.ids[int(data.boxes.image[b])]) for b in added}))
    notes.append(
        f"{name}: the official list of seed {seed}, {shots} shot{'s' * (shots != 1)} repeats "
        f"an image and holds {len(found)} boxes; {len(added)} added from {sources}"
    )
    return found + added
