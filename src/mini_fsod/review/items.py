"""What a review shows: boxes of classes in pictures, each with the decision about it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mini_fsod.errors import UserError
from mini_fsod.review.crops import Gallery, View, view_of
from mini_fsod.review.decisions import (
    NOWHERE,
    Box,
    Decision,
    Journal,
    Place,
    last_in_force,
    rounded,
    settled,
)
from mini_fsod.state_files import Finite

PAGE = 12  # items that are offered together
LEAST_PIXELS = 1.0  # of a side of a drawn box

Number = Annotated[int, Field(ge=0, lt=1 << 31)]


class DecisionRequest(BaseModel):
    """A decision as the page sends it. `draw` adds a box to the item's picture."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    item: Number
    do: Literal["accept", "reject", "draw"]
    name: Annotated[str, Field(max_length=1000)] | None = Field(default=None, alias="class")
    box: Annotated[list[Finite], Field(min_length=4, max_length=4)] | None = None


class DecisionRequests(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    decisions: Annotated[list[DecisionRequest], Field(min_length=1, max_length=1000)]


@dataclass(slots=True)
class Item:
    """A mined box, a candidate, a drawn box; or a whole picture, where to draw boxes."""

    place: Place  # its box is empty for a whole picture
    picture: int  # its number in the gallery
    mined: bool = False
    score: float | None = None  # None: drawn by hand
    decision: Decision | None = None  # the one in force

    @property
    def is_picture(self) -> bool:
        return self.place.box == NOWHERE.box


class Review(ABC):
    """A review in progress: its items, its journal, and what the page asks for."""

    mode: str  # "mined" or "draw"
    order: str  # a sentence for the page

    def __init__(
        self,
        title: str,
        classes: Sequence[str],
        gallery: Gallery,
        sizes: Sequence[tuple[int, int]],
        journal: Journal,
    ) -> None:
        """`sizes` of the gallery's pictures as the data declares them; (0, 0) where it does not."""
        self.title, self.classes, self.gallery = title, tuple(classes), gallery
        self.items: list[Item] = []
        self.journal = journal
        self._sizes = sizes
        self._lock = RLock()
        self._numbers: dict[Place, int] = {}
        self._of_picture: dict[int, list[int]] = {}

    @abstractmethod
    def page(
        self, name: str | None, item: int | None = None, skip: Sequence[int] = ()
    ) -> dict[str, Any]:
        """The next items to decide, of a class or of the one that needs it most.

        `item` comes first, also where it is decided; those of `skip` are left out.
        """

    @abstractmethod
    def progress(self) -> list[dict[str, Any]]:
        """A row for each class."""

    @abstractmethod
    def _decided(self, items: Sequence[int]) -> None:
        """The decisions about items have changed, and are saved."""

    def overview(self) -> dict[str, Any]:
        with self._lock:
            return {
                "title": self.title,
                "mode": self.mode,
                "order": self.order,
                "classes": self.progress(),
                "decisions": len(self.journal.decisions),
            }

    def decide(self, requests: Sequence[DecisionRequest]) -> dict[str, Any]:
        """Save decisions. When this returns, the disk has them."""
        with self._lock:
            about = [self._item_of(request) for request in requests]
            pairs = zip(about, requests, strict=True)
            saved = self.journal.append([self._decision(item, request) for item, request in pairs])
            numbers = [self.add(item) for item in about]
            for number, decision in zip(numbers, saved, strict=True):
                self.items[number].decision = decision
            self._decided(numbers)
            return {"items": [self.shown(n) for n in numbers], "classes": self.progress()}

    def undo(self) -> dict[str, Any]:
        """Take the last decision back; the item it was about, or None."""
        with self._lock:
            last = last_in_force(self.journal.decisions)
            if last is None:
                return {"item": None, "classes": self.progress()}
            self.journal.append([Decision(NOWHERE, "undo", of=last.number)])
            number = self._numbers.get(last.place)
            if number is None:  # its picture is gone
                return {"item": None, "classes": self.progress()}
            state = settled([d for d in self.journal.decisions if d.place in (last.place, NOWHERE)])
            self.items[number].decision = state[last.place]
            self._decided([number])
            return {"item": self.shown(number), "classes": self.progress()}

    def add(self, item: Item) -> int:
        """The number of an item, which is added if there is none of its place yet."""
        if item.place not in self._numbers:
            self._numbers[item.place] = self.show_only(item)
        return self._numbers[item.place]

    def show_only(self, item: Item) -> int:
        """Add an item that nothing is decided about: a whole picture, or a shot."""
        self._of_picture.setdefault(item.picture, []).append(len(self.items))
        self.items.append(item)
        return len(self.items) - 1

    def item(self, number: int) -> Item:
        if not 0 <= number < len(self.items):
            raise UserError(f"There is no item {number}.", "Reload the page.")
        return self.items[number]

    def shown(self, number: int) -> dict[str, Any]:
        """An item as the page gets it."""
        item = self.items[number]
        about: dict[str, Any] = {
            "id": number,
            "picture": item.place.picture,
            "class": item.place.name,
            "box": None if item.is_picture else item.place.box,
            "score": item.score,
            "mined": item.mined,
            "state": "open" if item.decision is None else item.decision.do,
        }
        if item.decision is not None and item.decision.do == "accept":
            about |= {"as_class": item.decision.as_name, "as_box": item.decision.as_box}
        try:
            size = self.size(item)
        except UserError as error:
            return about | {"error": error.what, "size": None, "view": None, "others": []}
        view = View(0, 0, *size) if item.is_picture else view_of(item.place.box, size)
        return about | {"size": size, "view": view, "others": self.others(number)}

    def others(self, number: int) -> list[dict[str, Any]]:
        """Further boxes of the item's picture, to be shown beside it."""
        item = self.items[number]
        found = []
        for n in self._of_picture[item.picture]:
            other = self.items[n]
            decision = other.decision
            if other is item or other.is_picture or (decision and decision.do == "reject"):
                continue
            if decision is None and not other.mined:
                continue
            place = other.place if decision is None else decision.accepted
            kind = "mined" if decision is None else "accepted"
            found.append({"id": n, "kind": kind, "class": place.name, "box": place.box})
        return found

    def size(self, item: Item) -> tuple[int, int]:
        return self.gallery.size(item.picture, self._sizes[item.picture])

    def jpeg(self, number: int, side: int, whole: bool) -> bytes:
        """The view of an item, or its whole picture."""
        item = self.item(number)
        size = self.size(item)
        view = None if whole or item.is_picture else view_of(item.place.box, size)
        return self.gallery.jpeg(item.picture, view, side, self._sizes[item.picture])

    def _item_of(self, request: DecisionRequest) -> Item:
        """The item that a request decides about: for a drawn box, a new one in the same picture."""
        item = self.item(request.item)
        if request.do != "draw":
            return item
        if request.box is None or request.name is None:
            raise UserError("A drawn box needs a class and a box.")
        name, box = self._class(request.name), self._box(item, request.box)
        place = Place(item.place.picture, item.place.extra, name, box)
        known = self._numbers.get(place)
        return Item(place, item.picture) if known is None else self.items[known]

    def _decision(self, item: Item, request: DecisionRequest) -> Decision:
        if item.is_picture:
            raise UserError("A whole picture cannot be accepted or rejected.", "Draw a box in it.")
        if request.do == "draw":
            return Decision(item.place, "accept", item.mined, item.score)
        if request.do == "reject":
            return Decision(item.place, "reject", item.mined, item.score)
        name = None if request.name is None else self._class(request.name)
        box = None if request.box is None else self._box(item, request.box)
        return Decision(
            item.place,
            "accept",
            item.mined,
            item.score,
            None if name == item.place.name else name,
            None if box == item.place.box else box,
        )

    def _class(self, name: str) -> str:
        if name not in self.classes:
            raise UserError(f"There is no class {name[:100]!r} to choose.", "Reload the page.")
        return name

    def _box(self, item: Item, box: Sequence[float]) -> Box:
        """The box inside its picture; a UserError where nothing of it is."""
        width, height = self.size(item)
        x, y, w, h = box
        if not all(map(math.isfinite, box)) or max(map(abs, box)) > 1e7:
            raise UserError("A coordinate of the box is not a finite number.")
        left, top = min(max(x, 0.0), width), min(max(y, 0.0), height)
        right, bottom = min(max(x + w, 0.0), width), min(max(y + h, 0.0), height)
        if right - left < LEAST_PIXELS or bottom - top < LEAST_PIXELS:
            raise UserError("The box is smaller than a pixel, or outside of the picture.")
        return rounded((left, top, right - left, bottom - top))
