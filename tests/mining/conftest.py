"""A scan and a mined pool, computed once for all tests of mining."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import shapes
from helpers.mining_run import scan_and_mine


@pytest.fixture(scope="session")
def shapes_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.write_data(tmp_path_factory.mktemp("mining") / "data")


@pytest.fixture(scope="session")
def finished(shapes_data: Path) -> Path:
    """A run with the stages `scan` and `mine`. Not to be changed."""
    out = shapes_data.parent / "finished"
    scan_and_mine(shapes_data, out)
    return out
