"""A run on coloured shapes up to its mined boxes, and a review of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import shapes
from helpers.tiny_run import copy_runs, run, short_config
from mini_fsod.review.mined import MinedReview, reviewed_run


@pytest.fixture(scope="session")
def mined_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed: see `mined`."""
    data = shapes.write_data(tmp_path_factory.mktemp("review") / "data")
    out = data.parent / "runs" / "shapes"
    # candidates with scores from 0.9 down; those above 0.65 are mined
    run(short_config(data, mine__threshold=0.65), out, last="mine")
    return out


@pytest.fixture
def mined(mined_run: Path, tmp_path: Path) -> Path:
    return copy_runs(mined_run, tmp_path)


@pytest.fixture
def review(mined: Path) -> Iterator[MinedReview]:
    with reviewed_run(mined) as begun:
        yield begun
