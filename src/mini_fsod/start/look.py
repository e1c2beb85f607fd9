"""What the photos and the boxes are: read once, before anything is chosen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mini_fsod import console
from mini_fsod.data.dataset import Dataset, Ints
from mini_fsod.data.layout import is_archive
from mini_fsod.data.pictures import PictureError, drawn_size, picture_sizes
from mini_fsod.data.read import read
from mini_fsod.data.subsets import is_of, is_target, renamed_as_in, testing_part, training_part
from mini_fsod.data.text import shown
from mini_fsod.data.unlisted import unlisted, with_unlisted
from mini_fsod.errors import DataError, UserError, nearest
from mini_fsod.files import is_file, is_folder, mode, real
from mini_fsod.labels import folded, refuse_other_spellings

LABELS_FIX = (
    "Draw boxes of the new class in about five photos with any tool (CVAT, Label Studio, "
    "labelImg, FiftyOne), export them, and give the file: --boxes FILE. Or draw them in the "
    "browser: mini review PHOTOS --novel CLASS -o five.json"
)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Photos, boxes and classes of a run that is to be."""

    photos_path: Path
    pictures: Path | None  # folder of the photos, where `photos_path` has their labels alone
    boxes_path: Path | None  # None: the shots are drawn from the photos' own labels
    photos: Dataset
    sizes: Ints  # (I, 2) width, height of the photos that can be opened
    unreadable: Sequence[str]  # photos that cannot be opened
    shots: Dataset  # pictures with boxes of new classes, named as in `photos`
    shots_root: Path | None  # folder of their pictures, where they do not lie with the boxes
    novel: tuple[str, ...]
    base: tuple[str, ...]  # classes of the photos' labels that are not new, with boxes
    unlisted: tuple[str, ...] = ()  # files of `photos` that their annotations do not list

    @property
    def boxes_of(self) -> dict[str, int]:
        """Usable boxes of each new class in the shots."""
        usable = is_target(self.shots)
        return {name: int((usable & is_of(self.shots, (name,))).sum()) for name in self.novel}

    @property
    def outside(self) -> list[str]:
        """Pictures of shots that are not among the photos."""
        known = set(self.photos.files)
        return [name for name in self.shots.files if name not in known]

    @property
    def to_mine(self) -> int:
        """Photos to train on without a box of a new class: those that mining can add something to.

        Where labels say which photos show a new object, it is still unknown in the others.
        """
        part = training_part(self.photos)
        images = self.photos if part is None else self.photos.subset(part)
        labelled = {images.files[i] for i in images.boxes.image[is_of(images, self.novel)].tolist()}
        return len(set(images.files) - labelled - set(self.shots.files))

    @property
    def is_scored(self) -> bool:
        return testing_part(self.photos) is not None


def look(
    photos_path: Path,
    boxes_path: Path | None,
    novel: Sequence[str],
    pictures: Path | None = None,
) -> Found:
    """Read photos and boxes; a UserError says what a run would lack."""
    if not mode(photos_path):
        raise UserError(f"{photos_path}: no such file or folder.", "Check the path.")
    photos = read(photos_path, root=pictures, without=boxes_path)
    if photos.kind == "folder" and boxes_path is None:
        inside = "".join(f" ({line})" for line in photos.notes)
        raise UserError(
            f"{photos_path}: {len(photos):,} photos without labels{inside}.", LABELS_FIX
        )
    beside = unlisted(photos) if pictures is None else ()  # labels of a run list all its pictures
    if beside:
        photos = with_unlisted(photos, training_part(photos))
    shots, root = (photos, None)
    if boxes_path is not None:
        shots, root = find_shots(boxes_path, photos, pictures or photos_path)
    base, new = _classes(photos_path, photos, shots, novel, boxes_path)
    missing = [name for name in new if not (is_of(shots, (name,)) & is_target(shots)).any()]
    if missing:
        known = ", ".join(map(shown, shots.classes[:50])) or "none"
        raise UserError(
            f"{boxes_path or photos_path}: no box of {', '.join(map(shown, missing))}."
            f"{nearest(missing[0], shots.classes)}",
            f"Its classes: {known}. Name them with --novel, each with an option of its own.",
        )
    wanted = np.unique(shots.boxes.image[is_of(shots, new) & is_target(shots)])
    sizes, unreadable = _sizes(photos)
    return Found(
        photos_path,
        pictures,
        boxes_path,
        photos,
        sizes,
        unreadable,
        shots.select(wanted),
        root,
        new,
        base,
        beside,
    )


