"""Pictures on the device: how large they are kept, whether they fit, and that they are shared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mini_fsod.config.load import resolve
from mini_fsod.data.folder import read_folder
from mini_fsod.loader import device_cache
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.data import inputs_from
from mini_fsod.train.distributed import Team
from runs import small
from runs.small import CPU, material

GPU = torch.device("cuda")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return small.write_data(tmp_path / "data")


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, (64, 96)),
        ({"views__test": 80}, (80, 96)),
        ({"transfer__short": "[72, 90]"}, (90, 96)),  # shots may be shown larger than the rest
        ({"views__zoom": "[0.5, 1.2]"}, (77, 116)),
        ({"views__zoom": "[0.4, 0.8]"}, (64, 96)),
        ({"views__zoom": "[0.5, 1.2]", "views__test": 79}, (79, 116)),  # tests are not zoomed
        ({"mine__short": "[64, 128]"}, (128, 192)),  # mining may look closer
        ({"mine__short": "[32]"}, (64, 96)),
        ({"mine__discriminator": "resnet18", "mine__discriminator_short_side": 100}, (100, 200)),
    ],
)
def test_pictures_are_kept_as_large_as_they_are_shown(
    data: Path, changes: dict[str, object], kept: tuple[int, int]
) -> None:
    assert device_cache.largest_sides(material(data, **changes)._config) == kept


def test_pictures_that_are_reduced_otherwise_are_other_batches(data: Path) -> None:
    """Mining looks at larger pictures than training shows: only larger ones are reduced twice."""

    def identity(**changes: object) -> str:
        own = material(data, views__short="[32]", views__test=32, views__long=48, **changes)
        batches, sizes = own.batches(own.base)
        schedule = Schedule(sizes, 4, (32,), 48, seed=0)
        return own.feed(own.base, schedule, inputs_from(batches, CPU), Team(), 1).identity

    assert identity() == identity(shots__seed=1)
    assert identity() != identity(mine__short="[32, 40]")
    assert identity(mine__short="[500]") == identity(mine__short="[600]")  # none is as large


def test_whether_pictures_fit_is_asked_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one run of a study holds on the device is not free for the next, which shares it."""
    free = [10_000_000, 0]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free.pop(0), 0))
    runs = [material(data, GPU, shots__seed=seed) for seed in (0, 1)]
    assert [device_cache.too_many(run.data, run._config, GPU) for run in runs] == [False, False]
    assert free == [0]


def test_of_each_set_of_pictures(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The data fits, and what is to be mined as well does not."""
    small.pictures(tmp_path / "photos", 40, seed=3)
    photos, _ = read_folder(tmp_path / "photos")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (600_000, 0))
    own = material(data, GPU)
    assert not device_cache.too_many(own.data, own._config, GPU)
    assert device_cache.too_many(photos, own._config, GPU)
    assert "photos: 40 pictures do not fit into the GPU's memory" in capsys.readouterr().err


@pytest.mark.parametrize(("feed", "streams"), [("auto", False), ("stream", True)])
def test_without_a_gpu_it_is_as_configured(data: Path, feed: str, streams: bool) -> None:
    own = material(data, data__feed=feed)
    assert device_cache.too_many(own.data, own._config, CPU) == streams


def test_runs_in_one_process_share_what_they_read_and_hold(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever boxes the pictures have."""
    one, other = material(data), material(data, shots__seed=1, transfer__rate=0.5)
    assert one.data is other.data
    one.batches(one.shots)
    monkeypatch.setattr(device_cache, "cached_pictures", None)
    other.batches(other.shots)
    assert other.test is not None
    other.batches(other.test)
    config = resolve("demo")
    with pytest.raises(TypeError):  # other sizes
        device_cache.hold(one.data, config, CPU)


def test_two_sets_of_pictures_are_held(tmp_path: Path) -> None:
    """The third takes the place of the one that nobody has asked for longest."""
    folders = [tmp_path / name for name in "abc"]
    for n, folder in enumerate(folders):
        small.pictures(folder, 2, seed=n)
    a, b, c = (read_folder(folder)[0] for folder in folders)
    config = resolve("demo", [f"data.cache={tmp_path / 'cache'}"])
    first, _ = device_cache.hold(a, config, CPU)
    second, _ = device_cache.hold(b, config, CPU)
    assert device_cache.hold(a, config, CPU)[0] is first
    device_cache.hold(c, config, CPU)
    assert device_cache.hold(a, config, CPU)[0] is first
    assert device_cache.hold(b, config, CPU)[0] is not second
