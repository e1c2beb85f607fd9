"""The review of a run: what it offers, and what becomes of its decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import given, shapes
from helpers.tiny_run import SHORT, config, copy_runs, run, short_config
from mini_fsod.config.load import resolve
from mini_fsod.data.read import read
from mini_fsod.errors import UserError
from mini_fsod.review.decisions import JOURNAL, read_decisions
from mini_fsod.review.items import DecisionRequest
from mini_fsod.review.mined import MinedReview, reviewed_run

BLUE = "blue, light"


@pytest.fixture(scope="session")
def two_classes_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Green is novel too, and all of its boxes are candidates. Not to be changed."""
    data = shapes.write_data(tmp_path_factory.mktemp("two") / "data")
    content = json.loads((data / "annotations" / "train.json").read_text())
    rows = [
        {"image_id": b["image_id"], "category_id": b["category_id"], "bbox": b["bbox"], "score": s}
        for n, b in enumerate(b for b in content["annotations"] if b["category_id"] > 1)
        for s in [0.9 - n / 20]
    ]
    (data.parent / "found.json").write_text(json.dumps(rows))
    keys = {"data__novel": json.dumps(["green", BLUE]), "shots__k": 1}
    found = {"mine__detections": data.parent / "found.json", "mine__threshold": 0.6}
    out = data.parent / "runs" / "two"
    run(short_config(data, **keys, **found), out, last="mine")
    return out


@pytest.fixture
def two_classes(two_classes_run: Path, tmp_path: Path) -> Path:
    return copy_runs(two_classes_run, tmp_path)


def request(item: int, do: str, **more: Any) -> DecisionRequest:
    return DecisionRequest.model_validate({"item": item, "do": do, **more})


def offered(review: MinedReview, name: str | None = None) -> list[dict[str, Any]]:
    return review.page(name)["items"]


def row(review: MinedReview, name: str = BLUE) -> dict[str, int]:
    return next(row for row in review.progress() if row["name"] == name)


def boxes(path: Path) -> list[tuple[str, float]]:
    content = json.loads(path.read_text())
    return sorted((box["category"], box["score"]) for box in content["annotations"])


def test_review_offers_mined_boxes_and_candidates(mined: Path, review: MinedReview) -> None:
    items = offered(review)
    assert {item["mined"] for item in items} == {True, False}
    progress = row(review)
    assert (progress["mined"], progress["decided"]) == (len(boxes(mined / "pool.json")), 0)
    assert progress["candidates"] == sum(not item["mined"] for item in items)
    references = review.page(None)["references"]
    assert len(references) == 2  # the shots
    assert all(item["class"] == BLUE for item in references)


def test_review_shows_base_boxes_and_no_hidden_ones(review: MinedReview) -> None:
    """What is annotated and hidden from training is hidden from the reviewer too."""
    items = offered(review)
    others = [other for item in items for other in item["others"]]
    assert {other["kind"] for other in others} <= {"base", "mined", "accepted"}
    assert {other["class"] for other in others if other["kind"] == "base"} == {"red", "green"}
    known = {tuple(item["box"]) for item in items}
    assert {tuple(o["box"]) for o in others if o["kind"] != "base"} <= known


def test_review_goes_on_where_it_ended(mined: Path) -> None:
    with reviewed_run(mined) as review:
        first, second, *_ = offered(review)
        review.decide([request(first["id"], "accept"), request(second["id"], "reject")])
        left = {tuple(item["box"]) for item in offered(review)}
    with reviewed_run(mined) as again:
        assert {tuple(item["box"]) for item in offered(again)} == left
        assert (row(again)["accepted"], row(again)["rejected"]) == (1, 1)
        undone = again.undo()["item"]
        assert (undone["box"], undone["state"]) == (second["box"], "open")
        assert again.undo()["item"]["box"] == first["box"]
        assert again.undo()["item"] is None


