"""A further class after a run: what was found for the first one is kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import shapes
from helpers.shapes import NOVEL
from helpers.tiny_run import run, short_config
from mini_fsod import checkpoint
from mini_fsod.config.load import resolve
from mini_fsod.data.dataset import Dataset
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap
from mini_fsod.runs import stages
from mini_fsod.runs.data import RunData
from mini_fsod.start.add import earlier, refuse_known

CPU = torch.device("cpu")
ADDED = "yellow"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has mined boxes of its new class."""
    folder = tmp_path_factory.mktemp("add")
    data = shapes.write_data(folder / "data")
    run(short_config(data), folder / "runs" / "first", last="tune")
    return folder / "runs" / "first"


def boxes_of(data: Dataset, name: str) -> set[tuple[str, tuple[float, ...]]]:
    """(picture, box) of a class."""
    label = data.classes.index(name)
    return {
        (data.files[i], tuple(np.round(box, 3).tolist()))
        for i, c, box in zip(data.boxes.image, data.boxes.label, data.boxes.xywh, strict=True)
        if c == label
    }


def pool_of(folder: Path) -> set[tuple[str, tuple[float, ...]]]:
    content = json.loads((folder / "pool.json").read_text())
    names = {image["id"]: image["file_name"] for image in content["images"]}
    return {
        (names[box["image_id"]], tuple(np.round(box["bbox"], 3).tolist()))
        for box in content["annotations"]
    }


def write_added(folder: Path) -> Path:
    """Two boxes of another class on pictures of the run."""
    content = shapes.pictures(folder / "drawn", 2, seed=0)
    categories = [{"id": 1, "name": ADDED}]
    boxes = [box | {"category_id": 1} for box in content["annotations"][:2]]
    for image in content["images"]:
        image["file_name"] = f"train/{image['file_name']}"
    path = folder / "added.json"
    path.write_text(
        json.dumps(content | {"annotations": boxes, "categories": categories}), encoding="utf-8"
    )
    return path


def test_earlier_keeps_shots_and_mined_boxes_and_labels(finished: Path) -> None:
    found = earlier(finished)
    before = RunData(found.config, CPU)
    kept, shots = boxes_of(found.data, NOVEL), boxes_of(before.novel_shots, NOVEL)
    assert len(pool_of(finished)) > 2
    assert shots <= kept
    assert found.mined + found.shots == len(kept)
    assert kept - shots <= pool_of(finished)
    for name in ("red", "green"):
        assert boxes_of(found.data, name) == boxes_of(before.mined, name)
    # a mined box is only left out where a shot is the same object
    assert len(pool_of(finished) - kept) <= len(shots)
    assert set(found.data.files) == set(before.train.files)


def test_earlier_takes_a_pool_as_a_person_corrected_it(finished: Path, tmp_path: Path) -> None:
    content = json.loads((finished / "pool.json").read_text())
    last = content["annotations"].pop()
    for name in ("config.yaml", "detector.safetensors"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    (tmp_path / "pool.json").write_text(json.dumps(content))
    names = {image["id"]: image["file_name"] for image in content["images"]}
    gone = (names[last["image_id"]], tuple(np.round(last["bbox"], 3).tolist()))
    assert gone in boxes_of(earlier(finished).data, NOVEL)
    assert gone not in boxes_of(earlier(tmp_path).data, NOVEL)


def test_init_add_writes_a_run_that_keeps_the_first_class(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mini
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--add", ADDED, "--boxes", write_added(tmp_path), "--from", finished)
    code, out, err = mini("init", *options, "--no-estimate")
    assert code == 0, err
    assert "mini run first-yellow.yaml" in out
    config = resolve("first-yellow.yaml")
    assert config.data.novel == (ADDED,)
    assert config.detector.anchors == (8, 16, 32, 64, 128)  # as in the former run
    data = RunData(config, CPU)
    assert data.labels.base == ("red", "green", NOVEL)
    found = earlier(finished)
    assert boxes_of(data.base, NOVEL) == boxes_of(found.data, NOVEL)
    assert data.test is not None
    assert len(boxes_of(data.test, NOVEL)) > 0

    (tmp_path / "first-yellow-labels" / "annotations" / "test.json").unlink()  # nothing to score
    stages.run(config, tmp_path / "runs" / "second", last="base")
    taken = checkpoint.load(tmp_path / "runs" / "second" / "base" / "checkpoint.safetensors")
    saved = checkpoint.load(finished / "detector.safetensors")
    assert taken.labels == LabelMap(("red", "green", NOVEL), ())
    for (name, own), other in zip(
        taken.detector.named_parameters(), saved.detector.parameters(), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=0, atol=0, msg=name)


def test_earlier_says_what_a_run_lacks(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        earlier(tmp_path)
    (tmp_path / "config.yaml").write_bytes((finished / "config.yaml").read_bytes())
    with pytest.raises(UserError, match="nothing has been mined"):
        earlier(tmp_path)
    (tmp_path / "pool.json").write_bytes((finished / "pool.json").read_bytes())
    with pytest.raises(UserError, match='no detector of "blue, light"'):
        earlier(tmp_path)
    with pytest.raises(UserError, match='knows "blue, light" already'):
        refuse_known(["Blue,light"], earlier(finished).labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--add", "nut"), "--add needs a run"),
        (("--from", "runs/x"), "--from needs a class"),
        (("--from", "runs/x", "--add", "nut"), "--from needs a class and its boxes"),
        (("photos", "--from", "runs/x", "--add", "nut", "--boxes", "b.json"), "Leave out PHOTOS"),
        ((), "No photos"),
    ],
)
def test_init_refuses_options_that_do_not_go_together(
    mini, options: tuple[str, ...], message: str
) -> None:
    code, _, err = mini("init", *options)
    assert code == 2
    assert message in err
