"""The last fine-tuning: what learns, from what, and that kept features change nothing."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mini_fsod.data.split import arranged, is_of, with_base_boxes
from safetensors.torch import load_file
from torch import Tensor

from mini_fsod import checkpoint
from mini_fsod.config.load import Config, resolve
from mini_fsod.data.dataset import Dataset
from mini_fsod.errors import UserError
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs import stages
from mini_fsod.runs.base import new_detector
from mini_fsod.runs.data import Material, inputs_from
from mini_fsod.tfa import cached_features, tune
from mini_fsod.train import log
from mini_fsod.train.distributed import Team
from mini_fsod.train.step import Losses, Step, losses_of, make_optimiser
from runs import small

CPU = torch.device("cpu")
SHORT = {
    "shots__k": 2,
    "base__iterations": 2,
    "transfer__iterations": 2,
    "online__iterations": 3,
    "online__batch": 4,
    "tune__iterations": 12,
    "tune__batch": 4,
    "tune__rate": 0.02,  # so that a few iterations move every bit that may move
}
LEARNING = {
    *("predictor.classifier.weight", "predictor.classifier.bias"),
    *("predictor.boxes.weight", "predictor.boxes.bias"),
    *("iou_branch.predict.weight", "iou_branch.predict.bias"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


def config(data: Path, **changes: object) -> Config:
    """The pool is one wrong box."""
    given = data.parent / "given.json"
    given.write_text(
        json.dumps([{"image_id": 1, "category_id": 3, "bbox": [1, 2, 20, 16], "score": 0.9}])
    )
    (data.parent / "small.yaml").touch()
    changes = {"mine__detections": given, "mine__threshold": 0.5, **SHORT, **changes}
    return resolve(str(data.parent / "small.yaml"), small.sets(data, **changes))


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    out = data.parent / "finished"
    stages.run(config(data), out)
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def weights(out: Path, stage: str = "tune") -> dict[str, Tensor]:
    return load_file(out / stage / "checkpoint.safetensors")


def test_the_predictors_alone_learn(finished: Path) -> None:
    before, after = weights(finished, "online"), weights(finished)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == LEARNING


def test_what_it_leaves(finished: Path) -> None:
    results = small.json_of(finished / "results.json")["stages"]
    assert list(results) == ["base", "transfer", "mine", "online", "tune"]
    one, other = (
        checkpoint.read_header(finished / stage / "checkpoint.safetensors")
        for stage in ("online", "tune")
    )
    assert other.about["stage"] == "tune"
    assert other.settings == one.settings
    assert other.settings.classifier == "linear"  # no surgery, no cosine
    assert other.labels == one.labels
    (first, *_) = log.read(finished / "tune" / log.FILE)
    assert "loss_iou" in first


@pytest.mark.slow
def test_without_an_iou_branch(data: Path, copied: Path) -> None:
    stages.run(config(data, online__iou_branch="false"), copied, first="online")
    before, after = weights(copied, "online"), weights(copied)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in LEARNING if not name.startswith("iou")}


@pytest.mark.slow
def test_kept_features_or_not(data: Path, finished: Path, copied: Path) -> None:
    stages.run(config(data, tune__cached="false"), copied, first="tune")
    plain, kept = weights(copied), weights(finished)
    for name in plain:
        torch.testing.assert_close(plain[name], kept[name], rtol=1e-4, atol=1e-6, msg=name)


def test_on_novel_shots_alone(
    data: Path, finished: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base boxes of the same pictures are left out with the pictures that have no other."""
    seen: list[Dataset] = []
    inner = tune.over_views

    def looking(run: Any, stage: str, detector: Any, shots: Dataset, *words: Any) -> None:
        seen.append(shots)
        inner(run, stage, detector, shots, *words)

    monkeypatch.setattr(tune, "over_views", looking)
    for which in ("balanced", "novel"):
        stages.run(config(data, tune__data=which), copied, first="tune")
    balanced, novel = seen
    assert np.bincount(balanced.boxes.label).tolist() == [2, 2, 2]
    assert novel.boxes.label.tolist() == [2, 2]
    assert len(novel) == len(np.unique(novel.boxes.image)) < len(balanced)
    files = {balanced.files[i] for i in balanced.boxes.image[balanced.boxes.label == 2].tolist()}
    assert {*novel.files} == files
    assert not torch.equal(
        weights(copied)["predictor.boxes.bias"], weights(finished)["predictor.boxes.bias"]
    )