def test_review_writes_the_pool_when_it_ends(mined: Path) -> None:
    before = boxes(mined / "pool.json")
    with reviewed_run(mined) as review:
        of_pool = [item for item in offered(review) if item["mined"]]
        candidate = next(item for item in offered(review) if not item["mined"])
        review.decide([request(of_pool[0]["id"], "reject"), request(candidate["id"], "accept")])
    after = boxes(mined / "pool.json")
    assert len(after) == len(before)
    assert (BLUE, 1.0) in after
    assert len(json.loads((mined / "pool.json").read_text())["rejected"]) == 1
    assert boxes(mined / "mine" / "pool.json") == before  # the result of mining stays


def test_review_relabels_and_redraws(two_classes: Path) -> None:
    with reviewed_run(two_classes) as review:
        green = next(item for item in offered(review, "green") if item["mined"])
        x, y, width, height = green["box"]
        moved = [x, y, width - 1.5, height]
        review.decide([request(green["id"], "accept", **{"class": BLUE, "box": moved})])
        assert (row(review, "green")["accepted"], row(review, "green")["rejected"]) == (0, 1)
        assert row(review)["accepted"] == 1
    (decision,) = read_decisions(two_classes / JOURNAL)
    assert decision.accepted.name == BLUE
    assert [*decision.accepted.box] == moved
    content = json.loads((two_classes / "pool.json").read_text())
    assert [r["category"] for r in content["rejected"]] == ["green"]
    with reviewed_run(two_classes) as again:
        shown = again.shown(again._numbers[decision.place])
        assert (shown["as_class"], [*shown["as_box"]]) == (BLUE, moved)


def test_review_offers_the_needier_class_first(two_classes: Path) -> None:
    with reviewed_run(two_classes) as review:
        first = review.page(None)["class"]
        other = BLUE if first == "green" else "green"
        number_of = {name: row(review, name)["mined"] for name in (first, other)}
        assert number_of[first] <= number_of[other]
        left = [item["id"] for name in (first, other) for item in offered(review, name)]
        assert review.page(None, skip=left)["items"] == []
        assert review.page(other)["class"] == other


def test_review_adds_a_box_once(mined: Path, review: MinedReview) -> None:
    item = offered(review)[0]["id"]
    box = [1.0, 2.0, 20.5, 21.25]
    first = review.decide([request(item, "draw", **{"class": BLUE, "box": box})])["items"][0]
    again = review.decide([request(item, "draw", **{"class": BLUE, "box": box})])["items"][0]
    assert first["id"] == again["id"]
    assert row(review)["accepted"] == 1
    review.decide([request(first["id"], "reject")])
    assert row(review)["accepted"] == 0
    assert row(review)["rejected"] == 0  # it was never offered


def test_boxes_are_clipped_to_their_picture(review: MinedReview) -> None:
    item = offered(review)[0]
    width, height = item["size"]
    (drawn,) = review.decide(
        [request(item["id"], "accept", box=[-5.0, -5.0, width + 50.0, height + 50.0])]
    )["items"]
    assert [*drawn["as_box"]] == [0, 0, width, height]


def test_rejected_places_are_not_offered_when_mining_is_repeated(
    mined: Path, mined_run: Path
) -> None:
    """With other keys, the same places are candidates again."""
    data = mined_run.parent.parent / "data"
    with reviewed_run(mined) as review:
        kept, rejected, *_ = [item for item in offered(review) if item["mined"]]
        review.decide([request(rejected["id"], "reject"), request(kept["id"], "accept")])
    config = short_config(data, mine__threshold=0.1)
    run(config, mined, last="mine")
    content = json.loads((mined / "pool.json").read_text())
    found = [tuple(box["bbox"]) for box in content["annotations"]]
    of_mining = json.loads((mined / "mine" / "pool.json").read_text())["annotations"]
    assert len(found) == len(of_mining) - 1  # all candidates but the rejected one
    assert tuple(rejected["box"]) not in found
    assert [b["score"] for b in content["annotations"] if b["bbox"] == [*kept["box"]]] == [1.0]
    assert not (mined / "pool-edited.json").exists()
    with reviewed_run(mined) as again:
        left = {tuple(item["box"]) for item in offered(again)}
        assert tuple(rejected["box"]) not in left


