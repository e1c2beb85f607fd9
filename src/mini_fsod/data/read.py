"""A path becomes a data set: the kind is found by looking at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mini_fsod.data.check import box_problems, empty_problems
from mini_fsod.data.coco import read_coco
from mini_fsod.data.dataset import Boxes, Dataset, Ints
from mini_fsod.data.folder import pictures_below, read_folder
from mini_fsod.data.voc import read_voc, voc_folders
from mini_fsod.data.yolo import read_yolo
from mini_fsod.errors import DataError, Problem, UserError, nearest

# what other tools lay beside a COCO file of boxes
NOT_BOXES = ("captions_", "person_keypoints_", "stuff_", "panoptic_", "image_info_")


def read(path: Path, subset: str | None = None, root: Path | None = None) -> Dataset:
    """A data set without problems, or a DataError that tells all of them.

    Boxes without area or beyond the picture's edge are no obstacle here: metrics score them as
    given, and training drops or clips them with a count.
    """
    data, problems = look(path, subset, root)
    problems += [p for p in box_problems(data) if p.kind not in ("box-no-area", "box-outside")]
    problems = problems or empty_problems(data, path.name)
    if problems:
        raise DataError(problems)
    return data


def look(
    path: Path, subset: str | None = None, root: Path | None = None
) -> tuple[Dataset, list[Problem]]:
    """All that can be read, and all that is wrong with the rest. No picture is opened for it."""
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder.", "Check the path.")
    if path.is_file():
        data, problems = _look_file(path, root)
    else:
        data, problems = _look_folder(path, subset)
    if subset is not None and not (path.is_dir() and data.kind == "coco"):
        data = data.subset(subset)
    return data, problems


def _look_file(path: Path, root: Path | None) -> tuple[Dataset, list[Problem]]:
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return read_yolo(path)
    if suffix == ".json":
        data, problems = read_coco(path, path.name)
        home, prefix = (root, "") if root is not None else _home_of(path, data.files)
        return replace(data, root=home, files=_prefixed(prefix, data.files)), problems
    raise UserError(
        f"{path}: not a data set.",
        "Give a COCO .json, a YOLO data.yaml, or a folder with pictures.",
    )


def _look_folder(path: Path, subset: str | None) -> tuple[Dataset, list[Problem]]:
    years = voc_folders(path)
    if not years and (path / "VOCdevkit").is_dir():
        return _look_folder(path / "VOCdevkit", subset)
    if years:
        return read_voc(path, years)
    configs = [
        p for p in (path / "data.yaml", path / "data.yml", path / "dataset.yaml") if p.is_file()
    ]
    if configs:
        return read_yolo(configs[0])
    files = coco_files(path)
    if files:
        return _look_coco(path, files, subset)
    if any(path.glob("*.xml")):
        return read_voc(path, [""])
    pictures = pictures_below(path)
    if not pictures:
        raise UserError(
            f"{path}: neither annotations nor pictures are in this folder.",
            "Give a COCO, VOC or YOLO data set, or a folder of pictures.",
        )
    return read_folder(path, pictures), []


def coco_files(root: Path) -> dict[str, Path]:
    """The COCO files of a folder by the name of their image set."""
    exported = sorted(root.glob("*/_annotations.coco.json"))
    if exported:
        return {p.parent.name: p for p in exported}
    found = [p for d in (root / "annotations", root) for p in sorted(d.glob("*.json"))]
    found = [p for p in found if not p.name.startswith(NOT_BOXES) and _starts_as_object(p)]
    instances = [p for p in found if p.name.startswith("instances_")]
    return {p.stem.removeprefix("instances_"): p for p in instances or found}


def _starts_as_object(path: Path) -> bool:
    """A list is never annotations (detections are lists); a damaged file stays, to be told."""
    with path.open("rb") as source:
        return not source.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _look_coco(
    root: Path, files: dict[str, Path], subset: str | None
) -> tuple[Dataset, list[Problem]]:
    if subset is not None and subset not in files:
        raise UserError(
            f'The data has no image set "{subset}".{nearest(subset, files)}',
            f"Image sets there: {', '.join(files)}.",
        )
    parts, problems = [], []
    for name, path in files.items():
        if subset in (None, name):
            data, wrong = read_coco(path, path.relative_to(root).as_posix())
            home, prefix = _home_of(path, data.files)
            below = home.relative_to(root).as_posix()
            prefix = prefix if below == "." else f"{below}/{prefix}"
            parts.append(replace(data, root=root, files=_prefixed(prefix, data.files)))
            problems += wrong
    names = [n for n in files if subset in (None, n)]
    return (parts[0] if len(parts) == 1 else _unite(root, names, parts)), problems


def _home_of(path: Path, files: Sequence[str]) -> tuple[Path, str]:
    """(folder, prefix) such that folder / prefix / file_name is a picture of this COCO file.

    Pictures lie beside the file, or beside the folder "annotations" it is in, or one folder below,
    in "images" or in a folder called like the image set.
    """
    home = path.parent.parent if path.parent.name == "annotations" else path.parent
    named = path.stem.removeprefix("instances_")
    for folder, prefix in [(path.parent, ""), (home, ""), (home, "images/"), (home, f"{named}/")]:
        if any((folder / prefix / name).is_file() for name in files[:20]):
            return folder, prefix
    return home, ""


def _prefixed(prefix: str, files: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}" for name in files)


def _unite(root: Path, names: Sequence[str], parts: Sequence[Dataset]) -> Dataset:
    """Several COCO files as one data set with an image set each; classes are united by name."""
    numbers = {n: k for d in parts for n, k in zip(d.classes, d.category_ids, strict=True)}
    order = sorted(numbers, key=lambda n: (numbers[n], n))
    starts = np.cumsum([0, *(len(d) for d in parts)])
    ids = [i for d in parts for i in d.ids]
    if len(set(ids)) < len(ids):
        # files numbered from 1 each: the image set's name tells them apart
        ids = [f"{n}/{i}" for n, d in zip(names, parts, strict=True) for i in d.ids]
    distinct = len(set(numbers.values())) == len(numbers)
    boxes = [_shifted(d, order, int(s)) for d, s in zip(parts, starts[:-1], strict=True)]
    return replace(
        parts[0],
        root=root,
        classes=tuple(order),
        category_ids=tuple(numbers[n] for n in order)
        if distinct
        else tuple(range(1, len(order) + 1)),
        ids=tuple(ids),
        files=tuple(f for d in parts for f in d.files),
        sizes=np.concatenate([d.sizes for d in parts]),
        boxes=Boxes(**{c: np.concatenate([getattr(b, c) for b in boxes]) for c in Boxes.__slots__}),
        sources=tuple(s for d in parts for s in d.sources),
        subsets={n: _span(a, b) for n, a, b in zip(names, starts[:-1], starts[1:], strict=True)},
    )


def _span(start: int, stop: int) -> Ints:
    return np.arange(start, stop, dtype=np.int64)


def _shifted(part: Dataset, order: Sequence[str], start: int) -> Boxes:
    place = np.array([order.index(n) for n in part.classes], dtype=np.int64)
    label = place[part.boxes.label] if len(place) else part.boxes.label
    return replace(part.boxes, image=part.boxes.image + start, label=label)
