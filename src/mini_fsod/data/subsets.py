"""Image sets to train and test on, and the parts of the data that the paper names (section 3.1)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mini_fsod import console
from mini_fsod.data.dataset import Bools, Dataset, Ints
from mini_fsod.data.text import shown
from mini_fsod.errors import UserError, nearest
from mini_fsod.files import real
from mini_fsod.labels import LabelMap


def training_part(data: Dataset) -> str | None:
    """The image set to train on by default; None for all images."""
    for name in ("trainval", "train"):
        if name in data.subsets:
            return name
    named = [name for name in data.subsets if name.startswith("train")]
    return named[0] if len(named) == 1 else None


def image_sets(data: Dataset) -> list[str]:
    """The image sets with images; without VOC's train and val if trainval contains them."""
    names = [n for n, images in data.subsets.items() if "/" not in n and len(images)]
    whole = data.subsets.get("trainval", ())
    parts = [n for n in names if n in ("train", "val") and np.isin(data.subsets[n], whole).all()]
    return [n for n in names if n not in parts]


def testing_part(data: Dataset) -> str | None:
    """The image set to score on by default: test, else val, if it has boxes; or None."""
    boxes = np.diff(data.offsets)
    counts = {name: int(boxes[images].sum()) for name, images in data.subsets.items()}
    for word in ("test", "val"):
        named = [name for name in counts if name.startswith(word) and counts[name]]
        if word in named or len(named) == 1:
            return word if word in named else named[0]
    return None


def shared_images(data: Dataset, other: Dataset | None) -> Bools:
    """(I,) whether each image is in the other data set too; without another, none is."""
    known = set() if other is None else {*other.files}
    return np.array([file in known for file in data.files], dtype=np.bool_)


NO_ROWS: Ints = np.zeros(0, dtype=np.int64)


def default_training_set(data: Dataset) -> tuple[str, Dataset]:
    """(name, images) to train on by default; the name is "" where there is only one image set.

    Test images are left out: VOC's trainval may hold val, which is scored where test has no boxes.
    """
    part, test = training_part(data), testing_part(data)
    images = data if part is None else data.subset(part)
    in_test = shared_images(images, None if test is None else data.subset(test))
    if in_test.any():
        images = images.select(np.flatnonzero(~in_test))
    if part is None:
        return (f"all but {test}" if test else "all image sets" if data.subsets else ""), images
    return (f"{part} without {test}" if in_test.any() else part), images


def is_of(data: Dataset, names: tuple[str, ...]) -> Bools:
    """(B,) whether each box is of one of these classes."""
    wanted = set(names)
    return np.array([c in wanted for c in data.classes], dtype=np.bool_)[data.boxes.label]


def boxes_by_class(data: Dataset) -> dict[str, Ints]:
    """The indices of the boxes of each class, in their order; found for all classes at once."""
    order = np.argsort(data.boxes.label, kind="stable")
    starts = np.searchsorted(data.boxes.label[order], np.arange(len(data.classes) + 1))
    found: dict[str, Ints] = {}
    for name, (start, end) in zip(data.classes, pairwise(starts.tolist()), strict=True):
        rows = order[start:end]  # `mini check` sees data whose classes share a name
        found[name] = np.sort(np.concatenate([found[name], rows])) if name in found else rows
    return found


def is_target(data: Dataset) -> Bools:
    """(B,) whether each box can be trained on.

    Crowds, ignored regions, boxes without area and boxes outside the picture cannot; `mini check`
    lists the last two.
    """
    boxes = data.boxes
    overlaps = data.overlaps_picture(boxes.image, boxes.xywh)
    return boxes.sound & ~(boxes.crowd | boxes.ignore) & overlaps


def arranged(data: Dataset, labels: LabelMap) -> Dataset:
    """The same images with the classes of the label map, in the order of a detector's outputs.

    Boxes of other classes are left out; classes that the data lacks have no boxes.
    """
    boxes = data.boxes.take(is_of(data, labels.classes))
    numbers = dict(zip(data.classes, data.category_ids, strict=True))
    spare = max(data.category_ids, default=0) + 1
    index = {name: i for i, name in enumerate(labels.classes)}
    new_label = np.array([index.get(c, -1) for c in data.classes], dtype=np.int64)
    return replace(
        data,
        classes=labels.classes,
        category_ids=tuple(numbers.get(c, spare + i) for i, c in enumerate(labels.classes)),
        boxes=replace(boxes, label=new_label[boxes.label]),
    )


def base_set(data: Dataset, labels: LabelMap) -> Dataset:
    """The base set D^b: images with a base box, with their base boxes only.

    Novel objects in them become background.
    """
    stripped = data.with_boxes(data.boxes.take(is_of(data, labels.base)))
    return stripped.select(np.unique(stripped.boxes.image))


def without_class(data: Dataset, name: str, labels: LabelMap) -> Dataset:
    """The images without a box of a novel class (`data.leave_out`, the paper's Appendix B)."""
    if name not in labels.novel:
        raise UserError(
            f"data.leave_out: {shown(name)} is not a novel class of this run."
            f"{nearest(name, labels.novel)}",
            f"Novel classes: {', '.join(labels.novel)}.",
        )
    return data.select(np.setdiff1d(np.arange(len(data)), data.boxes.image[is_of(data, (name,))]))


