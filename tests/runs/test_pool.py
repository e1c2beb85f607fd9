"""The pool in a run's folder: it follows mining until somebody edits it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.errors import UserError
from mini_fsod.limits import RUN_POOL_BYTES
from mini_fsod.review.decisions import JOURNAL, NOWHERE, Decision, Journal, Place
from mini_fsod.runs.pool import EXTRA_POOL, POOL, copy_pools, edits, has_accepted, refresh_pools

BOX = {"image_id": 1, "category_id": 3, "bbox": [1, 2, 30, 40], "score": 0.9}


def content(*boxes: dict[str, Any]) -> dict[str, Any]:
    return {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "categories": [{"id": 3, "name": "bolt"}, {"id": 4, "name": "nut"}],
        "annotations": list(boxes),
    }


def write_mined(folder: Path, *boxes: dict[str, Any], extra: bool = False) -> Path:
    for name in ("pool.json", "extra/pool.json")[: 1 + extra]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content(*boxes)))
    return folder


def edit(run: Path, *boxes: dict[str, Any], name: str = POOL) -> bytes:
    (run / name).write_text(json.dumps(content(*boxes)))
    return (run / name).read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_refresh_pools_follows_mining(run: Path, tmp_path: Path) -> None:
    one = write_mined(tmp_path / "mine-1", BOX, extra=True)
    refresh_pools(run, one)
    assert (run / POOL).read_bytes() == (one / "pool.json").read_bytes()
    assert (run / EXTRA_POOL).exists()
    two = write_mined(tmp_path / "mine-2", BOX, BOX)
    refresh_pools(run, two)
    assert (run / POOL).read_bytes() == (two / "pool.json").read_bytes()
    assert not (run / EXTRA_POOL).exists()  # this mining has none
    assert {path.name for path in run.iterdir()} == {POOL, ".pools.json"}


def test_refresh_pools_keeps_an_edited_pool_of_the_same_mining(run: Path, tmp_path: Path) -> None:
    mined = write_mined(tmp_path / "mine-1", BOX, extra=True)
    refresh_pools(run, mined)
    edited, other = edit(run, BOX, BOX), edit(run, name=EXTRA_POOL)
    refresh_pools(run, mined)
    assert (run / POOL).read_bytes() == edited
    assert (run / EXTRA_POOL).read_bytes() == other


def test_refresh_pools_sets_an_edited_pool_of_another_mining_aside(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refresh_pools(run, write_mined(tmp_path / "mine-1", BOX))
    for name in ("pool-edited.json", "pool-edited-2.json"):
        edited = edit(run)
        new = write_mined(tmp_path / f"mine-{name}", BOX, BOX)
        refresh_pools(run, new)
        assert (run / name).read_bytes() == edited
        assert (run / POOL).read_bytes() == (new / "pool.json").read_bytes()
        assert name in capsys.readouterr().err


def test_refresh_pools_restores_a_deleted_pool(run: Path, tmp_path: Path) -> None:
    mined = write_mined(tmp_path / "mine-1", BOX)
    refresh_pools(run, mined)
    (run / POOL).unlink()
    refresh_pools(run, mined)
    assert (run / POOL).read_bytes() == (mined / "pool.json").read_bytes()


def test_refresh_pools_after_a_kill_before_the_origin_was_written(
    run: Path, tmp_path: Path
) -> None:
    one, two = write_mined(tmp_path / "mine-1", BOX), write_mined(tmp_path / "mine-2", BOX, BOX)
    refresh_pools(run, one)
    (run / POOL).write_bytes((two / "pool.json").read_bytes())  # and then the process died
    refresh_pools(run, two)
    refresh_pools(run, one)
    assert (run / POOL).read_bytes() == (one / "pool.json").read_bytes()
    assert not (run / "pool-edited.json").exists()


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"pool.json": 3}'])
def test_refresh_pools_without_knowing_the_origin_overwrites_no_edit(
    run: Path, tmp_path: Path, damage: bytes
) -> None:
    mined = write_mined(tmp_path / "mine-1", BOX)
    refresh_pools(run, mined)
    edited = edit(run)
    (run / ".pools.json").write_bytes(damage)
    refresh_pools(run, mined)
    assert (run / POOL).read_bytes() == edited


def test_edits_counts_removed_added_and_relabelled_boxes(run: Path, tmp_path: Path) -> None:
    boxes = [BOX | {"bbox": [n, n, 10, 10]} for n in range(4)]
    mined = write_mined(tmp_path / "mine-1", *boxes)
    refresh_pools(run, mined)
    assert edits(run, mined) == {"edited": False}
    edit(run, *boxes[1:3], boxes[3] | {"category_id": 4}, BOX | {"image_id": 2}, BOX)
    assert edits(run, mined) == {
        "edited": True, "boxes": 5, "removed": 1, "added": 2, "relabelled": 1,
    }  # fmt: skip


def test_edits_of_a_file_that_is_no_pool(run: Path, tmp_path: Path) -> None:
    mined = write_mined(tmp_path / "mine-1", BOX)
    (run / POOL).write_text("{}")
    assert edits(run, mined)["boxes"] == 0


# With the decisions of a review

LEFT, RIGHT = (1.0, 2.0, 30.0, 40.0), (61.0, 2.0, 30.0, 40.0)  # LEFT is that of BOX


def decide(run: Path, *decisions: Decision) -> None:
    journal = Journal(run / JOURNAL)
    journal.append(decisions)
    journal.close()


def place(box: tuple[float, float, float, float], extra: bool = False) -> Place:
    return Place("a.png", extra, "bolt", box)


REJECT = Decision(place(LEFT), "reject", True, 0.9)
DRAW = Decision(place(RIGHT), "accept")


def pooled(run: Path, name: str = POOL) -> list[tuple[float, ...]]:
    boxes = json.loads((run / name).read_text())["annotations"]
    return sorted((*box["bbox"], box["score"]) for box in boxes)


def test_refresh_pools_does_the_decisions_to_every_mining(run: Path, tmp_path: Path) -> None:
    moved = BOX | {"bbox": [2, 2, 30, 40]}
    decide(run, REJECT, DRAW)
    for name in ("mine-1", "mine-2"):
        refresh_pools(run, write_mined(tmp_path / name, moved))
        assert pooled(run) == [(*RIGHT, 1.0)]
        assert len(json.loads((run / POOL).read_text())["rejected"]) == 1
    assert has_accepted(run / POOL)
    assert {path.name for path in run.iterdir()} == {POOL, JOURNAL, ".pools.json"}
    mined = write_mined(tmp_path / "mine-3", moved)
    decide(run, *(Decision(NOWHERE, "undo", of=n) for n in (1, 2)))
    refresh_pools(run, mined)
    assert (run / POOL).read_bytes() == (mined / "pool.json").read_bytes()
    assert not has_accepted(run / POOL)


def test_refresh_pools_does_decisions_about_extra_pictures_to_their_pool(
    run: Path, tmp_path: Path
) -> None:
    mined = write_mined(tmp_path / "mine-1", BOX, extra=True)
    decide(run, Decision(place(LEFT, extra=True), "reject", True, 0.9))
    refresh_pools(run, mined)
    assert pooled(run) == [(*LEFT, 0.9)]
    assert pooled(run, EXTRA_POOL) == []


def test_refresh_pools_lets_edits_and_decisions_follow_each_other(
    run: Path, tmp_path: Path
) -> None:
    """The last word about a place counts, whichever tool it was said in."""
    mined = write_mined(tmp_path / "mine-1", BOX)
    refresh_pools(run, mined)
    edit(run, BOX, BOX | {"bbox": [61, 62, 30, 40], "score": 0.5})  # another tool adds a box
    decide(run, REJECT, DRAW)
    refresh_pools(run, mined)
    assert pooled(run) == [(*RIGHT, 1.0), (61, 62, 30, 40, 0.5)]
    edit(run, BOX)  # another tool takes both away, and puts the rejected one back
    refresh_pools(run, mined)
    assert pooled(run) == [(*LEFT, 0.9)]
    decide(run, Decision(place(LEFT), "accept", True, 0.9))
    refresh_pools(run, mined)
    assert pooled(run) == [(*LEFT, 1.0)]
    refresh_pools(run, mined)
    assert pooled(run) == [(*LEFT, 1.0)]


def test_refresh_pools_sets_an_edited_and_reviewed_pool_of_another_mining_aside(
    run: Path, tmp_path: Path
) -> None:
    refresh_pools(run, write_mined(tmp_path / "mine-1", BOX))
    edit(run, BOX, BOX | {"bbox": [61, 62, 30, 40]})
    decide(run, REJECT, DRAW)
    refresh_pools(run, tmp_path / "mine-1")
    edited = (run / POOL).read_bytes()
    refresh_pools(run, write_mined(tmp_path / "mine-2", BOX, BOX))
    assert (run / "pool-edited.json").read_bytes() == edited
    assert pooled(run) == [(*RIGHT, 1.0)]  # the decisions go on


def test_refresh_pools_after_a_kill_knows_its_own_pool(run: Path, tmp_path: Path) -> None:
    """Killed after the pool was written, and before its origin was."""
    mined = write_mined(tmp_path / "mine-1", BOX)
    refresh_pools(run, mined)
    origin = (run / ".pools.json").read_bytes()
    decide(run, REJECT, DRAW)
    refresh_pools(run, mined)
    (run / ".pools.json").write_bytes(origin)
    refresh_pools(run, mined)
    assert "edited" not in json.loads((run / ".pools.json").read_text())[POOL]
    refresh_pools(run, write_mined(tmp_path / "mine-2", BOX, BOX))
    assert not (run / "pool-edited.json").exists()


def test_refresh_pools_leaves_a_broken_pool_to_its_reader(run: Path, tmp_path: Path) -> None:
    mined = write_mined(tmp_path / "mine-1", BOX)
    refresh_pools(run, mined)
    (run / POOL).write_text("{")
    decide(run, REJECT)
    refresh_pools(run, mined)
    assert (run / POOL).read_text() == "{"


def test_refresh_pools_refuses_a_pool_that_is_too_large(run: Path, tmp_path: Path) -> None:
    mined = write_mined(tmp_path / "mine-1", BOX)
    refresh_pools(run, mined)
    os.truncate(run / POOL, RUN_POOL_BYTES + 1)
    decide(run, REJECT)
    with pytest.raises(UserError, match=r"pool\.json: cannot be read \(larger than 1,024 MB\)"):
        refresh_pools(run, mined)
    with pytest.raises(UserError, match="larger than"):
        copy_pools(run, tmp_path / "copy")


def test_edits_counts_what_the_decisions_changed(run: Path, tmp_path: Path) -> None:
    boxes = [BOX | {"bbox": [40 * n, 2, 30, 40]} for n in range(3)]
    mined = write_mined(tmp_path / "mine-1", *boxes)
    decide(
        run,
        Decision(place((0.0, 2.0, 30.0, 40.0)), "reject", True, 0.9),
        Decision(place((40.0, 2.0, 30.0, 40.0)), "accept", True, 0.9),
        Decision(place((80.0, 2.0, 30.0, 40.0)), "accept", True, 0.9, as_name="nut"),
        Decision(place((1.0, 62.0, 30.0, 30.0)), "accept", False, 0.2),
    )
    refresh_pools(run, mined)
    assert edits(run, mined) == {
        "edited": True, "boxes": 3, "removed": 1, "added": 1, "relabelled": 1,
    }  # fmt: skip
