"""State files: what is read is of the right kind, or one line names the file and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.state_files import Count, Finite, Kind, check_kind, read_state_file


class Example(Kind):
    name: str
    count: Count | None = None
    scores: dict[str, Finite | None] | None = None


def test_read_state_file_returns_what_was_written(tmp_path: Path) -> None:
    value = {"scores": {"a": None, "b": 1}, "name": "x", "more": [1]}
    (tmp_path / "x").write_text(json.dumps(value))
    found = read_state_file(tmp_path / "x", Example, "")
    assert found == value
    assert list(found) == list(value)
    assert read_state_file(tmp_path / "absent", Example, "") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "Input should be a valid dict"),
        ("{}", "name: Field required"),
        ('{"name": 3}', "name: Input should be a valid string"),
        ('{"name": "x", "count": 1.5}', "count: Input should be a valid integer"),
        ('{"name": "x", "count": true}', "count: Input should be a valid integer"),
        ('{"name": "x", "count": -1}', "count: Input should be greater"),
        ('{"name": "x", "scores": {"a": NaN}}', "NaN, which is not JSON"),
        (f'{{"name": "x", "scores": {{"a": 1{"0" * 400}}}}}', "scores.a: Input should be a"),
        (f'{{"name": "x", "count": 1{"0" * 400}}}', "count: Input should be less"),
        ("[" * 100_000, "recursion"),
        ("", "Expecting value"),
        ("\0" * 5000, "more than 4,000 bytes"),
    ],
    ids=range(12),
)
def test_read_state_file_names_a_wrong_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x").write_text(content)
    limit = 4000 if content.startswith("\0") else 1 << 20
    with pytest.raises(UserError, match=f"x: cannot be read .*{message}") as error:
        read_state_file(tmp_path / "x", Example, "Delete it.", limit)
    assert error.value.fix == "Delete it."
    assert len(error.value.what) < len(str(tmp_path)) + 250


def test_read_state_file_refuses_pipes_and_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(UserError, match="not a regular file"):
            read_state_file(path, Example, "")


def test_check_kind_of_json_takes_lists_for_tuples() -> None:
    assert check_kind([1, 2], tuple[int, int], as_json=True) == [1, 2]
    with pytest.raises(ValueError, match="valid tuple"):
        check_kind([1, 2], tuple[int, int])