def without_empty(labels: LabelMap, data: Dataset) -> LabelMap:
    """Without base classes that have no boxes: labelling sites export the project's name as one."""
    empty = [name for name in labels.base if not is_of(data, (name,)).any()]
    if empty:
        console.note(f"classes without boxes left out: {', '.join(empty)}")
    return LabelMap(tuple(name for name in labels.base if name not in empty), labels.novel)


def missing_labels(data: Dataset, labelled: Dataset, labels: LabelMap) -> Bools:
    """(I, B) whether boxes of each base class may be missing in each image of `data`.

    For a run whose base detector is given. `labelled` has all boxes that people drew: they have
    labelled the images that have a box of any class, and the base classes that have a box anywhere.
    """
    files = {labelled.files[i] for i in np.unique(labelled.boxes.image).tolist()}
    known = np.array([file in files for file in data.files], dtype=np.bool_)
    classes = np.array([is_of(labelled, (name,)).any() for name in labels.base], dtype=np.bool_)
    return np.asarray(~(known[:, None] & classes))


def hidden_boxes(data: Dataset, labels: LabelMap) -> dict[str, tuple[int, int]]:
    """Novel class: (its boxes, those of them in images with a base box), which can be mined."""
    with_base = np.zeros(len(data), dtype=np.bool_)
    with_base[data.boxes.image[is_of(data, labels.base)]] = True
    counts, found = {}, boxes_by_class(data)
    for name in labels.novel:
        images = data.boxes.image[found.get(name, NO_ROWS)]
        counts[name] = (len(images), int(with_base[images].sum()))
    return counts


def test_sample(data: Dataset, most: int | None) -> Ints:
    """(n,) the images of a sample of a test set, in order: at most so many; None: all.

    It depends on the names of the images and on their boxes alone, so all runs on a data set share
    it, whatever their novel classes. Half of it is for classes in turn, the rarest first, so that
    none is missing; the rest is drawn from all images.
    """
    if most is None or most >= len(data):
        return np.arange(len(data))
    order = sorted(range(len(data)), key=lambda i: hashlib.sha256(data.files[i].encode()).digest())
    targets = is_target(data)
    image, label = data.boxes.image[targets], data.boxes.label[targets]
    having = [{*image[label == c].tolist()} for c in range(len(data.classes))]
    queues = [[i for i in order if i in images] for images in sorted(having, key=len) if images]
    chosen: dict[int, None] = {}
    for turn in range(max(map(len, queues), default=0)):
        for queue in queues:
            if turn < len(queue) and len(chosen) < max(most // 2, 1):
                chosen.setdefault(queue[turn])
    for i in order:
        if len(chosen) < most:
            chosen.setdefault(i)
    return np.array(sorted(chosen), dtype=np.int64)


def spread(data: Dataset, count: int) -> Dataset:
    """So many images of a data set, evenly spread over it; those with a box, where there are any.

    All of them, where it has fewer.
    """
    with_box = np.unique(data.boxes.image[is_target(data)])
    images = with_box if len(with_box) else np.arange(len(data))
    at = np.linspace(0, len(images) - 1, min(count, len(images))).astype(np.int64)
    return data.select(images[at])


def renamed_as_in(data: Dataset, whole: Dataset) -> Dataset:
    """The same images under the names they have in `whole`; others under their absolute paths.

    Two folders may hold different pictures of the same name.
    """
    if data.root == whole.root:
        return data
    names = {real(whole.path(i)): file for i, file in enumerate(whole.files)}
    paths = [real(data.path(i)) for i in range(len(data))]
    files = tuple(names.get(path, path.as_posix()) for path in paths)
    return replace(data, root=whole.root, files=files)


def united(one: Dataset, other: Dataset) -> Dataset:
    """Images and boxes of two data sets with the same root and classes.

    An image of both has the boxes of both; images that only `other` has come last.
    """
    index = {file: i for i, file in enumerate(one.files)}
    new = [i for i, file in enumerate(other.files) if file not in index]
    index |= {other.files[i]: len(one) + n for n, i in enumerate(new)}
    new_index = np.array([index[file] for file in other.files], dtype=np.int64)
    return replace(
        one,
        ids=(*one.ids, *(f"shot {other.ids[i]}" for i in new)),
        files=(*one.files, *(other.files[i] for i in new)),
        sources=(*one.sources, *(other.sources[i] for i in new)),
        sizes=np.concatenate([one.sizes, other.sizes[new]]),
        boxes=one.boxes.joined(replace(other.boxes, image=new_index[other.boxes.image])),
        short_ids=(),
        subsets={},
    )


def with_base_boxes(shots: Dataset, everything: Dataset, labels: LabelMap) -> Dataset:
    """The shots of novel classes, and every base box of their pictures; classes as in `labels`.

    A picture of the balanced set shows more objects than its shots. Without their boxes, they would
    be trained as background. Shots in pictures that are not in `everything` all stay.
    """
    index = {file: i for i, file in enumerate(shots.files)}
    base = everything.boxes.take(is_of(everything, labels.base))
    image = np.array([index.get(file, -1) for file in everything.files], dtype=np.int64)[base.image]
    base = replace(base, image=image).take(image >= 0)
    elsewhere = ~np.isin(shots.files, everything.files)[shots.boxes.image]
    kept = shots.boxes.take(is_of(shots, labels.novel) | elsewhere)
    return shots.with_boxes(kept.joined(base))
