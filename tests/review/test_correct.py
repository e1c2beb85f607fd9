"""What decisions do to a pool."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mini_fsod.review.correct import corrected_pool
from mini_fsod.review.decisions import NOWHERE, Box, Decision, Place

FILES = ("day/a.png", "day/b.png", "night/a.png")
LEFT: Box = (10.0, 10.0, 20.0, 20.0)
NEAR: Box = (12.0, 10.0, 20.0, 20.0)  # IoU with LEFT: 0.82
RIGHT: Box = (60.0, 10.0, 20.0, 20.0)


def pool(*rows: tuple[str, str, Box, float]) -> dict[str, Any]:
    names = ["bolt", "nut"]
    return {
        "info": {"description": "kept"},
        "images": [{"id": 7 + n, "file_name": file} for n, file in enumerate(FILES)],
        "annotations": [
            {
                "id": n + 1,
                "image_id": 7 + FILES.index(file),
                "category_id": 1 + names.index(name),
                "bbox": list(box),
                "score": score,
            }
            for n, (file, name, box, score) in enumerate(rows)
        ],
        "categories": [{"id": 1, "name": "bolt"}, {"id": 2, "name": "nut"}],
    }


MINED = pool(("day/a.png", "bolt", LEFT, 0.9), ("day/b.png", "nut", LEFT, 0.8))


def at(box: Box = LEFT, name: str = "bolt", picture: str = "day/a.png") -> Place:
    return Place(picture, False, name, box)


def journal(*decisions: Decision) -> list[Decision]:
    return [
        Decision(d.place, d.do, d.mined, d.score, d.as_name, d.as_box, d.of, n)
        for n, d in enumerate(decisions, start=1)
    ]


def undo(number: int) -> Decision:
    return Decision(NOWHERE, "undo", of=number)


def correct(
    content: dict[str, Any], *decisions: Decision, since: int = 0, extra: bool = False
) -> dict[str, Any]:
    before = copy.deepcopy(content)
    found = corrected_pool(content, journal(*decisions), extra, FILES, since)
    assert content == before
    return found


def rows(content: dict[str, Any]) -> list[tuple[str, str, Box, float]]:
    files = {image["id"]: image["file_name"] for image in content["images"]}
    names = {category["id"]: category["name"] for category in content["categories"]}
    return sorted(
        (files[b["image_id"]], names[b["category_id"]], tuple(b["bbox"]), b["score"])
        for b in content["annotations"]
    )


NUT = ("day/b.png", "nut", LEFT, 0.8)
MINED_BOLT = Decision(at(), "accept", True, 0.9)
NO_BOLT = Decision(at(), "reject", True, 0.9)


def test_corrected_pool_without_decisions_is_the_pool() -> None:
    assert correct(MINED) == MINED
    assert correct(MINED, NO_BOLT, undo(1)) == MINED


def test_corrected_pool_gives_accepted_boxes_a_score_of_1() -> None:
    found = correct(MINED, MINED_BOLT)
    assert rows(found) == [("day/a.png", "bolt", LEFT, 1.0), NUT]
    assert "rejected" not in found
    assert found["info"] == MINED["info"]
    assert len({box["id"] for box in found["annotations"]}) == 2


def test_corrected_pool_lacks_rejected_places_and_lists_them() -> None:
    found = correct(MINED, NO_BOLT)
    assert rows(found) == [NUT]
    assert found["rejected"] == [
        {"file_name": "day/a.png", "category": "bolt", "bbox": [10.0, 10.0, 20.0, 20.0]}
    ]


def test_corrected_pool_holds_for_places_when_mining_is_repeated() -> None:
    """Other settings have moved the boxes a little; the decisions hold all the same."""
    again = pool(("day/a.png", "bolt", NEAR, 0.7), ("day/b.png", "nut", NEAR, 0.6))
    accepted = Decision(at(LEFT, "nut", "day/b.png"), "accept", True, 0.8)
    assert rows(correct(again, NO_BOLT, accepted)) == [("day/b.png", "nut", LEFT, 1.0)]


def test_corrected_pool_rejects_for_the_class_alone() -> None:
    both = pool(("day/a.png", "bolt", LEFT, 0.9), ("day/a.png", "nut", LEFT, 0.8))
    assert rows(correct(both, NO_BOLT)) == [("day/a.png", "nut", LEFT, 0.8)]


def test_corrected_pool_relabels() -> None:
    found = correct(MINED, Decision(at(), "accept", True, 0.9, as_name="nut"))
    assert rows(found) == [("day/a.png", "nut", LEFT, 1.0), NUT]
    assert [r["category"] for r in found["rejected"]] == ["bolt"]


def test_corrected_pool_moves_a_redrawn_box() -> None:
    near = correct(MINED, Decision(at(), "accept", True, 0.9, as_box=NEAR))
    assert rows(near)[0] == ("day/a.png", "bolt", NEAR, 1.0)
    assert "rejected" not in near  # the same object
    far = correct(MINED, Decision(at(), "accept", True, 0.9, as_box=RIGHT))
    assert rows(far)[0] == ("day/a.png", "bolt", RIGHT, 1.0)
    assert [r["bbox"] for r in far["rejected"]] == [[*LEFT]]


def test_corrected_pool_has_drawn_boxes_and_candidates() -> None:
    drawn = Decision(at(RIGHT), "accept")
    candidate = Decision(at(RIGHT, "nut", "night/a.png"), "accept", False, 0.3)
    assert rows(correct(MINED, drawn, candidate)) == [
        ("day/a.png", "bolt", LEFT, 0.9),
        ("day/a.png", "bolt", RIGHT, 1.0),
        NUT,
        ("night/a.png", "nut", RIGHT, 1.0),
    ]


def test_corrected_pool_never_drops_an_accepted_box_for_another() -> None:
    found = correct(MINED, MINED_BOLT, Decision(at(NEAR), "accept"))
    assert rows(found)[:2] == [
        ("day/a.png", "bolt", LEFT, 1.0), ("day/a.png", "bolt", NEAR, 1.0),
    ]  # fmt: skip
    # rejecting a neighbour of an accepted box says nothing about that box
    found = correct(MINED, MINED_BOLT, Decision(at(NEAR), "reject", False, 0.2))
    assert rows(found)[0] == ("day/a.png", "bolt", LEFT, 1.0)
    assert "rejected" not in found


def test_corrected_pool_forgets_a_drawn_box_that_was_taken_back() -> None:
    found = correct(MINED, Decision(at(RIGHT), "accept"), Decision(at(RIGHT), "reject"))
    assert found == MINED


def test_corrected_pool_takes_decisions_about_its_own_pictures() -> None:
    other = Decision(at()._replace(extra=True), "reject", True, 0.9)
    assert correct(MINED, other) == MINED
    assert rows(correct(MINED, other, extra=True)) == [NUT]


# Pools that were edited in another tool


def test_corrected_pool_finds_pictures_by_names_of_other_tools() -> None:
    edited = pool(("day/a.png", "bolt", LEFT, 0.9))
    edited["images"] = [{"id": 7, "file_name": "upload/day/a.png"}]  # the others had no box
    edited["categories"] = edited["categories"][:1]
    drawn = Decision(at(LEFT, "nut", "night/a.png"), "accept")
    assert rows(correct(edited, NO_BOLT, drawn)) == [("night/a.png", "nut", LEFT, 1.0)]


def test_corrected_pool_leaves_an_edit_after_the_decision_alone() -> None:
    """The person deleted the accepted box, and put the rejected one back: that is the last word."""
    edited = pool(("day/a.png", "bolt", LEFT, 1.0))
    accepted = Decision(at(LEFT, "nut", "day/b.png"), "accept", True, 0.8)
    found = correct(edited, NO_BOLT, accepted, since=2)
    assert rows(found) == [("day/a.png", "bolt", LEFT, 1.0)]
    assert "rejected" not in found


def test_corrected_pool_does_later_decisions_to_an_edited_pool() -> None:
    edited = pool(("day/a.png", "bolt", LEFT, 0.9), ("day/a.png", "bolt", RIGHT, 0.5))
    later = Decision(at(RIGHT), "reject", True, 0.5)
    assert rows(correct(edited, NO_BOLT, later, since=1)) == [("day/a.png", "bolt", LEFT, 0.9)]


def test_corrected_pool_takes_back_what_an_edited_pool_has() -> None:
    edited = pool(("day/b.png", "nut", LEFT, 0.8))  # the bolt was rejected before the edit
    assert rows(correct(edited, NO_BOLT, undo(1), since=1)) == [
        ("day/a.png", "bolt", LEFT, 0.9), NUT,
    ]  # fmt: skip
    edited = pool(("day/a.png", "bolt", RIGHT, 1.0))
    moved = Decision(at(), "accept", True, 0.9, as_box=RIGHT)
    assert rows(correct(edited, moved, undo(1), since=1)) == [("day/a.png", "bolt", LEFT, 0.9)]


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"images": 3, "annotations": [], "categories": []},
        {"images": [], "annotations": [{"bbox": [1, 2]}], "categories": []},
        {"images": [{"id": 1}], "annotations": [], "categories": []},
        pool() | {"annotations": [{"image_id": 7, "category_id": 1, "bbox": ["x", 1, 1, 1]}]},
    ],
)
def test_corrected_pool_refuses_what_is_no_pool(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a pool"):
        corrected_pool(damage, journal(NO_BOLT), False, FILES)
