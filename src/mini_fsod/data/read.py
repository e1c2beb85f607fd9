"""A path becomes a data set: the kind is found by looking at it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mini_fsod.data.check import box_problems, empty_problems
from mini_fsod.data.coco import not_coco, read_coco
from mini_fsod.data.dataset import Boxes, Dataset, ImageId, Ints
from mini_fsod.data.folder import read_folder
from mini_fsod.data.layout import coco_files, data_folder, listing, name_of, place_pictures
from mini_fsod.data.pictures import is_picture
from mini_fsod.data.voc import is_xml, other_folders, read_voc, voc_folders
from mini_fsod.data.yolo import configs, missing_config, read_yolo
from mini_fsod.errors import DataError, Problem, UserError, nearest
from mini_fsod.files import is_file, is_folder, mode


def read(path: Path, subset: str | None = None, root: Path | None = None) -> Dataset:
    """A data set without problems, or a DataError that tells all of them.

    Boxes without area or beyond the picture's edge are no obstacle here: metrics score them as
    given, and training drops or clips them with a count.
    """
    data, problems = look(path, subset, root)
    problems += [p for p in box_problems(data) if p.kind not in ("box-no-area", "box-outside")]
    problems = problems or empty_problems(data, name_of(path))
    if problems:
        raise DataError(problems)
    return data


def look(
    path: Path, subset: str | None = None, root: Path | None = None
) -> tuple[Dataset, list[Problem]]:
    """All that can be read, and all that is wrong with the rest. No picture is opened for it."""
    if not mode(path):
        raise UserError(
            f"{path}: there is no such file or folder, or none that may be looked at.",
            "Check the path.",
        )
    if root is not None and not (is_file(path) and path.suffix.lower() == ".json"):
        raise UserError(
            "--root is for a COCO file, and names the folder of its pictures.",
            "Give the .json itself, or leave --root out.",
        )
    if root is not None and not is_folder(root):
        raise UserError(f"{root}: there is no such folder.", "Check the path behind --root.")
    if is_folder(path):
        data, problems = _look_folder(path, subset)
    else:
        data, problems = _look_file(path, root)
    if subset is not None and not (is_folder(path) and data.kind == "coco"):
        data = data.subset(subset)
    return data, problems


def _look_file(path: Path, root: Path | None) -> tuple[Dataset, list[Problem]]:
    suffix = path.suffix.lower()
    if is_file(path) and suffix in (".yaml", ".yml"):
        return read_yolo(path)
    if is_file(path) and suffix == ".json":
        if root is not None:
            data, problems = read_coco(path, path.name)
            return replace(data, root=root), problems
        return _placed(path, path.name)
    raise UserError(
        f"{path}: not a data set.",
        "Give a COCO .json, a YOLO data.yaml, or a folder with pictures.",
    )


def _placed(path: Path, file: str) -> tuple[Dataset, list[Problem]]:
    """A COCO file with its pictures found."""
    data, problems = read_coco(path, file, up=int(data_folder(path) != path.parent))
    home, files = place_pictures(path, data.files)
    return replace(data, root=home, files=files), problems


def _look_folder(path: Path, subset: str | None) -> tuple[Dataset, list[Problem]]:
    names = listing(path)
    years = voc_folders(path)
    if not years and "VOCdevkit" in names and is_folder(path / "VOCdevkit"):
        return _look_folder(path / "VOCdevkit", subset)
    if years:
        return read_voc(path, years)
    usual = [n for n in names if n.lower() in ("data.yaml", "data.yml", "dataset.yaml")]
    if usual:
        return read_yolo(path / usual[0])
    files, foreign = coco_files(path)
    if files:
        return _noted(foreign, *_look_coco(data_folder(path), files, subset))
    years = other_folders(path)
    if years:
        home = path
        if any(map(is_xml, names)) and not any(map(is_picture, names)):
            home = data_folder(path)  # the folder annotations of a data set was given
        return _noted(foreign, *read_voc(home, years))
    others = configs(path, names)
    if len(others) == 1:
        return read_yolo(path / others[0])
    data, problems = read_folder(path)
    missing = missing_config(path, names)
    if missing is not None:
        return replace(data, notes=()), [*problems, missing]
    if foreign:
        problem = not_coco(foreign[0], others=len(foreign) - 1)
        return replace(data, notes=()), [*problems, problem]
    if not data.files and not problems:
        unread = "".join(f" ({line})" for line in data.notes)
        raise UserError(
            f"{path}: neither annotations nor pictures are in this folder{unread}.",
            "Give a COCO, VOC or YOLO data set, or a folder of pictures.",
        )
    return data, problems


def _noted(
    foreign: Sequence[str], data: Dataset, problems: list[Problem]
) -> tuple[Dataset, list[Problem]]:
    """With a sentence about JSON that is no annotation of this data set."""
    more = f" and {len(foreign) - 3:,} more" if len(foreign) > 3 else ""
    notes = (f"not COCO, left out: {', '.join(foreign[:3])}{more}",) if foreign else ()
    return replace(data, notes=notes), problems


def _look_coco(
    root: Path, files: dict[str, Path], subset: str | None
) -> tuple[Dataset, list[Problem]]:
    if subset is not None and subset not in files:
        raise UserError(
            f'The data has no image set "{subset}".{nearest(subset, files)}',
            f"Image sets there: {', '.join(files)}.",
        )
    names = [n for n in files if subset in (None, n)]
    parts, problems = [], []
    for path in (files[n] for n in names):
        data, wrong = _placed(path, Path(os.path.relpath(path, root)).as_posix())
        below = Path(os.path.relpath(data.root, root)).as_posix()
        prefix = "" if below == "." else f"{below}/"
        parts.append(replace(data, root=root, files=tuple(prefix + f for f in data.files)))
        problems += wrong
    return (parts[0] if len(parts) == 1 else _unite(root, names, parts)), problems


def _unite(root: Path, names: Sequence[str], parts: Sequence[Dataset]) -> Dataset:
    """Several COCO files as one data set with an image set each; classes are united by name."""
    numbers = {n: k for d in parts for n, k in zip(d.classes, d.category_ids, strict=True)}
    order = sorted(numbers, key=lambda n: (numbers[n], n))
    starts = np.cumsum([0, *(len(d) for d in parts)])
    ids: tuple[ImageId, ...] = tuple(i for d in parts for i in d.ids)
    short_ids: tuple[ImageId, ...] = ()
    if len(set(ids)) < len(ids):
        # files numbered from 1 each: the image set's name tells them apart
        short_ids = ids
        ids = tuple(f"{n}/{i}" for n, d in zip(names, parts, strict=True) for i in d.ids)
    distinct = len(set(numbers.values())) == len(numbers)
    boxes = [_shifted(d, order, int(s)) for d, s in zip(parts, starts[:-1], strict=True)]
    return replace(
        parts[0],
        root=root,
        classes=tuple(order),
        category_ids=tuple(numbers[n] for n in order)
        if distinct
        else tuple(range(1, len(order) + 1)),
        ids=ids,
        short_ids=short_ids,
        files=tuple(f for d in parts for f in d.files),
        sizes=np.concatenate([d.sizes for d in parts]),
        boxes=Boxes(**{c: np.concatenate([getattr(b, c) for b in boxes]) for c in Boxes.__slots__}),
        sources=tuple(s for d in parts for s in d.sources),
        unread=tuple(dict.fromkeys(u for d in parts for u in d.unread)),
        subsets={n: _span(a, b) for n, a, b in zip(names, starts[:-1], starts[1:], strict=True)},
    )


def _span(start: int, stop: int) -> Ints:
    return np.arange(start, stop, dtype=np.int64)


def _shifted(part: Dataset, order: Sequence[str], start: int) -> Boxes:
    place = np.array([order.index(n) for n in part.classes], dtype=np.int64)
    label = place[part.boxes.label] if len(place) else part.boxes.label
    return replace(part.boxes, image=part.boxes.image + start, label=label)
