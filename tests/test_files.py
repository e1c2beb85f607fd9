from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.files import is_file, is_folder, open_regular, real, write_bytes, write_json


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


def test_a_full_disk_is_told_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left on device") as told:
        write_bytes(tmp_path / "x", b"x")
    assert "Free some space and repeat" in told.value.fix
    assert list(tmp_path.iterdir()) == []


def test_files_have_ordinary_rights(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_bytes(tmp_path / "ours", b"")
    rights = [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("plain", "ours")]
    assert rights[0] == rights[1]


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "a\ud800b", "loop", "nowhere"])
def test_any_name_can_be_asked_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert not is_file(tmp_path / name)
    assert not is_folder(tmp_path / name)
    assert isinstance(real(tmp_path / name), Path)
    with pytest.raises(OSError, match=r"^"):
        open_regular(tmp_path / name)


def test_pipes_and_folders_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)


def test_only_regular_files_are_written_over(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="no regular file"):
        write_bytes(pipe, b"x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(UserError, match="cannot be written"):
        write_bytes(tmp_path / ("x" * 300), b"x")
    with pytest.raises(UserError, match="not valid text"):
        write_json(tmp_path / "x.json", {"a": "b\udcff"})