def test_no_fine_tuning(data: Path, copied: Path) -> None:
    """The re-trained detector is the run's, with its figures."""
    stages.run(config(data, tune__data="none"), copied, first="tune")
    results = small.json_of(copied / "results.json")["stages"]
    for figure in ("nAP50", "bAP50", "per_class", "checkpoint_sha256"):
        assert results["tune"][figure] == results["online"][figure]
    assert results["tune"]["seconds"] < results["online"]["seconds"]  # spent once
    assert checkpoint.find(copied) == copied / "online" / "checkpoint.safetensors"
    moved = copied.rename(copied.with_name("moved"))
    assert checkpoint.find(moved) == moved / "online" / "checkpoint.safetensors"


def test_no_fine_tuning_of_a_given_detector(data: Path, finished: Path, copied: Path) -> None:
    given = Path(shutil.copytree(finished, copied.with_name("given")))
    changes = {"online__checkpoint": given, "tune__data": "none"}
    stages.run(config(data, **changes), copied, first="online")
    assert checkpoint.find(copied) == given / "online" / "checkpoint.safetensors"
    shutil.rmtree(given)
    with pytest.raises(UserError, match="of tune was given, and is not there"):
        checkpoint.find(copied)  # not the few-shot detector, which is there


def test_without_a_re_trained_detector(data: Path, copied: Path) -> None:
    (copied / "online" / "checkpoint.safetensors").unlink()
    with pytest.raises(UserError, match="is not there") as told:
        stages.run(config(data), copied, first="tune")
    assert "--from online" in told.value.fix


# Kept features, iteration by iteration


@pytest.fixture(scope="module")
def material(data: Path) -> Material:
    return Material(config(data), CPU)


def re_trained(material: Material) -> Any:
    torch.manual_seed(0)
    detector = new_detector(material._config, 3, iou_branch=True).requires_grad_(False)
    assert detector.iou_branch is not None
    with torch.no_grad():  # an IoU that differs from region to region
        detector.iou_branch.predict.weight.normal_(std=0.5)
    detector.predictor.requires_grad_(True)
    detector.iou_branch.predict.requires_grad_(True)
    return detector


def curve(detector: Any, losses: Losses, material: Material, schedule: Any, inputs: Any) -> Any:
    """The heads' losses of every iteration; the detector learns meanwhile."""
    optimiser = make_optimiser(detector, CPU, 0.9, 1e-4)
    optimiser.param_groups[0]["lr"].fill_(0.02)
    step = Step(losses, optimiser, CPU, bf16=False)
    feed = material.feed(material.shots, schedule, inputs, Team(), 1)
    detector.train()
    values = [step(batch).clone() for batch in islice(feed.batches(0), 12)]
    names = ("loss_classifier", "loss_box_reg", "loss_iou")
    return [[float(value[step.names.index(name)]) for name in names] for value in values]


@pytest.mark.parametrize(("flip", "shorts", "batch"), [(True, (48, 64), 4), (False, (64,), 1)])
def test_kept_features_give_the_same_curve_with_an_iou_branch(
    material: Material, flip: bool, shorts: tuple[int, ...], batch: int
) -> None:
    batches, sizes = material.batches(material.shots)
    schedule = Schedule(sizes, batch, shorts, 96, seed=5, flip=flip)
    plain = re_trained(material)
    kept = deepcopy(plain)
    views = cached_features.look_once(kept, batches, schedule, CPU, bf16=False)
    assert views.iou_vectors.shape == views.vectors.shape
    wanted = curve(plain, losses_of(plain), material, schedule, inputs_from(batches, CPU))
    found = curve(
        kept,
        cached_features.losses_over(kept, views),
        material,
        schedule,
        cached_features.rows_from(schedule, CPU),
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert all(first != last for first, last in zip(wanted[0], wanted[-1], strict=True))
    for (name, one), other in zip(plain.named_parameters(), kept.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6, msg=name)


def test_known_boxes_of_the_shots_pictures(data: Path) -> None:
    """Novel shots stay as they are; base classes have all boxes of those pictures."""
    material = Material(config(data), CPU)
    labels, shots = material.labels, material.shots
    everything = arranged(material.data, labels)
    found = with_base_boxes(shots, everything, labels)
    assert found.files == shots.files

    def rows(data: Dataset, novel: bool) -> list[tuple[object, ...]]:
        own = data.boxes.take(is_of(data, labels.novel if novel else labels.base))
        names = [data.files[i] for i in own.image.tolist()]
        return sorted(zip(names, own.label.tolist(), map(tuple, own.xywh.tolist()), strict=True))

    assert rows(found, novel=True) == rows(shots, novel=True)
    all_base = [row for row in rows(everything, novel=False) if row[0] in shots.files]
    assert rows(found, novel=False) == all_base
    assert {*rows(shots, novel=False)} < {*all_base}
    elsewhere = replace(shots, files=tuple(f"other/{file}" for file in shots.files))
    same = with_base_boxes(elsewhere, everything, labels)
    assert rows(same, novel=False) == rows(elsewhere, novel=False)
