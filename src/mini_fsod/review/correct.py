"""What decisions do to a pool: the content of `pool.json`, corrected.

An accepted box is in the pool with score 1; the boxes that it replaces are gone. A rejected place
holds no box of its class, and is listed under "rejected", so that re-training does not take it from
the teacher either. Both hold for the place, not for a record: mining may be repeated with other
settings, and other tools may renumber the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mini_fsod.data.overlap import iou_of_two
from mini_fsod.mining.names import REJECTED, REVIEWED, finder
from mini_fsod.review.decisions import Decision, Place, settled

SAME_PLACE = 0.5  # IoU from which two boxes of a class are one place
SAME_BOX = 0.9  # IoU from which two boxes are the same, whatever rounding did


def accepted_and_rejected(
    state: Mapping[Place, Decision | None],
) -> tuple[list[Place], list[Place]]:
    """The boxes that a review has accepted, as they were corrected, and the places it has rejected.

    A box that was moved off its place, or given another class, leaves a rejected place behind. No
    place is rejected where a box of its class is accepted: the object is there.
    """
    standing = [decision for decision in state.values() if decision is not None]
    accepted = list(dict.fromkeys(d.accepted for d in standing if d.do == "accept"))
    # a box drawn by hand and taken back says nothing about what mining may find there
    left = [d.place for d in standing if d.do == "accept" or d.score is not None]
    near: dict[tuple[Any, ...], list[Place]] = {}
    for box in accepted:
        near.setdefault(box[:3], []).append(box)
    gone = [
        place
        for place in left
        if all(iou_of_two(place.box, box.box) < SAME_PLACE for box in near.get(place[:3], ()))
    ]
    return accepted, gone


def corrected_pool(
    content: Mapping[str, Any],
    decisions: Sequence[Decision],
    extra: bool,
    files: Sequence[str],
    since: int = 0,
) -> dict[str, Any]:
    """The content of a pool with the decisions about its pictures; a ValueError where it is none.

    `files` are the names of all pictures that were mined, `extra` says whether they are those of
    `mine.extra`. Decisions up to number `since` are in the pool already, and somebody has edited it
    after that: about their places, the edit is the last word.
    """
    state = {place: d for place, d in settled(decisions).items() if place.extra == extra}
    accepted, rejected = accepted_and_rejected(state)
    touched = _places_of(decisions, since) & state.keys()
    pool = _Pool(content, files)
    there = {box for box in accepted if since and pool.has(box, SAME_BOX)}
    latest = [d for place, d in state.items() if d is not None and place in touched]
    earlier = [d for d in decisions if d.place in touched] if since else []
    for decision in (*earlier, *latest):
        pool.remove(decision.place)
        pool.remove(decision.accepted)
    there |= {decision.accepted for decision in latest if decision.do == "accept"}
    for box in accepted:
        if box in there:
            pool.add(box, REVIEWED)
    undone = {place for place in touched if state[place] is None} if since else set()
    for decision in {d.place: d for d in reversed(decisions) if d.place in undone}.values():
        if decision.mined and decision.score is not None:
            pool.add(decision.place, decision.score)
    pool.list_rejected([p for p in rejected if p in touched or not pool.has(p, SAME_PLACE)])
    return pool.content()


def _places_of(decisions: Sequence[Decision], since: int) -> set[Place]:
    """The places that decisions after number `since` are about."""
    by_number = {decision.number: decision for decision in decisions}
    late = (decision for decision in decisions if decision.number > since)
    about = (by_number.get(d.of) if d.do == "undo" else d for d in late)
    return {decision.place for decision in about if decision is not None}


class _Pool:
    """The content of a pool, whose records are found by the names of pictures and classes."""

    def __init__(self, content: Mapping[str, Any], files: Sequence[str]) -> None:
        try:
            self._content = dict(content)
            self._lists = {
                key: list(content[key]) for key in ("images", "annotations", "categories")
            }
            find = finder(tuple(files))
            self._images: dict[str, Any] = {}  # id of each picture
            for image in self._lists["images"]:
                found = find(image["file_name"])
                if len(found) == 1:
                    self._images[files[found[0]]] = image["id"]
            self._classes = {c["name"]: c["id"] for c in self._lists["categories"]}
            self._boxes: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
            for box in self._lists["annotations"]:
                _, _, _, _ = (float(side) for side in box["bbox"])
                key = box["image_id"], box["category_id"]
                self._boxes.setdefault(key, []).append(box)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a pool ({error})") from None
        self._next = {key: _next_id(records) for key, records in self._lists.items()}
        self._removed: set[int] = set()  # ids of Python objects
        self._rejected: list[Place] = []

    def has(self, place: Place, iou: float) -> bool:
        return any(iou_of_two(box["bbox"], place.box) >= iou for box in self._at(place))

    def remove(self, place: Place) -> None:
        """Take away the boxes of its class at a place."""
        boxes = self._at(place)
        gone = [box for box in boxes if iou_of_two(box["bbox"], place.box) >= SAME_PLACE]
        self._removed.update(map(id, gone))
        boxes[:] = [box for box in boxes if id(box) not in self._removed]

    def add(self, place: Place, score: float) -> None:
        """Add a box; its picture and class too, where a tool has left out those without a box."""
        if place.picture not in self._images:
            self._images[place.picture] = self._append("images", file_name=place.picture)
        if place.name not in self._classes:
            self._classes[place.name] = self._append("categories", name=place.name)
        self._append(
            "annotations",
            image_id=self._images[place.picture],
            category_id=self._classes[place.name],
            bbox=list(place.box),
            area=place.box[2] * place.box[3],
            iscrowd=0,
            segmentation=[],
            score=score,
            category=place.name,
        )
        self._at(place).append(self._lists["annotations"][-1])

    def list_rejected(self, places: Iterable[Place]) -> None:
        self._rejected = list(places)

    def content(self) -> dict[str, Any]:
        boxes = [box for box in self._lists["annotations"] if id(box) not in self._removed]
        rejected = [
            {"file_name": p.picture, "category": p.name, "bbox": list(p.box)}
            for p in self._rejected
        ]
        kept = {key: value for key, value in self._content.items() if key != REJECTED}
        kept |= self._lists | {"annotations": boxes}
        return kept | ({REJECTED: rejected} if rejected else {})

    def _append(self, key: str, **record: Any) -> int:
        number = self._next[key]
        self._next[key] += 1
        self._lists[key].append({"id": number, **record})
        return number

    def _at(self, place: Place) -> list[dict[str, Any]]:
        key = self._images.get(place.picture), self._classes.get(place.name)
        return [] if None in key else self._boxes.setdefault(key, [])


def _next_id(records: Sequence[Mapping[str, Any]]) -> int:
    return 1 + max((r["id"] for r in records if isinstance(r.get("id"), int)), default=0)
