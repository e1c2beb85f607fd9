"""Where a data set keeps its annotation files and pictures."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from mini_fsod.data.json_stream import JsonError, first_keys
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, is_folder, open_regular, real
from mini_fsod.remote import as_path, entries

# COCO files without boxes to train on
NOT_BOXES = ("captions_", "person_keypoints_", "stuff_", "panoptic_", "image_info_")

SAMPLE = "mini sample"  # `info.made_by` of a sample, which is not an image set

LISTS = {"images", "annotations", "categories"}

KNOWN = (
    "supported layouts: COCO (a .json with images, annotations and categories), VOC (.xml files "
    "beside the pictures or in annotations/), YOLO (data.yaml beside images/ and labels/)"
)

TRIED = 20  # pictures to look for in each folder


def listing(folder: Path) -> list[str]:
    """The names in a folder, without hidden ones, in their spelling on disk.

    On macOS, "annotations" and "Annotations" are the same path.
    """
    try:
        return sorted(n for n in entries(folder) if not n.startswith("."))
    except OSError as error:
        raise UserError(
            f"{folder}: the folder cannot be read ({error.strerror}).", "Make it readable."
        ) from None


def names_in(folder: Path) -> list[str]:
    """`listing`, or nothing if it is not a readable folder."""
    try:
        return listing(folder)
    except (UserError, ValueError):
        return []


def name_of(path: Path) -> str:
    """The name of a data set's file or folder, even if the path is "."."""
    return path.name if path.name not in ("", "..") else real(path).name or str(path)


def data_folder(path: Path) -> Path:
    """The folder of a data set: the parent of "annotations", where pictures may be."""
    folder = path if is_folder(path) else path.parent
    full = as_path(os.path.normpath(folder.absolute()))
    return full.parent if full.name.lower() == "annotations" else folder


def coco_files(folder: Path, without: Path | None = None) -> tuple[dict[str, Path], list[str]]:
    """{image set: COCO file} of a folder, and the names of other JSON files, but for one file.

    Files that `mini` writes are neither: samples, and the output of `check` and `eval --json`.
    """
    names = listing(folder)
    exported = [n for n in names if is_file(folder / n / "_annotations.coco.json")]
    if exported:
        return {n: folder / n / "_annotations.coco.json" for n in exported}, []
    # the last one: COCO's spelling, if there are two
    places = [folder / n for n in names if n.lower() == "annotations"][-1:]
    found = []
    for parent in (*(p for p in places if is_folder(p)), folder):
        found += [parent / n for n in listing(parent) if n.lower().endswith(".json")]
    found = [p for p in found if without is None or real(p) != real(without)]
    kinds = {p: _kind(p) for p in found if not p.name.startswith(NOT_BOXES)}
    foreign = [p.relative_to(folder).as_posix() for p, kind in kinds.items() if kind == "foreign"]
    found = [p for p, kind in kinds.items() if kind == "coco"]
    found = [p for p in found if p.name.startswith("instances_")] or found
    files: dict[str, Path] = {}
    for p in found:
        name = p.stem.removeprefix("instances_")
        files[name if name not in files else f"{p.parent.name}-{name}"] = p
    return files, foreign


def _kind(path: Path) -> str:
    """ "coco", "ours" or "foreign", by the keys; "coco" if the file is broken.

    A JSON list holds detections, not annotations.
    """
    if is_sample(path) or _head(path).startswith(b"["):
        return "ours"
    if path.name.startswith("instances_"):
        return "coco"
    try:
        keys = first_keys(path, LISTS, 2)
    except (JsonError, OSError):
        return "coco"
    if len(keys & LISTS) > 1:
        return "coco"
    return "ours" if "label_map" in keys else "foreign"


def is_archive(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


def is_sample(path: Path) -> bool:
    """Whether `mini sample` wrote this file."""
    return f'"made_by": "{SAMPLE}"'.encode() in _head(path)


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as source:
            return source.read(200).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:
        return b""


def locate_pictures(path: Path, files: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """(folder, files relative to it) of the pictures that a COCO file names.

    They are beside the file or beside its folder "annotations"; or there in "images", in a folder
    named like the image set (maybe inside "images"), or in "data". The folder with most of them is
    taken. Names with ".." are relative to the file.
    """
    folder = data_folder(path)
    file_folder = (
        f"{Path(os.path.normpath(path.parent.absolute())).name}/" if folder != path.parent else ""
    )
    named = path.stem.removeprefix("instances_")
    prefixes = dict.fromkeys([file_folder, "", "images/", f"{named}/", f"images/{named}/", "data/"])
    tried = [files[i * len(files) // TRIED] for i in range(TRIED)] if files else []
    found = {
        prefix: sum(
            is_file(folder / _below(prefix, file_folder, name)) for name in dict.fromkeys(tried)
        )
        for prefix in prefixes
    }
    best = max(found, key=lambda prefix: (found[prefix], not prefix))
    return folder, tuple(_below(best, file_folder, name) for name in files)


def _below(prefix: str, file_folder: str, name: str) -> str:
    if ".." not in name and "./" not in name:
        return prefix + name
    plain = posixpath.normpath(name)
    return posixpath.normpath(file_folder + plain) if plain.startswith("../") else prefix + plain
