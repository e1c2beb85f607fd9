"""Read a data set of any supported layout; the layout is detected."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from mini_fsod.data.archive import archives_named, unpacked
from mini_fsod.data.check import box_problems, empty_problems
from mini_fsod.data.coco import not_coco, read_coco
from mini_fsod.data.cvat import cvat_file, is_cvat, read_cvat
from mini_fsod.data.dataset import Dataset, ImageId, concatenated
from mini_fsod.data.elsewhere import placed, with_pictures_in
from mini_fsod.data.fiftyone import (
    LABELS,
    SAMPLES,
    in_pixels,
    is_fiftyone,
    read_fiftyone,
    refuse_labels_without_names,
)
from mini_fsod.data.file_names import is_picture
from mini_fsod.data.folder import read_folder
from mini_fsod.data.label_studio import is_label_studio, read_label_studio
from mini_fsod.data.layout import (
    coco_files,
    data_folder,
    is_archive,
    is_sample,
    listing,
    locate_pictures,
    name_of,
)
from mini_fsod.data.text import shown
from mini_fsod.data.voc import is_xml, other_folders, read_voc, voc_folders
from mini_fsod.data.yolo import find_configs, read_yolo
from mini_fsod.data.yolo_exports import export_names
from mini_fsod.errors import DataError, Problem, UserError, nearest
from mini_fsod.files import is_file, is_folder, mode, real
from mini_fsod.remote import as_path

Reader = Callable[[Path, str], tuple[Dataset, list[Problem]]]


def read(
    path: Path,
    subset: str | None = None,
    root: Path | None = None,
    without: Path | None = None,
) -> Dataset:
    """A data set without problems, or a DataError with all of them.

    `without` is a file of shots that may lie in its folder: it does not annotate the data.

    Boxes without area or outside the picture are allowed: metrics score them as they are, and
    training leaves them out with a note.
    """
    data, problems = read_with_problems(path, subset, root, without)
    problems += [p for p in box_problems(data) if p.kind not in ("box-no-area", "box-outside")]
    problems = problems or empty_problems(data, name_of(path))
    if problems:
        raise DataError(problems)
    return data


def read_with_problems(
    path: Path,
    subset: str | None = None,
    root: Path | None = None,
    without: Path | None = None,
) -> tuple[Dataset, list[Problem]]:
    """All that can be read, and the problems of the rest.

    `subset` is an image set, `root` the folder of the pictures where they do not lie with the
    annotations. A .zip is unpacked into the cache. No pictures are opened, but for their headers
    in YOLO and FiftyOne. `without` is an annotation file in the folder that is not read; if it is
    the folder itself, only its pictures are read.
    """
    path, root = as_path(path), root and as_path(root)
    if not mode(path):
        raise UserError(
            f"{path}: no such file or folder, or no permission to read it.", "Check the path."
        )
    given = path, root
    if is_archive(path) and is_file(path):
        path = unpacked(path, pictures=root is None)
    if root is not None and is_archive(root) and is_file(root):
        root = unpacked(root)
    archives = {
        folder: archive
        for folder, archive in zip((path, root), given, strict=True)
        if folder is not None and archive is not None and folder != archive
    }
    with archives_named(archives) as named:
        data, problems = _read(path, subset, root, without)
        return data, named(problems)


def _read(
    path: Path, subset: str | None, root: Path | None, without: Path | None
) -> tuple[Dataset, list[Problem]]:
    """`read_with_problems` of what was unpacked."""
    if is_folder(path):
        if without is not None and real(without) == real(path):
            return read_folder(path)
        data, problems = _read_folder(path, subset, root, without)
    else:
        data, problems = _read_file(path, root)
    if root is not None and data.kind == "folder":
        raise UserError(
            f"{path}: it has no annotations, so it cannot be combined with another image folder.",
            "Give the annotations, or leave out the other image folder.",
        )
    if root is not None and data.root != root:
        data, ambiguous = with_pictures_in(data, root)
        problems += ambiguous
    if subset is not None and not (is_folder(path) and data.kind == "coco"):
        data = data.subset(subset)
    return data, problems


def _read_file(path: Path, root: Path | None) -> tuple[Dataset, list[Problem]]:
    suffix = path.suffix.lower()
    refuse_labels_without_names(path)
    if is_file(path) and suffix in (".yaml", ".yml"):
        return read_yolo(path, root)
    export = _export_reader(path) if is_file(path) and suffix in (".json", ".xml") else None
    if export is not None:
        return _read_export(export, path, path.name, root)
    if not is_file(path) or suffix != ".json":
        fix = "Give a COCO .json, a .zip that a labelling tool exported, or a folder with pictures."
        raise UserError(f"{path}: not a data set.", fix)
    if root is None:
        return _read_located(path, path.name)
    data, problems = read_coco(path, path.name)
    if not is_sample(path):  # a sample has the names of the data that it was drawn from
        data, ambiguous = with_pictures_in(data, root)
        problems += ambiguous
    return replace(data, root=root), problems


def _export_reader(path: Path) -> Reader | None:
    """The reader of a labelling tool's own format, if the file has one."""
    if path.suffix.lower() == ".xml":
        return read_cvat if is_cvat(path) else None
    if is_fiftyone(path):
        return read_fiftyone
    return read_label_studio if is_label_studio(path) else None


