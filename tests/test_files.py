from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.files import (
    copy_content,
    is_file,
    is_folder,
    lock,
    open_regular,
    part_of,
    read_bytes,
    real,
    remove_leftovers,
    write_bytes,
    write_json,
)


def test_write_json_has_one_line_per_record(tmp_path: Path) -> None:
    value = {"info": {"a": 1}, "images": [{"id": 1}, {"id": 2}], "empty": [], "numbers": [1, 2]}
    write_json(tmp_path / "x" / "y.json", value)
    text = (tmp_path / "x" / "y.json").read_text()
    assert json.loads(text) == value
    assert text.count("\n") == 9


def test_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
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


def test_write_bytes_on_a_full_disk_says_to_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left on device") as error:
        write_bytes(tmp_path / "x", b"x")
    assert "Free some space and repeat" in error.value.fix
    assert list(tmp_path.iterdir()) == []


def test_write_bytes_sets_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_bytes(tmp_path / "ours", b"")
    modes = [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("plain", "ours")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "a\ud800b", "loop", "nowhere"])
def test_file_checks_accept_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert not is_file(tmp_path / name)
    assert not is_folder(tmp_path / name)
    assert isinstance(real(tmp_path / name), Path)
    with pytest.raises(OSError, match=r"^"):
        open_regular(tmp_path / name)


def test_lock_says_which_file_cannot_be_locked(tmp_path: Path) -> None:
    """A loop of links, a pipe that nobody reads, a folder."""
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("loop", "pipe", "folder"):
        with pytest.raises(UserError, match=f"{name}: cannot be locked"), lock(tmp_path / name):
            pass


def test_open_regular_rejects_pipes_and_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)


def test_read_bytes_takes_memory_for_what_is_there_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert read_bytes(tmp_path / "a", 1 << 60) == b"abc"
    assert read_bytes(tmp_path / "a", 3) == b"abc"
    with pytest.raises(OSError, match="larger than"):
        read_bytes(tmp_path / "a", 2)


def test_copy_content_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    copy_content(tmp_path / "a", tmp_path / "b" / "c")
    assert (tmp_path / "b" / "c").read_bytes() == b"abc"
    with pytest.raises(OSError, match="No such file"):
        copy_content(tmp_path / "nowhere", tmp_path / "d")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_write_bytes_overwrites_only_regular_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="not a regular file"):
        write_bytes(pipe, b"x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(UserError, match="cannot be written"):
        write_bytes(tmp_path / ("x" * 300), b"x")
    with pytest.raises(UserError, match="not valid text"):
        write_json(tmp_path / "x.json", {"a": "b\udcff"})


LOCK = (
    "import sys, pathlib, mini_fsod.files as f\nwith f.lock(pathlib.Path(sys.argv[1])) as locked: "
)


def lock_elsewhere(path: Path) -> str:
    """Try the lock in another process; "True" or "False"."""
    command = [sys.executable, "-c", LOCK + "print(locked)", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_lock_excludes_other_processes_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.lock"
    with lock(path) as locked:
        assert locked
        assert lock_elsewhere(path) == "False"
        with lock(path) as nested:
            assert nested
        assert lock_elsewhere(path) == "False"  # leaving the inner block released nothing
    assert lock_elsewhere(path) == "True"
    assert path.exists()


def test_lock_reports_another_process(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    command = [
        sys.executable,
        "-c",
        LOCK + "print(locked, flush=True); sys.stdin.read()",
        str(path),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "True"
        with lock(path) as locked:
            assert not locked
        process.kill()  # the lock ends with its process
        process.wait()
        with lock(path) as locked:
            assert locked


def test_remove_leftovers_deletes_only_what_a_killed_write_left(tmp_path: Path) -> None:
    for name in (".a.json.part", "a.0123abcd.part", ".download.part", ".a.json.0123abcd.part"):
        (tmp_path / name).touch()
    part_of(tmp_path / "b.json").touch()
    part_of(tmp_path / "c.json").mkdir()  # not ours
    remove_leftovers(tmp_path.iterdir())
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert left == [".a.json.part", ".download.part", "a.0123abcd.part"]
    assert len([*tmp_path.iterdir()]) == 4
