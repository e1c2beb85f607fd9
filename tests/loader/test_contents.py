"""Digests of contents: files are read when they change, not when they are copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.loader import contents
from mini_fsod.loader.contents import file_digests


def files_in(folder: Path) -> list[Path]:
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)
    return [folder / name for name in "abc"]


def test_file_digests_depend_on_contents_alone(tmp_path: Path) -> None:
    one, other = files_in(tmp_path / "one"), files_in(tmp_path / "other")
    os.utime(other[0], (1, 1))
    first = file_digests(one, tmp_path)
    assert file_digests(other, tmp_path) == first
    assert len({*first}) == 3
    one[1].write_text("B")
    second = file_digests(one, tmp_path)
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True]
    assert file_digests([], tmp_path) == []


def test_file_digests_read_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = files_in(tmp_path / "data")
    first = file_digests(paths, tmp_path)
    read: list[object] = []
    digest = contents.hashlib.file_digest

    def counted(file: object, name: str) -> object:
        read.append(file)
        return digest(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(contents.hashlib, "file_digest", counted)
    assert file_digests(paths, tmp_path) == first
    assert read == []
    os.utime(paths[0], (1, 1))  # touched: read again
    assert file_digests(paths, tmp_path) == first
    assert len(read) == 1


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"a": [1]}'])
def test_file_digests_do_without_a_damaged_file_of_digests(tmp_path: Path, damage: str) -> None:
    paths = files_in(tmp_path / "data")
    first = file_digests(paths, tmp_path)
    (store,) = tmp_path.glob("contents-*.json")
    store.write_text(damage)
    assert file_digests(paths, tmp_path) == first


def test_file_digests_name_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.png: the picture cannot be read \(No such file"):
        file_digests([tmp_path / "none.png"], tmp_path)