def _read_export(
    reader: Reader, path: Path, file: str, pictures: Path | None
) -> tuple[Dataset, list[Problem]]:
    """A tool's own format: one file with all images, whose pictures are beside it or elsewhere."""
    data, problems = reader(path, file)
    data, ambiguous = placed(data, path, pictures)
    if data.kind == "fiftyone":
        data = in_pixels(data)
    return data, [*problems, *ambiguous]


def _read_located(path: Path, file: str) -> tuple[Dataset, list[Problem]]:
    """A COCO file, with its pictures located."""
    data, problems = read_coco(path, file, up=int(data_folder(path) != path.parent))
    folder, files = locate_pictures(path, data.files)
    return replace(data, root=folder, files=files), problems


def _read_folder(
    path: Path, subset: str | None, root: Path | None, without: Path | None
) -> tuple[Dataset, list[Problem]]:
    """`root` is the folder of the pictures, if they lie elsewhere: YOLO needs their sizes."""
    names = listing(path)
    if without is not None and real(without).parent == real(path):
        names = [name for name in names if name != without.name]
    years = voc_folders(path)
    if not years and "VOCdevkit" in names and is_folder(path / "VOCdevkit"):
        return _read_folder(path / "VOCdevkit", subset, root, without)
    if years:
        return read_voc(path, years)
    usual_names = [n for n in names if n.lower() in ("data.yaml", "data.yml", "dataset.yaml")]
    if usual_names:
        return read_yolo(path / usual_names[0], root)
    export = _find_export(path, names)
    if export is not None:
        reader = _export_reader(export)
        assert reader is not None
        return _read_export(reader, export, export.name, root or path)
    refuse_labels_without_names(path / LABELS)
    files, foreign = coco_files(path, without)
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
        return read_yolo(path / others[0], root)
    without_config = export_names(path, names)
    if without_config is not None:
        return read_yolo(without_config, root)
    data, problems = read_folder(path)
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


def _find_export(folder: Path, names: Sequence[str]) -> Path | None:
    """The file of CVAT, FiftyOne or Label Studio in a folder, where there is no other .json."""
    cvat = cvat_file(folder, names)
    if cvat is not None:
        return cvat
    if SAMPLES in names and is_fiftyone(folder / SAMPLES):
        return folder / SAMPLES
    lists = [folder / n for n in names if n.lower().endswith(".json")]
    return lists[0] if len(lists) == 1 and is_label_studio(lists[0]) else None


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
