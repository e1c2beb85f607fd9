"""Drawing the first boxes of new classes on photos, saved as a file of shots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from mini_fsod import console
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.layout import SAMPLE, name_of
from mini_fsod.data.read import read
from mini_fsod.data.shots import sample_digest
from mini_fsod.data.subsets import default_training_set
from mini_fsod.data.write import write_coco
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, lock
from mini_fsod.labels import LabelMap
from mini_fsod.review.crops import Gallery
from mini_fsod.review.decisions import NOWHERE, Journal, Place, settled
from mini_fsod.review.items import PAGE, Item, Review

GOAL = 5  # boxes of each class that are asked for
SEED = 0  # of the order of the pictures


class Drawing(Review):
    """Photos in a random order, and the boxes drawn on them."""

    mode = "draw"
    order = (
        "Order: random, so that the boxes come from different pictures. Draw boxes around whole "
        "objects, large and typical ones; five per class are a good start."
    )

    def __init__(
        self, data: Dataset, novel: Sequence[str], out: Path, journal: Journal, links: bool = False
    ) -> None:
        self._data, self._out = data, out
        paths = [data.path(i) for i in range(len(data))]
        sizes = [(int(w), int(h)) for w, h in data.sizes.tolist()]
        gallery = Gallery(paths, [data.root], links)
        super().__init__(name_of(data.root), novel, gallery, sizes, journal)
        order = [*range(len(data))]
        Random(SEED).shuffle(order)
        self._pictures = [
            self.show_only(Item(NOWHERE._replace(picture=data.files[i]), i)) for i in order
        ]
        index = {file: i for i, file in enumerate(data.files)}
        for place, decision in settled(journal.decisions).items():
            if place.picture in index and place.name in self.classes:
                self.add(Item(place, index[place.picture], decision=decision))

    def page(
        self, name: str | None, item: int | None = None, skip: Sequence[int] = ()
    ) -> dict[str, Any]:
        with self._lock:
            left_out = {*skip}
            numbers = [n for n in self._pictures if n not in left_out and not self._drawn_in(n)][
                :PAGE
            ]
            if item is not None and item in self._pictures:
                numbers = [item, *(n for n in numbers if n != item)][:PAGE]
            progress = self.progress()
            open_classes = [row["name"] for row in progress if row["accepted"] < GOAL]
            return {
                "class": name or (open_classes or [*self.classes])[0],
                "items": [self.shown(n) for n in numbers],
                "classes": progress,
            }

    def progress(self) -> list[dict[str, Any]]:
        names = [place.name for place in self.drawn()]
        return [{"name": n, "accepted": names.count(n), "goal": GOAL} for n in self.classes]

    def drawn(self) -> list[Place]:
        decisions = [item.decision for item in self.items]
        return [d.accepted for d in decisions if d is not None and d.do == "accept"]

    def _drawn_in(self, number: int) -> bool:
        return any(
            (decision := self.items[n].decision) is not None and decision.do == "accept"
            for n in self._of_picture[self.items[number].picture]
        )

    def _decided(self, items: Sequence[int]) -> None:
        self.write()

    def write(self) -> None:
        """Write the file of shots: the pictures with a drawn box, and these boxes."""
        sizes = self._data.sizes.copy()
        for place in (drawn := self.drawn()):
            i = self._data.files.index(place.picture)
            sizes[i] = self.gallery.size(i, self._sizes[i])
        data = replace(self._data, sizes=sizes)
        write_shots(self._out, data, self.classes, drawn, "drawn in mini review")


def write_shots(
    path: Path, data: Dataset, novel: Sequence[str], places: Sequence[Place], origin: str
) -> None:
    """A file of shots with boxes of the data's pictures, as `mini sample` writes it."""
    index = {file: i for i, file in enumerate(data.files)}
    boxes = Boxes.of(
        [index[place.picture] for place in places],
        np.array([place.box for place in places]).reshape(-1, 4),
        [novel.index(place.name) for place in places],
    )
    classes = tuple(novel)
    named = replace(
        data, classes=classes, category_ids=tuple(range(1, len(classes) + 1)), boxes=boxes
    )
    shots = named.select(np.unique(boxes.image))
    counts = np.bincount(boxes.label, minlength=len(classes)).tolist()
    info = {
        "made_by": SAMPLE,  # first, so that `is_sample` finds it: pictures lie in the data's folder
        "description": ", ".join(f"{n} of {name}" for n, name in zip(counts, classes, strict=True)),
        "origin": origin,
        "sha256": sample_digest(shots),
    }
    write_coco(path, shots, LabelMap((), classes), info)


@contextmanager
def drawing(
    photos: Path, novel: Sequence[str], out: Path, links: bool = False
) -> Iterator[Drawing]:
    """Photos to draw boxes on. The decisions are kept beside the file of shots, as .jsonl."""
    path = out.with_suffix(".jsonl")
    if is_file(out) and not is_file(path):
        raise UserError(
            f"{out}: exists without {path.name}, in which `mini review` keeps its boxes.",
            "Choose another file for -o.",
        )
    whole = read(photos)
    for line in whole.notes:
        console.note(line)
    _, data = default_training_set(whole)
    if not len(data):
        raise UserError(f"{photos}: there are no pictures.", "Choose another folder.")
    with lock(out.with_name(f".{out.name}.lock")) as alone:
        if not alone:
            raise UserError(f"{out}: another `mini review` writes this file.", "Stop it first.")
        journal = Journal(path)
        try:
            begun = Drawing(data, novel, out, journal, links)
            if begun.drawn():
                begun.write()  # of a process that was killed
            yield begun
        finally:
            journal.close()
