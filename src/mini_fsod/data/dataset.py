"""One in-memory data set for every format: names and files as tuples, boxes as arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_fsod.errors import UserError, nearest

ImageId = int | str
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """B boxes, ordered by image and, within an image, as in the file.

    A box may lie outside its image or have no area: what to do about it is the caller's decision.
    """

    image: Ints  # (B,) index of the box's image
    xywh: Floats  # (B, 4) x, y, width, height in pixels from 0, as the file gives them
    label: Ints  # (B,) index into Dataset.classes
    area: Floats  # (B,) COCO's own `area` (of the mask), else width x height
    record: Ints  # (B,) the file's own number: annotation id, object in the XML, line of the text
    crowd: Bools  # (B,) COCO's `iscrowd`
    ignore: Bools  # (B,) COCO's `ignore`
    difficult: Bools  # (B,) VOC's `difficult`

    def __len__(self) -> int:
        return len(self.image)

    @property
    def xyxy(self) -> Floats:
        """(B, 4) left, top, right, bottom; the right and bottom edges are exclusive."""
        with np.errstate(over="ignore", invalid="ignore"):  # wrong files hold 1e308 and NaN
            return np.concatenate([self.xywh[:, :2], self.xywh[:, :2] + self.xywh[:, 2:]], axis=1)

    @property
    def sound(self) -> Bools:
        """(B,) finite boxes with area: what can be learnt from."""
        xywh = self.xywh
        return np.asarray(np.isfinite(xywh).all(axis=1) & (xywh[:, 2:] > 0).all(axis=1))

    def take(self, index: npt.NDArray[Any]) -> Boxes:
        """The boxes at these indices, or where this mask is true."""
        return Boxes(**{name: getattr(self, name)[index] for name in self.__slots__})

    def joined(self, others: Boxes) -> Boxes:
        """These boxes and others of the same images; within an image the others come behind."""
        columns = {
            name: np.concatenate([getattr(self, name), getattr(others, name)])
            for name in self.__slots__
        }
        both = Boxes(**columns)
        return both.take(np.argsort(both.image, kind="stable"))

    @property
    def content(self) -> bytes:
        """Where they lie, what they show and how they count, for digests."""
        flags = (self.crowd, self.ignore, self.difficult)
        columns = (self.image, self.label, self.xywh, *flags)
        return b"".join(np.ascontiguousarray(column).tobytes() for column in columns)

    @classmethod
    def of(cls, image: Sequence[int] | Ints, xywh: Any, label: Any, **columns: Any) -> Boxes:
        """Boxes from columns in any order of images; flags that are not given are false."""
        images = np.asarray(image, dtype=np.int64)
        n = len(images)
        box = np.asarray(xywh, dtype=np.float64).reshape(n, 4)
        order = np.argsort(images, kind="stable")
        with np.errstate(over="ignore", invalid="ignore"):
            area = columns.get("area", box[:, 2] * box[:, 3])
        record = columns.get("record")

        def flag(name: str) -> Bools:
            return np.asarray(columns.get(name, np.zeros(n)), dtype=np.bool_)

        return cls(
            image=images,
            xywh=box,
            label=np.asarray(label, dtype=np.int64),
            area=np.asarray(area, dtype=np.float64),
            record=np.arange(n) if record is None else np.asarray(record, dtype=np.int64),
            crowd=flag("crowd"),
            ignore=flag("ignore"),
            difficult=flag("difficult"),
        ).take(order)


NO_BOXES = Boxes.of([], np.zeros((0, 4)), [])


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Annotated images: image i has `ids[i]`, the picture `root / files[i]`, a part of `boxes`."""

    kind: str  # "coco", "voc", "yolo" or "folder"
    root: Path
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]  # the file's own number of each class
    ids: tuple[ImageId, ...]  # COCO's number; the file's stem otherwise
    files: tuple[str, ...]  # relative to root, with forward slashes
    sizes: Ints  # (I, 2) width, height as declared; 0, 0 where nothing is declared
    boxes: Boxes
    sources: tuple[str, ...]  # (I,) the annotation file that speaks of the image
    subsets: Mapping[str, Ints] = field(default_factory=dict)  # name: image indices
    # (I,) ids that tell images of one image set apart, where `ids` had to be longer for all; or ()
    short_ids: tuple[ImageId, ...] = ()
    unread: tuple[str, ...] = ()  # what the files say beyond this, in words
    notes: tuple[str, ...] = ()  # what lies there and was not read, a sentence each

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
        """These images only, in this order, with their boxes. Subsets keep what is left of them."""
        chosen = np.asarray(images, dtype=np.int64)
        place = np.full(len(self), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        boxes = self.boxes.take(place[self.boxes.image] >= 0)
        boxes = replace(boxes, image=place[boxes.image])
        pick = chosen.tolist()
        return replace(
            self,
            ids=tuple(self.ids[i] for i in pick),
            files=tuple(self.files[i] for i in pick),
            short_ids=tuple(self.short_ids[i] for i in pick) if self.short_ids else (),
            sources=tuple(self.sources[i] for i in pick),
            sizes=self.sizes[chosen],
            boxes=boxes.take(np.argsort(boxes.image, kind="stable")),
            subsets={n: p[p >= 0] for n, i in self.subsets.items() for p in [place[i]]},
        )

    def subset(self, name: str) -> Dataset:
        """The images of one image set, such as "trainval" or "test", with ids as short as can be.

        Pictures of train and test may share their names; within the set they are then enough.
        """
        if name not in self.subsets:
            known = ", ".join(self.subsets) or "none: the data has a single set of images"
            raise UserError(
                f'The data has no image set "{name}".{nearest(name, self.subsets)}',
                f"Image sets there: {known}.",
            )
        part = self.select(self.subsets[name])
        if len(set(part.short_ids)) == len(part) > 0:
            return replace(part, ids=part.short_ids, short_ids=())
        return part

    def shows(self, image: Ints, xywh: Floats) -> Bools:
        """(n,) whether some of each box lies in its picture, as far as its size is declared."""
        size = self.sizes[image]
        with np.errstate(over="ignore", invalid="ignore"):
            within = (xywh[:, :2] < size) & (xywh[:, :2] + xywh[:, 2:] > 0)
        return np.asarray((within | (size < 1)).all(axis=1))

    def where(self, box: int) -> tuple[str, str]:
        """(file, record) of a box, in the words of its format, for messages."""
        word = {"coco": "annotation", "voc": "object", "yolo": "line"}.get(self.kind, "box")
        return self.sources[int(self.boxes.image[box])], f"{word} {int(self.boxes.record[box])}"
