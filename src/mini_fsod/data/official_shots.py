"""Published few-shot lists of images, turned into exactly K boxes per class.

The lists name images, not boxes: some images are repeated, and many have more or fewer than K
boxes. Tools that resolve this differently get different results.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from mini_fsod.data.dataset import Dataset, ImageId
from mini_fsod.data.shots import ChosenShots, id_order
from mini_fsod.data.subsets import is_of
from mini_fsod.data.text import read_text
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap
from mini_fsod.limits import LISTS_BYTES

# {shots: {class: [image ids]}} of one seed
Lists = Mapping[int, Mapping[str, Sequence[ImageId]]]


def official_lists(source: str, seed: int) -> tuple[Lists, bool]:
    """Lists of `voc`, of `coco` or of a file, and whether they name images of all image sets, as
    COCO's do.
    """
    if source == "voc":
        return voc_lists(seed), False
    if source == "coco":
        return _of_coco(_in_package("coco")["lists"], seed, "official COCO lists"), True
    return lists_from_file(Path(source), seed)


def voc_lists(seed: int) -> Lists:
    """The VOC lists of a seed, 0 to 29. They are in the package: the public download is gone."""
    return _of_seed(_in_package("voc")["lists"], seed, "official VOC lists")


def coco_test_images() -> frozenset[int]:
    """The ids of the field's 5,000 test images, all of val2014."""
    return frozenset(_in_package("coco")["test"])


def _in_package(name: str) -> dict[str, Any]:
    packed = (files("mini_fsod.data") / f"official_{name}.json.xz").read_bytes()
    content: dict[str, Any] = json.loads(lzma.decompress(packed))
    return content


def lists_from_file(path: Path, seed: int) -> tuple[Lists, bool]:
    """A file like VOC's, {seed: {K: {class: [id]}}}, or COCO's, {K: {class: [[set, id]]}}.

    Also returns whether it is COCO's: its lists name images of both train and val.
    """
    try:
        content = json.loads(read_text(path, LISTS_BYTES), object_pairs_hook=_unique)
        first = next(iter(next(iter(content.values())).values()))
        if isinstance(first, dict):
            return _of_seed(content, seed, str(path)), False
        return _of_coco(content, seed, str(path)), True
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).", "Check the path.") from None
    except (ValueError, AttributeError, TypeError, StopIteration, RecursionError):
        raise UserError(
            f"{path}: not a file of few-shot lists.",
            "Write {seed: {K: {class: [image ids]}}} or {K: {class: [[set, image id]]}}.",
        ) from None


def _of_coco(content: Mapping[str, Any], seed: int, source: str) -> Lists:
    if seed != 0:
        raise UserError(f"{source} has lists for seed 0 only, not {seed}.", "Use --seed 0.")
    lists = {
        k: {name: [image for _, image in listed] for name, listed in part.items()}
        for k, part in content.items()
    }
    return _checked(lists)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is given twice")
    return table


def _of_seed(content: Mapping[str, Any], seed: int, source: str) -> Lists:
    if str(seed) not in content:
        numbers = sorted(int(s) for s in content)
        raise UserError(
            f"{source}: no seed {seed}.", f"Use a seed from {numbers[0]} to {numbers[-1]}."
        )
    return _checked(content[str(seed)])


def _checked(part: Mapping[str, Mapping[str, Any]]) -> Lists:
    for listed in (listed for classes in part.values() for listed in classes.values()):
        if not isinstance(listed, list) or not {*map(type, listed)} <= {int, str}:
            raise ValueError(listed)
    return {int(k): classes for k, classes in part.items()}


def choose_shots(
    data: Dataset, labels: LabelMap, lists: Lists, shots: int, seed: int
) -> ChosenShots:
    """Exactly K boxes of every class from the training images, by four rules.

    1. Take the boxes of the listed images that are not difficult.
    2. More than K: draw K of them.
    3. Fewer: add difficult boxes of these images, in order.
    4. Still fewer: add boxes from the lists of larger K, then from other images by id.
    """
    if shots not in lists:
        known = ", ".join(map(str, sorted(lists)))
        raise UserError(f"There are no official lists for K = {shots}.", f"Use one of {known}.")
    unlisted = [name for name in labels.classes if name not in lists[shots]]
    if unlisted:
        raise UserError(
            f"The lists do not have the classes {', '.join(unlisted)}.",
            "Use the data set they were made for, or draw shots without --official.",
        )
    index = {id_: i for i, id_ in enumerate(data.ids)}
    listed = {id_ for name in labels.classes for id_ in lists[shots][name]}
    missing = sorted(str(id_) for id_ in listed if id_ not in index)
    if missing:
        more = f" ... ({len(missing)} in total)" if len(missing) > 5 else ""
        raise UserError(
            f"Images in the lists are not in the data: {', '.join(missing[:5])}{more}.",
            "Use the whole training set (VOC: 2007 and 2012 trainval; COCO: 2014 train and val).",
        )
    notes: list[str] = []
    chosen = {
        name: _class_boxes(data, index, lists, shots, seed, name, notes) for name in labels.classes
    }
    short = [f'"{name}" has {len(boxes)}' for name, boxes in chosen.items() if len(boxes) < shots]
    if short:
        what = f"Too few boxes for {shots} shot{'s' * (shots != 1)}: {', '.join(short)}."
        raise UserError(what, "Ask for fewer shots, or use the whole training set.")
    return ChosenShots(chosen, tuple(notes))


def _class_boxes(
    data: Dataset,
    index: Mapping[ImageId, int],
    lists: Lists,
    shots: int,
    seed: int,
    name: str,
    notes: list[str],
) -> list[int]:
    """K boxes of a class, or all if there are fewer; appends to `notes` where rule 4 is needed."""
    offsets = data.offsets
    usable = data.boxes.sound & ~(data.boxes.crowd | data.boxes.ignore) & is_of(data, (name,))

    def boxes_in(images: Iterable[ImageId], difficult: bool) -> list[int]:
        return [
            b
            for id_ in dict.fromkeys(images)  # each image once, in the order of the list
            if id_ in index
            for b in range(offsets[index[id_]], offsets[index[id_] + 1])
            if usable[b] and bool(data.boxes.difficult[b]) == difficult
        ]

    found = boxes_in(lists[shots][name], difficult=False)  # rule 1
    if len(found) > shots:  # rule 2
        return Random(f"{seed}/{shots}/{name}").sample(found, shots)
    found = (found + boxes_in(lists[shots][name], difficult=True))[:shots]  # rule 3
    if len(found) == shots:
        return found
    # rule 4
    larger = [id_ for k in sorted(lists) if k > shots for id_ in lists[k].get(name, ())]
    others = {data.ids[int(i)] for i in data.boxes.image[usable]}
    spare = boxes_in([*larger, *sorted(others, key=id_order)], difficult=False)
    added = [b for b in spare if b not in found][: shots - len(found)]
    if len(found) + len(added) == shots:
        sources = ", ".join(sorted({str(data.ids[int(data.boxes.image[b])]) for b in added}))
        notes.append(
            f"{name}: the official list for seed {seed}, K = {shots} repeats an image and has "
            f"{len(found)} boxes; {len(added)} added from {sources}"
        )
    return found + added
