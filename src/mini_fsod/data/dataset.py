"""An annotated data set in memory, the same for every format: names as tuples, boxes as arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_fsod.data.text import shown
from mini_fsod.errors import UserError, nearest

ImageId = int | str
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def areas_of(xywh: Floats) -> Floats:
    """(B,) areas of boxes (B, 4); the largest number instead of infinity, which JSON lacks."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.minimum(xywh[:, 2] * xywh[:, 3], np.finfo(np.float64).max))


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """B boxes, ordered by image and, within an image, as in the file.

    A box may be outside its image or have no area.
    """

    image: Ints  # (B,) index of the box's image
    xywh: Floats  # (B, 4) x, y, width, height in pixels from 0, as the file gives them
    label: Ints  # (B,) index into Dataset.classes
    area: Floats  # (B,) COCO's own `area` (of the mask), else width x height
    record: Ints  # (B,) the file's own number: annotation id, object in the XML, line of the text
    crowd: Bools  # (B,) COCO's `iscrowd`
    ignore: Bools  # (B,) COCO's `ignore`
    difficult: Bools  # (B,) VOC's `difficult`
    score: Floats  # (B,) of detections and mined boxes, 0 to 1; nan for annotations

    def __len__(self) -> int:
        return len(self.image)

    @property
    def xyxy(self) -> Floats:
        """(B, 4) left, top, right, bottom; the right and bottom edges are exclusive."""
        with np.errstate(over="ignore", invalid="ignore"):  # wrong files hold 1e308 and NaN
            return np.concatenate([self.xywh[:, :2], self.xywh[:, :2] + self.xywh[:, 2:]], axis=1)

    @property
    def sound(self) -> Bools:
        """(B,) finite boxes with area."""
        xywh = self.xywh
        return np.asarray(np.isfinite(xywh).all(axis=1) & (xywh[:, 2:] > 0).all(axis=1))

    def take(self, index: npt.NDArray[Any]) -> Boxes:
        """The boxes at these indices, or where this mask is true."""
        return Boxes(**{name: getattr(self, name)[index] for name in self.__slots__})

    def joined(self, others: Boxes) -> Boxes:
        """These boxes and others of the same images; within an image, the others come last."""
        both = concatenated([self, others])
        return both.take(np.argsort(both.image, kind="stable"))

    @property
    def content(self) -> bytes:
        """Images, coordinates, classes and flags, for digests."""
        flags = (self.crowd, self.ignore, self.difficult)
        columns = (self.image, self.label, self.xywh, *flags)
        return b"".join(np.ascontiguousarray(column).tobytes() for column in columns)

    @classmethod
    def of(cls, image: Sequence[int] | Ints, xywh: Any, label: Any, **columns: Any) -> Boxes:
        """Boxes from columns, sorted by image here; flags default to false."""
        images = np.asarray(image, dtype=np.int64)
        n = len(images)
        box = np.asarray(xywh, dtype=np.float64).reshape(n, 4)
        area = columns.get("area", areas_of(box))
        flags = {name: np.zeros(n, dtype=np.bool_) for name in ("crowd", "ignore", "difficult")}
        flags |= {
            name: np.asarray(columns[name], dtype=np.bool_) for name in flags if name in columns
        }
        return cls(
            image=images,
            xywh=box,
            label=np.asarray(label, dtype=np.int64),
            area=np.asarray(area, dtype=np.float64),
            record=np.asarray(columns.get("record", np.arange(n)), dtype=np.int64),
            score=np.asarray(columns.get("score", np.full(n, np.nan)), dtype=np.float64),
            **flags,
        ).take(np.argsort(images, kind="stable"))


def concatenated(parts: Sequence[Boxes]) -> Boxes:
    """The boxes of all parts, one after the other; they must stay ordered by image."""
    columns = {c: np.concatenate([getattr(p, c) for p in parts]) for c in Boxes.__slots__}
    return Boxes(**columns)


