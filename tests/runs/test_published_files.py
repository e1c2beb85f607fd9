"""Files of weights that a machine without a network lacks are named at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.photos import bolts, write_boxes, write_photos
from mini_fsod.config.load import resolve
from mini_fsod.config.schema import STAGES, Config
from mini_fsod.detector import download
from mini_fsod.errors import UserError
from mini_fsod.runs import stages
from mini_fsod.runs.published_files import missing_files

GIVEN = "fasterrcnn_resnet50_fpn_coco-258fb6c6.pth"
BACKBONE, DISCRIMINATOR = "resnet50-11ad3fa6.pth", "resnet50-0676ba61.pth"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch, and no network."""

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(download, "urlopen", offline)
    return tmp_path / "hub" / "checkpoints"


def configured(tmp_path: Path, *sets: str) -> Config:
    write_photos(tmp_path / "photos")
    shots = write_boxes(tmp_path / "five.json", *bolts())
    given = ["base.checkpoint=torchvision:fasterrcnn_resnet50_fpn", "data.novel=bolt"]
    places = [f"data.root={tmp_path / 'photos'}", f"shots.root={tmp_path / 'photos'}"]
    return resolve("photos-cpu", [*given, *places, f"shots.file={shots}", *sets])


def missing(config: Config, *wanted: str) -> list[str]:
    return [file.path.name for file in missing_files(config, wanted or STAGES)]


def test_missing_files_are_those_that_the_stages_need(tmp_path: Path, cache: Path) -> None:
    given = configured(tmp_path)
    assert missing(given) == [GIVEN, DISCRIMINATOR]
    assert missing(given, "base", "transfer") == [GIVEN]
    assert missing(configured(tmp_path, "base.checkpoint=null")) == [BACKBONE, DISCRIMINATOR]
    assert missing(configured(tmp_path, "discriminator.weights=none")) == [GIVEN]
    own = configured(tmp_path, "discriminator.weights=resnet50:own.pth")
    assert missing(own) == [GIVEN]
    from_weights = configured(tmp_path, "online.start=weights")
    assert missing(from_weights) == [GIVEN, BACKBONE, DISCRIMINATOR]
    cache.mkdir(parents=True)
    (cache / GIVEN).touch()
    assert missing(given) == [DISCRIMINATOR]


def test_a_run_without_a_network_names_all_files(tmp_path: Path, cache: Path) -> None:
    config = configured(tmp_path)
    for start in (stages.run, stages.find_results):
        with pytest.raises(UserError, match="could not be downloaded: no network") as caught:
            start(config, tmp_path / "run")
        for words in (GIVEN, DISCRIMINATOR, str(cache), "base.checkpoint", "discriminator.weights"):
            assert words in caught.value.fix
