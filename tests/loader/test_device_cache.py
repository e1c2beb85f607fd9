from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import shapes
from helpers.run_data import CPU, run_data
from mini_fsod.config.schema import Config
from mini_fsod.data.folder import read_folder
from mini_fsod.loader import device_cache
from mini_fsod.loader.device_cache import is_streamed, largest_sides, pictures_on_device
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.run import inputs_from
from mini_fsod.train.distributed import Team

GPU = torch.device("cuda")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shapes.write_data(tmp_path / "data")


def config(**sections: dict[str, Any]) -> Config:
    views = {"short": [48, 64], "long": 96, "test": 64} | sections.pop("views", {})
    return Config.model_validate({"views": views, **sections})


@pytest.mark.parametrize(
    ("sections", "sides"),
    [
        ({}, (64, 96)),
        ({"views": {"test": 80}}, (80, 96)),
        ({"views": {"few_shot": [72, 90]}}, (90, 96)),
        ({"views": {"zoom": [0.5, 1.2]}}, (77, 116)),
        ({"views": {"zoom": [0.4, 0.8]}}, (64, 96)),
        ({"views": {"zoom": [0.5, 1.2], "test": 79}}, (79, 116)),  # no zoom at test
        ({"mine": {"scan_short": [64, 128]}}, (128, 192)),
        ({"mine": {"scan_short": [32]}}, (64, 96)),
        ({"discriminator": {"weights": "resnet18", "short": 100}}, (100, 200)),
        ({"discriminator": {"weights": "none", "short": 100}}, (64, 96)),
    ],
)
def test_largest_sides_covers_every_stage(
    sections: dict[str, dict[str, Any]], sides: tuple[int, int]
) -> None:
    assert largest_sides(config(**sections)) == sides


def test_feed_identity_changes_where_pictures_are_resized_differently(data: Path) -> None:
    """Only pictures larger than the stored size are resized twice."""

    def identity(**changes: Any) -> str:
        views = {"views__short": [32], "views__test": 32, "views__long": 48}
        run = run_data(data, **views, **changes)
        batches, sizes = run.batches(run.base)
        schedule = Schedule(sizes, 4, (32,), 48, seed=0)
        return run.feed(run.base, schedule, inputs_from(batches, CPU), Team(), 1).identity

    assert identity() == identity(shots__seed=1)
    assert identity() != identity(mine__scan_short=[32, 40])
    assert identity(mine__scan_short=[500]) == identity(mine__scan_short=[600])


def test_is_streamed_decides_once_per_set(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures of one run of a study take memory that the next run shares."""
    free = [10_000_000, 0]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free.pop(0), 0))
    runs = [run_data(data, GPU, shots__seed=seed) for seed in (0, 1)]
    assert [is_streamed(run.whole, run.config, GPU) for run in runs] == [False, False]
    assert free == [0]


def test_is_streamed_checks_each_set_of_pictures(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes.pictures(tmp_path / "photos", 40, seed=3)
    photos, _ = read_folder(tmp_path / "photos")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (600_000, 0))
    run = run_data(data, GPU)
    assert not is_streamed(run.whole, run.config, GPU)
    assert is_streamed(photos, run.config, GPU)
    assert "photos: 40 pictures do not fit into the GPU's memory" in capsys.readouterr().err


@pytest.mark.parametrize(("loading", "streams"), [("auto", False), ("stream", True)])
def test_is_streamed_follows_the_key_without_a_gpu(data: Path, loading: str, streams: bool) -> None:
    run = run_data(data, data__loading=loading)
    assert is_streamed(run.whole, run.config, CPU) == streams


def test_runs_of_one_process_share_pictures(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = run_data(data), run_data(data, shots__seed=1, transfer__rate=0.5)
    assert one.whole is other.whole
    one.batches(one.shots)
    monkeypatch.setattr(device_cache, "cached_pictures", None)
    other.batches(other.shots)
    assert other.test is not None
    other.batches(other.test)
    with pytest.raises(TypeError):  # other sizes
        pictures_on_device(one.whole, config(views={"test": 80}), CPU)


def test_pictures_on_device_keeps_the_two_sets_used_last(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for n, folder in enumerate(folders):
        shapes.pictures(folder, 2, seed=n)
    a, b, c = (read_folder(folder)[0] for folder in folders)
    settings = config(data={"cache": tmp_path / "cache"})
    first, _ = pictures_on_device(a, settings, CPU)
    second, _ = pictures_on_device(b, settings, CPU)
    assert pictures_on_device(a, settings, CPU)[0] is first
    pictures_on_device(c, settings, CPU)
    assert pictures_on_device(a, settings, CPU)[0] is first
    assert pictures_on_device(b, settings, CPU)[0] is not second
