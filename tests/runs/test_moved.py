"""A run and its data can be copied elsewhere: everything is found again, nothing computed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from helpers import tiny_run
from helpers.shapes import write_data
from mini_fsod.config.load import resolve
from mini_fsod.loader import cache
from mini_fsod.runs import stages


def test_copied_run_finds_its_results_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    monkeypatch.chdir(here)
    config = tiny_run.config(write_data(Path("data")), **tiny_run.SHORT)
    first = tiny_run.run(config, Path("runs/a"))
    shutil.copytree(here, there, symlinks=True)  # with other file times
    for path in there.rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))
    here.rename(tmp_path / "gone")
    monkeypatch.chdir(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(cache, "_write", refuse)
    for stage in ("base", "transfer"):
        monkeypatch.setitem(stages.STAGE, stage, refuse)
    again = tiny_run.run(resolve("there/runs/a/config.yaml"), Path("there/runs/a"))
    assert again["stages"] == first["stages"]
