"""Read a data set of any supported layout; the layout is detected."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from mini_fsod.data.check import box_problems, empty_problems
from mini_fsod.data.coco import not_coco, read_coco
from mini_fsod.data.dataset import Dataset, ImageId, concatenated
from mini_fsod.data.elsewhere import with_pictures_in
from mini_fsod.data.folder import read_folder
from mini_fsod.data.layout import (
    coco_files,
    data_folder,
    is_sample,
    listing,
    locate_pictures,
    name_of,
)
from mini_fsod.data.pictures import is_picture
from mini_fsod.data.text import shown
from mini_fsod.data.voc import is_xml, other_folders, read_voc, voc_folders
from mini_fsod.data.yolo import find_configs, missing_config, read_yolo
from mini_fsod.errors import DataError, Problem, UserError, nearest
from mini_fsod.files import is_file, is_folder, mode


def read(path: Path, subset: str | None = None, root: Path | None = None) -> Dataset:
    """A data set without problems, or a DataError with all of them.

    Boxes without area or outside the picture are allowed: metrics score them as they are, and
    training leaves them out with a note.
    """
    data, problems = read_with_problems(path, subset, root)
    problems += [p for p in box_problems(data) if p.kind not in ("box-no-area", "box-outside")]
    problems = problems or empty_problems(data, name_of(path))
    if problems:
        raise DataError(problems)
    return data


def read_with_problems(
    path: Path, subset: str | None = None, root: Path | None = None
) -> tuple[Dataset, list[Problem]]:
    """All that can be read, and the problems of the rest.

    `subset` is an image set, `root` the folder of the pictures where they do not lie with the
    annotations. No pictures are opened, but for their headers in YOLO.
    """
    if not mode(path):
        raise UserError(
            f"{path}: no such file or folder, or no permission to read it.", "Check the path."
        )
    if is_folder(path):
        data, problems = _read_folder(path, subset)
    else:
        data, problems = _read_file(path, root)
    if root is not None:
        _refuse_root(path, data)
        if not is_sample(path):  # a sample has the names of the data that it was drawn from
            data, ambiguous = with_pictures_in(data, root)
            problems += ambiguous
    if subset is not None and not (is_folder(path) and data.kind == "coco"):
        data = data.subset(subset)
    return data, problems


def _refuse_root(path: Path, data: Dataset) -> None:
    if data.kind == "folder":
        raise UserError(
            f"{path}: a folder of pictures without annotations; its pictures lie nowhere else.",
            "Give the annotations, or name no other folder of pictures.",
        )
    if data.kind == "yolo":
        raise UserError(
            f"{path}: YOLO's boxes are shares of their pictures' sizes, so the pictures must be "
            "below data.yaml.",
            "Put them there (a link will do), and name no other folder of pictures.",
        )


def _read_file(path: Path, root: Path | None) -> tuple[Dataset, list[Problem]]:
    suffix = path.suffix.lower()
    if is_file(path) and suffix in (".yaml", ".yml"):
        return read_yolo(path)
    if not is_file(path) or suffix != ".json":
        fix = "Give a COCO .json, a YOLO data.yaml, or a folder with pictures."
        raise UserError(f"{path}: not a data set.", fix)
    if root is None:
        return _read_located(path, path.name)
    data, problems = read_coco(path, path.name)
    return replace(data, root=root), problems


def _read_located(path: Path, file: str) -> tuple[Dataset, list[Problem]]:
    """A COCO file, with its pictures located."""
    data, problems = read_coco(path, file, up=int(data_folder(path) != path.parent))
    folder, files = locate_pictures(path, data.files)
    return replace(data, root=folder, files=files), problems


def _read_folder(path: Path, subset: str | None) -> tuple[Dataset, list[Problem]]:
    names = listing(path)
    years = voc_folders(path)
    if not years and "VOCdevkit" in names and is_folder(path / "VOCdevkit"):
        return _read_folder(path / "VOCdevkit", subset)
    if years:
        return read_voc(path, years)
    usual_names = [n for n in names if n.lower() in ("data.yaml", "data.yml", "dataset.yaml")]
    if usual_names:
        return read_yolo(path / usual_names[0])
    files, foreign = coco_files(path)
    if files:
        return _with_note(foreign, *read_coco_sets(data_folder(path), files, subset))
    years = other_folders(path)
    if years:
        folder = path
        if any(map(is_xml, names)) and not any(map(is_picture, names)):
            folder = data_folder(path)  # the folder "annotations" of a data set was given
        return _with_note(foreign, *read_voc(folder, years))
    others = find_configs(path, names)
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
            f"{path}: no annotations or pictures in this folder{unread}.",
            "Give a COCO, VOC or YOLO data set, or a folder of pictures.",
        )
    return data, problems


def _with_note(
    foreign: Sequence[str], data: Dataset, problems: list[Problem]
) -> tuple[Dataset, list[Problem]]:
    """The same, with a note on JSON files that are not COCO."""
    more = f" and {len(foreign) - 3:,} more" if len(foreign) > 3 else ""
    notes = (f"not COCO, left out: {', '.join(foreign[:3])}{more}",) if foreign else ()
    return replace(data, notes=notes), problems


def read_coco_sets(
    root: Path, files: Mapping[str, Path], subset: str | None = None
) -> tuple[Dataset, list[Problem]]:
    """COCO files as the image sets of one data set, or one of them alone; and their problems."""
    if subset is not None and subset not in files:
        raise UserError(
            f"The data has no image set {shown(subset)}.{nearest(subset, files)}",
            f"Image sets: {', '.join(islice(files, 20))}.",
        )
    names = [n for n in files if subset in (None, n)]
    parts, problems = [], []
    for path in (files[n] for n in names):
        data, wrong = _read_located(path, Path(os.path.relpath(path, root)).as_posix())
        below = Path(os.path.relpath(data.root, root)).as_posix()
        prefix = "" if below == "." else f"{below}/"
        parts.append(replace(data, root=root, files=tuple(prefix + f for f in data.files)))
        problems += wrong
    return (parts[0] if len(parts) == 1 else _unite(root, names, parts)), problems


def _unite(root: Path, names: Sequence[str], parts: Sequence[Dataset]) -> Dataset:
    """Several COCO files as the image sets of one data set; classes are matched by name."""
    numbers = {n: k for d in parts for n, k in zip(d.classes, d.category_ids, strict=True)}
    order = sorted(numbers, key=lambda n: (numbers[n], n))
    category_ids = [numbers[n] for n in order]
    if len(set(category_ids)) < len(order):
        category_ids = list(range(1, len(order) + 1))
    ids: tuple[ImageId, ...] = tuple(i for d in parts for i in d.ids)
    short_ids: tuple[ImageId, ...] = ()
    if len(set(ids)) < len(ids):
        # each file numbers its images from 1, so ids begin with the image set
        short_ids = ids
        ids = tuple(f"{n}/{i}" for n, d in zip(names, parts, strict=True) for i in d.ids)
    position = {n: c for c, n in enumerate(order)}
    boxes, subsets, start = [], {}, 0
    for name, part in zip(names, parts, strict=True):
        label = np.array([position[n] for n in part.classes], dtype=np.int64)[part.boxes.label]
        boxes.append(replace(part.boxes, image=part.boxes.image + start, label=label))
        subsets[name] = np.arange(start, start + len(part), dtype=np.int64)
        start += len(part)
    return replace(
        parts[0],
        root=root,
        classes=tuple(order),
        category_ids=tuple(category_ids),
        ids=ids,
        short_ids=short_ids,
        files=tuple(f for d in parts for f in d.files),
        sizes=np.concatenate([d.sizes for d in parts]),
        boxes=concatenated(boxes),
        sources=tuple(s for d in parts for s in d.sources),
        unread=tuple(dict.fromkeys(u for d in parts for u in d.unread)),
        subsets=subsets,
    )