NO_BOXES = Boxes.of([], np.zeros((0, 4)), [])


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Annotated images. Image i has the id `ids[i]` and the picture `root / files[i]`."""

    kind: str  # "coco", "voc", "yolo", "cvat", "label studio", "fiftyone" or "folder"
    root: Path
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]  # the file's own number of each class
    ids: tuple[ImageId, ...]  # COCO's number; in other formats, the file's stem
    files: tuple[str, ...]  # relative to root, with forward slashes
    sizes: Ints  # (I, 2) width, height as declared; 0, 0 where nothing is declared
    boxes: Boxes
    sources: tuple[str, ...]  # (I,) the annotation file of each image
    subsets: Mapping[str, Ints] = field(default_factory=dict)  # name: image indices
    # (I,) ids that are unique within an image set only; () if `ids` are as short
    short_ids: tuple[ImageId, ...] = ()
    unread: tuple[str, ...] = ()  # what the files contain beyond this, for people
    notes: tuple[str, ...] = ()  # on files that were not read, for people

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        """SHA-256 of the classes and of the names, ids, sizes and boxes of the images.

        Folders, file times and the pictures' pixels do not count.
        """
        names = json.dumps([self.classes, self.files, self.ids]).encode()
        sizes = np.ascontiguousarray(self.sizes).tobytes()
        return sha256(names + sizes + self.boxes.area.tobytes() + self.boxes.content).hexdigest()

    @property
    def offsets(self) -> Ints:
        """(I + 1,) image i has the boxes offsets[i] to offsets[i + 1]."""
        return np.searchsorted(self.boxes.image, np.arange(len(self) + 1)).astype(np.int64)

    def path(self, i: int) -> Path:
        return self.root / self.files[i]

    def with_boxes(self, boxes: Boxes) -> Dataset:
        return replace(self, boxes=boxes)

    def select(self, images: Ints | Sequence[int]) -> Dataset:
        """These images, in this order, with their boxes. Image sets lose the other images."""
        chosen = np.asarray(images, dtype=np.int64)
        new_index = np.full(len(self), -1, dtype=np.int64)
        new_index[chosen] = np.arange(len(chosen))
        boxes = self.boxes.take(new_index[self.boxes.image] >= 0)
        boxes = replace(boxes, image=new_index[boxes.image])
        pick = chosen.tolist()
        return replace(
            self,
            ids=tuple(self.ids[i] for i in pick),
            files=tuple(self.files[i] for i in pick),
            short_ids=tuple(self.short_ids[i] for i in pick) if self.short_ids else (),
            sources=tuple(self.sources[i] for i in pick),
            sizes=self.sizes[chosen],
            boxes=boxes.take(np.argsort(boxes.image, kind="stable")),
            subsets={n: j[j >= 0] for n, i in self.subsets.items() for j in [new_index[i]]},
        )

    def subset(self, name: str) -> Dataset:
        """The images of one image set, such as "trainval" or "test".

        They get their short ids, if these are unique: pictures of train and test may share names.
        """
        if name not in self.subsets:
            known = ", ".join(islice(self.subsets, 20)) or "none"
            raise UserError(
                f"The data has no image set {shown(name)}.{nearest(name, self.subsets)}",
                f"Image sets: {known}.",
            )
        part = self.select(self.subsets[name])
        if len(set(part.short_ids)) == len(part) > 0:
            return replace(part, ids=part.short_ids, short_ids=())
        return part

    def overlaps_picture(self, image: Ints, xywh: Floats) -> Bools:
        """(n,) whether each box overlaps its picture; true where its size is not declared."""
        size = self.sizes[image]
        with np.errstate(over="ignore", invalid="ignore"):
            within = (xywh[:, :2] < size) & (xywh[:, :2] + xywh[:, 2:] > 0)
        return np.asarray((within | (size < 1)).all(axis=1))

    def where(self, box: int) -> tuple[str, str]:
        """(file, record) of a box for messages, such as "annotation 17"."""
        noun = {"coco": "annotation", "voc": "object", "yolo": "line"}.get(self.kind, "box")
        return self.sources[int(self.boxes.image[box])], f"{noun} {int(self.boxes.record[box])}"

    def where_image(self, i: int) -> tuple[str, str]:
        """(file, record) of an image for messages."""
        record = "" if self.kind == "folder" else f"image {self.ids[i]}: {self.files[i][:200]}"
        return self.sources[i], record
