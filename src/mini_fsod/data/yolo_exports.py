"""YOLO as labelling tools export it: without data.yaml, or without the pictures.

Label Studio writes classes.txt, images/ and labels/; CVAT's "YOLO 1.1" writes obj.data, obj.names
and obj_train_data/; labelImg writes classes.txt and text files beside the pictures, or into another
folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mini_fsod.data.elsewhere import UPLOAD
from mini_fsod.data.file_names import is_picture
from mini_fsod.data.folder import pictures_below
from mini_fsod.data.layout import TRIED, listing, names_in
from mini_fsod.data.problems import Report
from mini_fsod.data.text import number, read_text, shown
from mini_fsod.errors import UserError
from mini_fsod.files import is_folder
from mini_fsod.limits import CLASSES, LABEL_BYTES, YAML_BYTES
from mini_fsod.remote import walk

NAMES = ("obj.names", "classes.txt")  # files with a class in each line
NOT_LABELS = ("classes.txt", "train.txt", "valid.txt", "val.txt", "test.txt", "labels.txt")
FOLDERS = {"obj_train_data": "train", "obj_valid_data": "valid", "obj_test_data": "test"}  # CVAT


def export_names(folder: Path, names: Sequence[str]) -> Path | None:
    """The file of class names of an export without data.yaml; None if the folder is none."""
    for name in NAMES:
        if name in names and _image_sets(folder, names):
            return folder / name
    return None


def _image_sets(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """{image set: folder}, as data.yaml would name them."""
    sets = {FOLDERS[n]: n for n in names if n in FOLDERS and is_folder(folder / n)}
    if sets or "labels" in names:
        return sets or {"train": "images" if "images" in names else "labels"}
    labels = [n for n in names if n.endswith(".txt") and n not in NOT_LABELS]
    pictures = {PurePosixPath(n).stem for n in names if is_picture(n)}
    if pictures:
        found = bool(pictures & {PurePosixPath(n).stem for n in labels})
    else:  # they are elsewhere
        found = any(_has_boxes(folder / n) for n in labels[:TRIED])
    return {"train": "."} if found else {}


def _has_boxes(file: Path) -> bool:
    """Whether a text file begins with a box as YOLO writes it: a class and four shares."""
    try:
        first, *values = map(number, read_text(file, LABEL_BYTES).split("\n", 1)[0].split())
    except (OSError, ValueError):
        return False
    return first >= 0 and first.is_integer() and len(values) == 4 and max(map(abs, values)) <= 2


def export_table(config: Path, report: Report) -> Mapping[Any, Any]:
    """What data.yaml would say."""
    try:
        lines = read_text(config, YAML_BYTES).splitlines()
    except OSError as error:
        report("yaml-broken", "", f"cannot be read ({error.strerror})", "make it readable")
        return {}
    classes = [line.strip() for line in lines if line.strip()][: CLASSES + 1]
    return _image_sets(config.parent, names_in(config.parent)) | {"names": classes}


def labels_elsewhere(root: Path, pictures: Path, report: Report) -> tuple[list[str], list[str]]:
    """(pictures, label files): the picture in another folder that each label file belongs to.

    It has the longest possible end of the label file's path, suffixes apart.
    """
    if not is_folder(pictures):
        raise UserError(f"{pictures}: no such folder of pictures.", "Check the path.")
    by_end: dict[str, list[str]] = {}
    for name in pictures_below(pictures, lambda _: None, lambda _: None):
        parts = PurePosixPath(name).with_suffix("").parts
        for n in range(len(parts)):
            by_end.setdefault("/".join(parts[n:]), []).append(name)
    found: dict[str, str] = {}
    for label in _label_files(root):
        parts = PurePosixPath(label).with_suffix("").parts
        ends = ["/".join(parts[n:]) for n in range(len(parts))]
        ends.append(UPLOAD.sub("", parts[-1]))
        meant = next((by_end[end] for end in ends if end in by_end), [])
        if len(meant) == 1:
            found.setdefault(meant[0], label)
        elif meant:
            listed = ", ".join(map(shown, meant[:3]))
            what = f"{len(meant)} pictures in {pictures} may be meant: {listed}"
            report("picture-ambiguous", "", what, file=label)
        else:
            report("picture-missing", "", f"no picture of that name in {pictures}", file=label)
    return list(found), list(found.values())


def report_lost_pictures(root: Path, report: Report) -> None:
    """A problem if there are label files in a data set without any picture."""
    labels = _label_files(root)
    if labels:
        what = f"{len(labels):,} label files like it, but no pictures"
        fix = "name the folder of the pictures: --root, data.pictures or shots.root"
        report("picture-missing", "", what, fix, file=labels[0])


def _label_files(root: Path) -> list[str]:
    """The label files below a data set's folder, relative to it."""
    names = listing(root)
    folders = [n for n in names if n == "labels" or n in FOLDERS] or [""]
    found = []
    for folder in folders:
        for parent, _, files in walk(root / folder):
            below = PurePosixPath(os.path.relpath(parent, root))
            labels = [n for n in files if n.endswith(".txt") and (folder or n not in NOT_LABELS)]
            found += [str(below / name) for name in labels]
    return sorted(found)
