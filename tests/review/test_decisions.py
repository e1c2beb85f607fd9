"""The journal of a review: nothing that was acknowledged is lost, whatever kills the process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.review.decisions import (
    NOWHERE,
    Decision,
    Journal,
    NotSaved,
    Place,
    last_in_force,
    read_decisions,
    settled,
)

A = Place("ä/a.png", False, "bolt, M8", (1.5, 2.25, 30.0, 40.0))
B = Place("b.png", True, "nut", (0.1, 0.2, 10.0, 10.0))
ACCEPT = Decision(A, "accept", True, 0.875)
MOVED = Decision(B, "accept", as_name="bolt, M8", as_box=(3.0, 4.0, 5.0, 6.0))
REJECT = Decision(A, "reject", True, 0.875)


def undo(number: int) -> Decision:
    return Decision(NOWHERE, "undo", of=number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "review.jsonl")
    journal.append([ACCEPT, MOVED])
    journal.append([undo(1)])
    journal.close()
    return tmp_path / "review.jsonl"


def numbered(*decisions: Decision) -> list[Decision]:
    return [
        Decision(d.place, d.do, d.mined, d.score, d.as_name, d.as_box, d.of, n)
        for n, d in enumerate(decisions, start=1)
    ]


def test_read_decisions_returns_what_was_appended(path: Path) -> None:
    assert read_decisions(path) == numbered(ACCEPT, MOVED, undo(1))
    assert read_decisions(path.with_name("none.jsonl")) == []


def test_journal_goes_on_where_it_ended(path: Path) -> None:
    journal = Journal(path)
    assert journal.append([REJECT])[0].number == 4
    journal.close()
    assert read_decisions(path) == numbered(ACCEPT, MOVED, undo(1), REJECT)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"n": 4, "do": "undo", "of": 4}, "not before it"),
        ({"n": 4, "do": "undo", "of": 9}, "not before it"),
        ({"n": 4, "do": "undo", "of": -1}, "not before it"),
        ({"n": 4, "do": "undo"}, "not before it"),
        ({"n": 4, "do": "accept", "picture": "\ud800", "class": "a", "bbox": [1, 2, 3, 4]}, "text"),
        ({"n": 4, "do": "accept", "picture": "a", "class": "\ud800", "bbox": [1, 2, 3, 4]}, "text"),
        (
            {"n": 4, "do": "accept", "picture": "a", "class": "a", "bbox": [10**400, 2, 3, 4]},
            "bbox",
        ),
        ({"n": 4, "do": "accept", "picture": "a", "class": "a"}, "missing"),
    ],
)
def test_read_decisions_names_a_line_that_says_nothing(
    path: Path, line: dict[str, object], why: str
) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(UserError, match=rf"line 5: cannot be read \(.*{why}"):
        read_decisions(path)


def test_journal_takes_no_decisions_for_nothing(path: Path) -> None:
    before = path.read_bytes()
    journal = Journal(path)
    assert journal.append([]) == []
    journal.close()
    assert path.read_bytes() == before


def test_journal_syncs_every_append_before_it_returns(tmp_path: Path) -> None:
    seen: list[int] = []

    def sync(file: int) -> None:
        seen.append(os.fstat(file).st_size)

    journal = Journal(tmp_path / "review.jsonl", sync)
    for n in range(3):
        journal.append([ACCEPT])
        assert len(seen) == n + 3  # the first two are of the header and the folder
        assert seen[-1] == (tmp_path / "review.jsonl").stat().st_size
    journal.close()


def test_journal_cut_anywhere_keeps_all_whole_lines(path: Path) -> None:
    """Killed in the middle of a write: a prefix of the file is left."""
    whole = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        # a line that lacks its end of line alone is whole
        lines = sum(length >= end - 1 for end in ends)
        expected = numbered(ACCEPT, MOVED, undo(1))[: max(lines - 1, 0)]
        assert read_decisions(path) == expected
        journal = Journal(path, sync=lambda file: None)
        journal.append([REJECT])
        journal.close()
        assert [d.do for d in read_decisions(path)] == [*(d.do for d in expected), "reject"]


def test_journal_with_zeros_at_its_end_after_a_power_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(100))
    journal = Journal(path)
    journal.append([REJECT])
    journal.close()
    assert read_decisions(path) == numbered(ACCEPT, MOVED, undo(1), REJECT)


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"n": 7, "do": "reject"}',
        '{"n": 1, "do": "reject", "picture": "a", "class": "b", "bbox": [1, 2, NaN, 4]}',
        '{"n": 1, "do": "reject", "picture": "a", "class": "b", "bbox": [1, 2, 1e999, 4]}',
        '{"n": 1, "do": "reject", "picture": "a", "class": "b", "bbox": [1, 2, 0, 4]}',
        '{"n": 1, "do": "reject", "picture": "a", "class": "b"}',
        '{"n": 1, "do": "undo"}',
        "[" * 100_000,
    ],
)
def test_read_decisions_refuses_a_damaged_line_before_the_last(path: Path, damage: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], damage, *lines[2:]]) + "\n")
    with pytest.raises(UserError, match=r"review\.jsonl, line 2: cannot be read"):
        read_decisions(path)


def test_read_decisions_refuses_another_file(path: Path) -> None:
    path.write_text(json.dumps({"images": []}) + "\n")
    with pytest.raises(UserError, match="line 1: cannot be read"):
        read_decisions(path)


def test_journal_on_a_full_disk_loses_nothing_and_says_so(path: Path) -> None:
    is_full = False

    def sync(file: int) -> None:
        if is_full:
            raise OSError(28, "No space left on device")

    journal = Journal(path, sync)
    is_full = True
    before = path.read_bytes()
    with pytest.raises(NotSaved, match="No space left"):
        journal.append([REJECT])
    assert path.read_bytes() == before
    is_full = False
    journal.append([REJECT])
    journal.close()
    assert read_decisions(path) == numbered(ACCEPT, MOVED, undo(1), REJECT)


def test_settled_takes_the_last_word_about_a_place() -> None:
    first, second, third = numbered(ACCEPT, REJECT, MOVED)
    assert settled([first, second, third]) == {A: second, B: third}
    undone = numbered(ACCEPT, REJECT, undo(2))
    assert settled(undone) == {A: undone[0]}
    both = numbered(ACCEPT, REJECT, undo(2), undo(1))
    assert settled(both) == {A: None}


def test_last_in_force_goes_back_one_by_one() -> None:
    decisions = numbered(ACCEPT, MOVED, undo(2))
    assert last_in_force(decisions) == decisions[0]
    assert last_in_force(numbered(ACCEPT, undo(1))) is None
    assert last_in_force([]) is None


def test_accepted_is_the_corrected_place() -> None:
    assert ACCEPT.accepted == A
    assert MOVED.accepted == Place("b.png", True, "bolt, M8", (3.0, 4.0, 5.0, 6.0))