def find_shots(path: Path, photos: Dataset, photos_path: Path) -> tuple[Dataset, Path | None]:
    """The boxes with their pictures found, and the folder to name in shots.root, if any.

    Pictures among the photos come first: a copy of them in the export would be mined again.
    """
    if not mode(path):
        raise UserError(f"{path}: no such file.", "Check the path of --boxes.")
    if is_folder(path) and real(path) == real(photos_path):
        return _with_boxes(read(path)), None
    given = is_folder(photos_path) or is_archive(photos_path)
    folder = photos_path if given else photos.root
    beside = _read(path, None)
    if isinstance(beside, Dataset) and not _missing(beside) and _inside(beside, folder):
        return renamed_as_in(beside, photos), None
    among = _read(path, folder)
    if (
        isinstance(among, Dataset)
        and not _missing(among)
        and (not isinstance(beside, Dataset) or len(among) == len(beside))
    ):
        return renamed_as_in(among, photos), folder
    if isinstance(beside, Dataset) and not _missing(beside):
        return renamed_as_in(beside, photos), None
    if not isinstance(among, Dataset):
        raise among
    missing = _missing(among)
    raise UserError(
        f"{path}: {len(missing)} of {console.count(len(among), 'picture')} with boxes not found, "
        f"such as {missing[0]}: neither beside the file nor in {folder}.",
        "Put them into the folder of the photos; names must be those of the export.",
    )


def _read(path: Path, pictures: Path | None) -> Dataset | DataError:
    """The pictures with boxes, looked for in a folder or with the boxes; or what is wrong."""
    try:
        data = _with_boxes(read(path, root=pictures))
    except DataError as error:
        return error
    if not len(data):
        raise UserError(f"{path}: no boxes.", LABELS_FIX)
    return data


def _with_boxes(data: Dataset) -> Dataset:
    return data.select(np.unique(data.boxes.image))


def _missing(data: Dataset) -> list[str]:
    return [name for name in data.files if not is_file(data.root / name)]


def _inside(data: Dataset, folder: Path) -> bool:
    home = real(folder)
    return all(home in real(data.path(i)).parents for i in range(len(data)))


def _classes(
    photos_path: Path,
    photos: Dataset,
    shots: Dataset,
    novel: Sequence[str],
    boxes_path: Path | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(base classes, new classes): those of the photos' labels that are not new, and the others."""
    labelled = [name for name in photos.classes if is_of(photos, (name,)).any()]
    given = [name for name in shots.classes if is_of(shots, (name,)).any()]
    if boxes_path is not None:
        refuse_other_spellings(boxes_path, given, labelled)
    new = list(dict.fromkeys(novel))
    if not new:
        new = [name for name in given if name not in labelled]
        if not new:
            listed = ", ".join(map(shown, given[:20]))
            words = [f"mini init {shlex.quote(str(photos_path))}"]
            words += [f"--boxes {shlex.quote(str(boxes_path))}"] * (boxes_path is not None)
            words += [f"--novel {shlex.quote(given[0])}"]
            raise UserError(
                f"Which classes are new? The photos' labels have all of {listed}.",
                f"If that one is: {' '.join(words)}."
                if len(given) == 1
                else "Name the new ones: --novel CLASS, repeated for several.",
            )
    unknown = [name for name in new if name not in given]
    close = [name for name in given if unknown and folded(name) == folded(unknown[0])]
    if close:
        raise UserError(
            f"--novel {shown(unknown[0])}: the boxes say {shown(close[0])}.",
            f"Use their spelling: --novel {shown(close[0])}.",
        )
    return tuple(name for name in labelled if name not in new), tuple(new)


def _sizes(photos: Dataset) -> tuple[Ints, list[str]]:
    """Sizes of the photos, from their headers, and the names of those that cannot be opened."""
    sizes, unreadable = [], []
    paths = [photos.path(i) for i in range(len(photos))]
    with console.progress("opening photos", len(paths)) as done:
        for name, found in zip(photos.files, picture_sizes(paths, progress=done), strict=True):
            if isinstance(found, PictureError):
                unreadable.append(f"{name} ({found.what})")
            else:
                sizes.append(drawn_size(*found))
    if not sizes:
        raise UserError(
            f"{photos.root}: none of {console.count(len(photos), 'photo')} can be opened"
            f"{f', such as {unreadable[0]}' if unreadable else ''}.",
            "`mini check` says what is wrong with each.",
        )
    return np.array(sizes, dtype=np.int64), unreadable
