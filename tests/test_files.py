from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes, write_json


def test_json_reads_back_and_has_a_line_a_record(tmp_path: Path) -> None:
    value = {"info": {"a": 1}, "images": [{"id": 1}, {"id": 2}], "empty": [], "numbers": [1, 2]}
    write_json(tmp_path / "x" / "y.json", value)
    text = (tmp_path / "x" / "y.json").read_text()
    assert json.loads(text) == value
    assert text.count("\n") == 9


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        write_bytes(tmp_path / "folder", b"x")
    with pytest.raises(UserError, match="cannot be written"):
        write_bytes(path / "below-a-file", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "x.json"]


def test_files_have_ordinary_rights(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_bytes(tmp_path / "ours", b"")
    rights = [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("plain", "ours")]
    assert rights[0] == rights[1]
