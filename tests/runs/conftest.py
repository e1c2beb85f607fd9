"""Runs up to `mine` on tiny data, once for all tests of mining."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.mining import scan
from mini_fsod.runs import stages
from runs import mined, small


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with a discriminator beside it."""
    folder = tmp_path_factory.mktemp("small")
    mined.write_discriminator(folder / "narrow.safetensors")
    return small.write_data(folder / "data")


@pytest.fixture(scope="session")
def finished(data: Path) -> Path:
    """A run up to `mine`. Not to be changed: see `copied`."""
    out = data.parent / "finished"
    stages.run(mined.config(data), out, last="mine", command="mini run small")
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every look at pictures from here on."""
    looks: list[str] = []
    for name in ("scan", "judged"):
        real = getattr(scan, name)

        def counted(*words: Any, name: str = name, real: Any = real) -> Any:
            looks.append(name)
            return real(*words)

        monkeypatch.setattr(scan, name, counted)
    return looks
