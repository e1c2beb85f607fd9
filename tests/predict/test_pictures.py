"""The pictures in files and folders."""

from __future__ import annotations

from pathlib import Path

from mini_fsod.predict.pictures import find_pictures


def test_pictures_of_searches_files_and_folders(tmp_path: Path) -> None:
    for name in ("x/1.jpg", "x/deep/2.PNG", "x/notes.txt", "x/.hidden/3.jpg", "y/1.jpg", "z/t"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def names(*paths: str, without: str | None = None) -> tuple[list[str], list[str]]:
        found, failed = find_pictures(
            [tmp_path / p for p in paths], without=tmp_path / without if without else None
        )
        return [p.name for p in found], [f.path.name for f in failed]

    assert names("x") == (["1.jpg", "deep/2.PNG"], [])
    assert names("x/1.jpg", "x/notes.txt") == (["1.jpg", "notes.txt"], [])  # named files are taken
    assert names("x", "x/1.jpg", "x/deep/../1.jpg") == (["1.jpg", "deep/2.PNG"], [])  # once
    assert names("x", "y") == (["x/1.jpg", "x/deep/2.PNG", "y/1.jpg"], [])  # both have a 1.jpg
    assert names("x/1.jpg", "y/1.jpg") == (["x/1.jpg", "y/1.jpg"], [])
    assert names("z", "gone.jpg") == (["gone.jpg"], ["z"])  # an empty folder is reported
    assert names("x", without="x/deep") == (["1.jpg"], [])  # drawings of an earlier run
    assert names("x/deep", without="x") == (["2.PNG"], [])  # the command refuses it later
    assert names("x", without="x") == (["1.jpg", "deep/2.PNG"], [])
