"""Where the parts of a data set lie: its folder, its COCO files, their pictures."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from mini_fsod.data.json_stream import JsonError, first_keys
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, is_folder, open_regular, real

# what other tools lay beside a COCO file of boxes
NOT_BOXES = ("captions_", "person_keypoints_", "stuff_", "panoptic_", "image_info_")

SAMPLE = "mini sample"  # `info.made_by` of a sample, so that it is not taken for an image set

LISTS = {"images", "annotations", "categories"}

KNOWN = (
    "known layouts: COCO (a .json with images, annotations and categories), VOC (.xml files beside "
    "the pictures or in annotations/), YOLO (data.yaml beside images/ and labels/)"
)

TRIED = 20  # pictures that are looked for in each place


def listing(folder: Path) -> list[str]:
    """The names in a folder as they are written there, without hidden ones.

    Asking for a name is not enough: to macOS "annotations" is "Annotations" too.
    """
    try:
        return sorted(n for n in os.listdir(folder) if not n.startswith("."))
    except OSError as error:
        raise UserError(
            f"{folder}: the folder cannot be read ({error.strerror}).", "Make it readable."
        ) from None


def names_in(folder: Path) -> list[str]:
    """The listing of what may be a folder; of anything else none."""
    try:
        return listing(folder)
    except (UserError, ValueError):
        return []


def name_of(path: Path) -> str:
    """What to call a data set: the name of its file or folder, also where the path is a dot."""
    return path.name if path.name not in ("", "..") else real(path).name or str(path)


def data_folder(path: Path) -> Path:
    """The folder that a data set at `path` fills: pictures may lie beside "annotations"."""
    folder = path if is_folder(path) else path.parent
    full = Path(os.path.normpath(folder.absolute()))
    return full.parent if full.name.lower() == "annotations" else folder


def coco_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The COCO files of a folder by the name of their image set, and the names of other JSON.

    What `mini` writes is neither: samples, and the results of `check --json` and `eval --json`.
    """
    names = listing(folder)
    exported = [n for n in names if is_file(folder / n / "_annotations.coco.json")]
    if exported:
        return {n: folder / n / "_annotations.coco.json" for n in exported}, []
    # the last of them: COCO's own spelling, where there are two
    places = [folder / n for n in names if n.lower() == "annotations"][-1:]
    found = []
    for place in (*(p for p in places if is_folder(p)), folder):
        found += [place / n for n in listing(place) if n.lower().endswith(".json")]
    heads = {p: _head(p) for p in found if not p.name.startswith(NOT_BOXES)}
    # a list is never annotations (detections are lists); a damaged file stays, to be told
    found = [p for p, head in heads.items() if not head.startswith(b"[")]
    found = [p for p in found if f'"made_by": "{SAMPLE}"'.encode() not in heads[p]]
    sorts = {p: _sort(p) for p in found}
    foreign = [p.relative_to(folder).as_posix() for p in found if sorts[p] == "foreign"]
    found = [p for p in found if sorts[p] == "coco"]
    found = [p for p in found if p.name.startswith("instances_")] or found
    files: dict[str, Path] = {}
    for p in found:
        name = p.stem.removeprefix("instances_")
        files[name if name not in files else f"{p.parent.name}-{name}"] = p
    return files, foreign


def _sort(path: Path) -> str:
    """ "coco", "ours" or "foreign", by the keys; a file of which that cannot be told stays COCO."""
    if path.name.startswith("instances_"):
        return "coco"
    try:
        keys = first_keys(path, LISTS, 2)
    except (JsonError, OSError):
        return "coco"
    if len(keys & LISTS) > 1:
        return "coco"
    return "ours" if "label_map" in keys else "foreign"


def is_sample(path: Path) -> bool:
    """Whether `mini sample` wrote this file."""
    return f'"made_by": "{SAMPLE}"'.encode() in _head(path)


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as source:
            return source.read(200).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:
        return b""


def place_pictures(path: Path, files: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """(folder, files in it) of the pictures that a COCO file names.

    They lie beside the file, or beside the folder "annotations" it is in, or below that: in
    "images", in a folder called like the image set, in such a one in "images", or in "data". The
    place where most of them are found is taken; names that go up start from the file's own folder.
    """
    home = data_folder(path)
    own = f"{Path(os.path.normpath(path.parent.absolute())).name}/" if home != path.parent else ""
    named = path.stem.removeprefix("instances_")
    prefixes = dict.fromkeys([own, "", "images/", f"{named}/", f"images/{named}/", "data/"])
    tried = [files[i * len(files) // TRIED] for i in range(TRIED)] if files else []
    found = {
        prefix: sum(is_file(home / _below(prefix, own, name)) for name in dict.fromkeys(tried))
        for prefix in prefixes
    }
    best = max(found, key=lambda prefix: (found[prefix], not prefix))
    return home, tuple(_below(best, own, name) for name in files)


def _below(prefix: str, own: str, name: str) -> str:
    if ".." not in name and "./" not in name:
        return prefix + name
    plain = posixpath.normpath(name)
    return posixpath.normpath(own + plain) if plain.startswith("../") else prefix + plain
