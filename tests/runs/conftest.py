"""Finished runs on coloured shapes, for the tests of stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import shapes
from helpers.tiny_run import config, copy_runs, short_config
from mini_fsod.runs import stages


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.write_data(tmp_path_factory.mktemp("stages") / "data")


@pytest.fixture(scope="module")
def runs(data: Path) -> Path:
    return data.parent / "runs"


@pytest.fixture(scope="module")
def finished(data: Path, runs: Path) -> Path:
    """A run up to transfer. Not to be changed: see `copied`."""
    stages.run(
        config(data), runs / "finished", last="transfer", command="mini run tiny", anyway=True
    )
    return runs / "finished"


@pytest.fixture(scope="module")
def whole(data: Path, runs: Path) -> Path:
    """A short run of all stages. Not to be changed: see `copied_whole`."""
    stages.run(short_config(data), runs / "whole", anyway=True)
    return runs / "whole"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run with its store."""
    return copy_runs(finished, tmp_path)


@pytest.fixture
def copied_whole(whole: Path, tmp_path: Path) -> Path:
    return copy_runs(whole, tmp_path)
