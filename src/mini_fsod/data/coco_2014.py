"""COCO 2014 as few-shot detection uses it: its image sets `trainval` and `test`.

All papers test on the same 5,000 images of val2014, and train on the other images of train2014 and
val2014 that have annotations: 117,264.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mini_fsod.data.official_shots import coco_test_images
from mini_fsod.data.read import read_coco_sets
from mini_fsod.data.write import write_coco
from mini_fsod.errors import DataError, UserError
from mini_fsod.files import is_file, is_folder, real, unwritten
from mini_fsod.labels import LabelMap

OFFICIAL = ("train2014", "val2014")  # image sets of the official folders, and their folders


class Arranged(NamedTuple):
    trainval: int  # images
    test: int
    missing: int  # test images that val2014 does not have


def arrange_coco(folder: Path, out: Path) -> Arranged:
    """Write the two image sets of the official folders into `out`, with links to the pictures."""
    if real(folder) in (real(out), *real(out).parents):
        raise UserError(
            f"{out}: lies in the official folder, whose image sets would be read as well.",
            "Choose a folder elsewhere with --out.",
        )
    files = {name: folder / "annotations" / f"instances_{name}.json" for name in OFFICIAL}
    missing = [path for path in files.values() if not is_file(path)]
    missing += [folder / name for name in OFFICIAL if not is_folder(folder / name)]
    if missing:
        raise UserError(
            f"{missing[0]}: not found.",
            "Unpack COCO's 2014 train images, val images and annotations into one folder.",
        )
    data, problems = read_coco_sets(folder, files)
    if problems:
        raise DataError(problems)
    official = coco_test_images()
    in_val = np.zeros(len(data), dtype=np.bool_)
    in_val[data.subsets["val2014"]] = True
    in_test = in_val & np.array([id_ in official for id_ in data.ids], dtype=np.bool_)
    if not in_test.any():
        raise UserError(
            f"{folder}: val2014 has none of the 5,000 test images.",
            "Use COCO's own annotations: image ids must be the official ones.",
        )
    has_boxes = np.diff(data.offsets) > 0  # crowds are annotations too
    parts = {"trainval": np.flatnonzero(has_boxes & ~in_test), "test": np.flatnonzero(in_test)}
    for name in OFFICIAL:
        _link(out / name, real(folder / name))
    labels = LabelMap(data.classes, ())
    for name, images in parts.items():
        part = replace(data.select(images), subsets={})
        about = {"description": f"COCO 2014, {name}, arranged by `mini data coco`"}
        write_coco(out / "annotations" / f"instances_{name}.json", part, labels, about)
    n_test = len(parts["test"])
    return Arranged(len(parts["trainval"]), n_test, len(official) - n_test)


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and path.readlink() == target:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target, target_is_directory=True)
    except OSError as error:
        raise unwritten(path, error) from None
