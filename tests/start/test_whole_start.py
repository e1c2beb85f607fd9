"""As a new user: photos without labels, five boxes, `mini init`, `mini run`; then another class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from helpers.given import Photos, is_new, write_detector, write_photos
from helpers.shapes import NOVEL
from helpers.tiny_run import SETTINGS
from mini_fsod.checkpoint import read_header
from mini_fsod.config.load import resolve
from mini_fsod.data.read import read
from mini_fsod.data.subsets import is_of
from mini_fsod.runs import stages
from mini_fsod.runs.data import RunData
from mini_fsod.start.add import earlier, photos_of, write_labels

KNOWN = ("red", "green")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    return write_photos(tmp_path_factory.mktemp("start"))


def small(given: Path) -> list[str]:
    """What makes the written configuration small: a tiny detector, and few iterations."""
    keys = {k: v for k, v in SETTINGS.items() if not k.startswith("data.")} | {
        "base.checkpoint": given,
        "base.sure": 0.35,
        "data.cache": given.parent / "cache",
        "detector.weights": "null",
        "discriminator.weights": "none",
        "transfer.iterations": 4,
    }
    return [f"{key}={value}" for key, value in keys.items() if key != "base.iterations"]


def write_nuts(path: Path, photos: Photos, image: int) -> None:
    """One box of a further class."""
    box = {"id": 1, "image_id": image, "category_id": 1, "bbox": [2, 2, 40, 40]}
    images = [record for record in photos.truth["images"] if record["id"] == image]
    content = {"images": images, "annotations": [box], "categories": [{"id": 1, "name": "nut"}]}
    path.write_text(json.dumps(content))


def test_init_writes_a_run_that_works_and_a_further_class_keeps_it(
    photos: Photos, mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = photos.root.parent
    monkeypatch.chdir(home)
    assert mini("init", "photos", "--boxes", "five.json", "--no-estimate")[0] == 0
    config = resolve("photos.yaml", small(write_detector(home / "known.safetensors", KNOWN)))
    assert config.data.novel == (NOVEL,)
    run = home / "runs" / "photos"
    stages.run(config, run, last="transfer")
    data = RunData(config, torch.device("cpu"))
    assert data.labels.base == KNOWN
    assert len(data.mined) == len(photos.truth["images"])

    # a pool as a person would correct it: every new object, the shots among them
    new = [box for box in photos.truth["annotations"] if is_new(box)]
    (run / "pool.json").write_text(json.dumps(photos.truth | {"annotations": new}))
    found = earlier(run)
    assert (found.shots, found.mined) == (5, len(new) - 5)
    write_labels(found, home / "labels")
    assert photos_of(found) == photos.root
    whole = read(home / "labels", root=Path("photos"))
    assert len(whole) == len(photos.truth["images"])
    assert int(is_of(whole, (NOVEL,)).sum()) == len(new) > 5
    assert all(whole.path(i).is_file() for i in range(len(whole)))

    # the command, with a configuration in another folder than the current one
    write_nuts(home / "nut.json", photos, image=8)
    monkeypatch.chdir(home / "runs")
    words = ("--from", "photos", "--add", "nut", "--boxes", "../nut.json", "--no-estimate")
    assert mini("init", *words, "-o", "../next/nut.yaml")[0] == 0
    monkeypatch.chdir(home)
    code, _, err = mini("run", "next/nut.yaml", "--only-novel", "-o", "next/run", "--anyway")
    assert code == 0, err
    assert read_header(home / "next" / "run" / "detector.safetensors").labels.classes == ("nut",)
