from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pytest

from helpers import exports, tiny
from mini_fsod.data import archive
from mini_fsod.data.archive import unpacked
from mini_fsod.errors import UserError


def packed(path: Path, *entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as target:
        for name, content in entries:
            target.writestr(name, content)
    return path


def test_unpacked_takes_annotations_and_pictures_alone(tmp_path: Path) -> None:
    names = ("a.json", "b.XML", "c/d.txt", "e.jpg", "run.sh", "f.py", ".g.json", "__MACOSX/h.json")
    folder = unpacked(packed(tmp_path / "x.zip", *((n, b"1") for n in names)))
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert found == {"a.json", "b.XML", "c/d.txt", "e.jpg"}


def test_unpacked_leaves_pictures_out_that_lie_elsewhere(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path / "data")
    path = exports.zipped(tmp_path / "data", tmp_path / "x.zip")
    folder = unpacked(path, pictures=False)
    assert [p.name for p in folder.iterdir()] == ["annotations.json"]
    assert len(list(unpacked(path).iterdir())) == 4


def test_unpacked_unpacks_once_and_again_after_a_change(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", ("a.json", b"1"), ("b.json", b"2"))
    first = unpacked(path)
    stamp = (first / "a.json").stat().st_mtime_ns
    assert unpacked(path) == first
    assert (first / "a.json").stat().st_mtime_ns == stamp
    packed(path, ("a.json", b"other"), ("b.json", b"2"))
    os.utime(path, ns=(stamp + 10**9, stamp + 10**9))
    second = unpacked(path)
    assert (second / "a.json").read_bytes() == b"other"
    assert not first.exists()


def test_unpacked_leaves_out_a_folder_that_holds_everything(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", ("export/a.json", b"1"), ("export/b.json", b"1"))
    assert (unpacked(path) / "a.json").is_file()
    # CVAT's COCO without pictures: the folder's name means something
    path = packed(tmp_path / "y.zip", ("annotations/instances_default.json", b"1"))
    assert (unpacked(path) / "annotations" / "instances_default.json").is_file()


@pytest.mark.parametrize(
    "name", ["../a.json", "/etc/a.json", "x/../../a.json", "C:\\a.json", "..\\a.json"]
)
def test_unpacked_refuses_names_that_lead_outside(tmp_path: Path, name: str) -> None:
    path = packed(tmp_path / "x.zip", ("b.json", b"1"), (name, b"1"))
    with pytest.raises(UserError, match="outside its folder"):
        unpacked(path)
    assert {p.name for p in tmp_path.iterdir()} == {"x.zip"}


def test_unpacked_refuses_links(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("a.json")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as target:
        target.writestr(link, "/etc/passwd")
    with pytest.raises(UserError, match="a link"):
        unpacked(tmp_path / "x.zip")


def test_unpacked_refuses_a_name_given_twice(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        path = packed(tmp_path / "x.zip", ("a.json", b"1"), ("a.json", b"2"))
    with pytest.raises(UserError, match="twice"):
        unpacked(path)


def test_unpacked_refuses_other_compressions(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", ("a.json", b"1"), method=zipfile.ZIP_LZMA)
    with pytest.raises(UserError, match="not read"):
        unpacked(path)


def test_unpacked_refuses_what_unpacks_to_far_more(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", ("a.json", b"0" * (80 << 20)))
    with pytest.raises(UserError, match="more than 100 times"):
        unpacked(path)


def test_unpacked_refuses_what_the_disk_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path / "x.zip", ("a.json", b"0" * 4096))
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match="free"):
        unpacked(path)


def test_unpacked_refuses_a_huge_list_of_files(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", ("a.json", b"1"))
    content = bytearray(path.read_bytes())
    at = content.rfind(b"PK\x05\x06")
    content[at + 12 : at + 16] = struct.pack("<L", 1 << 30)
    path.write_bytes(content)
    with pytest.raises(UserError, match="the list of its files"):
        unpacked(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no zip at all", b"PK\x05\x06" * 9])
def test_unpacked_refuses_what_is_no_zip(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        unpacked(tmp_path / "x.zip")


def test_unpacked_refuses_an_archive_without_annotations(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no annotations"):
        unpacked(packed(tmp_path / "x.zip", ("run.sh", b"1")))


def test_unpacked_leaves_nothing_of_a_damaged_archive(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", ("a.json", b"1" * 500), ("b.json", os.urandom(500)))
    content = bytearray(path.read_bytes())
    content[content.index(b"b.json") + 50] ^= 255
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        unpacked(path)
    zips = Path(os.environ["XDG_CACHE_HOME"]) / "mini" / "zips"
    assert not [p for p in zips.iterdir() if p.name.endswith(".part")]
    with pytest.raises(UserError, match="damaged"):  # not half of it, the second time
        unpacked(path)