def test_run_trains_on_the_decisions(
    mined: Path, mined_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = mined_run.parent.parent / "data"
    config = short_config(data, mine__threshold=0.65)
    before = run(config, mined, last="online")["results"]
    with reviewed_run(mined) as review:
        items = offered(review)
        of_pool = next(item for item in items if item["mined"])
        candidate = next(item for item in items if not item["mined"])
        review.decide([request(of_pool["id"], "reject"), request(candidate["id"], "accept")])
    capsys.readouterr()
    results = run(config, mined, last="online")
    assert "1 removed, 1 added, 0 relabelled; 1 accepted in the review" in capsys.readouterr().err
    assert results["results"]["mine"] == before["mine"]
    assert results["results"]["online"] != before["online"]
    with reviewed_run(mined) as review:
        review.undo()
        review.undo()
    assert run(config, mined, last="online")["results"] == before  # found, not trained again


def test_review_writes_accepted_boxes_as_shots(mined: Path, tmp_path: Path) -> None:
    out = tmp_path / "more.json"
    with reviewed_run(mined, out) as review:
        candidate = next(item for item in offered(review) if not item["mined"])
        review.decide([request(candidate["id"], "accept")])
        root = review.data.whole.root
    shots = read(out, root=root)
    assert shots.classes == (BLUE,)
    assert len(shots.boxes) >= 2
    assert [*candidate["box"]] in shots.boxes.xywh.tolist()
    config = resolve(str(mined / "config.yaml"), [f"shots.file={out}"])
    assert config.shots.file == out
    (tmp_path / "other.json").write_text("{}")
    with (
        pytest.raises(UserError, match="is not a file of shots"),
        reviewed_run(mined, tmp_path / "other.json"),
    ):
        pass


def test_undone_decisions_leave_the_pool_as_it_was(mined: Path) -> None:
    before = (mined / "pool.json").read_bytes()
    with reviewed_run(mined) as review:
        first, second, *_ = offered(review)
        review.decide([request(first["id"], "accept"), request(second["id"], "reject")])
    assert (mined / "pool.json").read_bytes() != before
    with reviewed_run(mined) as review:
        review.undo()
        review.undo()
    assert (mined / "pool.json").read_bytes() == before


@pytest.mark.parametrize(
    ("missing", "message"), [("config.yaml", "not the folder of a run"), ("mine", "nothing has")]
)
def test_review_needs_a_run_that_has_mined(mined: Path, missing: str, message: str) -> None:
    (mined / missing).unlink()
    with pytest.raises(UserError, match=message), reviewed_run(mined):
        pass


def test_review_shows_a_run_without_base_labels(tmp_path: Path) -> None:
    """Its shots of base classes need the detector; those of new classes do not."""
    photos = given.write_photos(tmp_path, count=8)
    detector = given.write_detector(tmp_path / "given.safetensors", ("red", "green"))
    box = {"category": shapes.NOVEL, "bbox": [9, 9, 20, 20]}
    rows = [
        {"file": f"photo{n}.png", "detections": [box | {"score": s}]}
        for n, s in ((5, 0.9), (6, 0.8))
    ]
    (tmp_path / "found.json").write_text(json.dumps(rows))
    keys = {"base__checkpoint": detector, "base__sure": 0.35, "shots__root": photos.root}
    keys |= {"mine__detections": tmp_path / "found.json", "mine__threshold": 0.5}
    out = tmp_path / "runs" / "photos"
    run(config(photos.root, shots__file=photos.shots, **SHORT | keys), out, last="mine")
    with reviewed_run(out, tmp_path / "shots.json") as review:
        page = review.page(None)
    assert {item["picture"] for item in page["items"]} == {"photo5.png", "photo6.png"}
    assert len(page["references"]) == 5
    assert len(shapes.json_of(tmp_path / "shots.json")["annotations"]) == 5


def test_review_refuses_a_run_whose_configuration_names_no_data(mined: Path) -> None:
    text = (mined / "config.yaml").read_text()
    lines = [line for line in text.splitlines() if "root:" not in line]
    (mined / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"lacks data\.root"), reviewed_run(mined):
        pass
