"""The stage `online` on tiny data: what it trains on decides, bit by bit, what comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import shapes
from helpers.online_run import LABELS, NO_TEACHER, mixed_pool, run_of, trained, write_pool
from helpers.tiny_run import hidden_boxes
from mini_fsod import checkpoint
from mini_fsod.config.schema import Online
from mini_fsod.data.dataset import Boxes
from mini_fsod.detector.settings import RoISettings
from mini_fsod.errors import DataError, UserError
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.labels import LabelMap
from mini_fsod.online.retrain import boxes_per_image, new_student, online
from mini_fsod.runs.detectors import load_detector, new_detector


def test_online_saves_a_detector_of_all_classes(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path, mixed_pool(data), **NO_TEACHER)
    figures = online(run, tmp_path)
    assert figures["iterations"] == 4
    header = checkpoint.read_header(tmp_path / "checkpoint.safetensors")
    assert (header.labels.base, header.labels.novel) == (LABELS.base, LABELS.novel)
    assert header.about["stage"] == "online"
    assert header.settings.classifier == "linear"
    assert not header.settings.iou_branch
    assert header.settings.rpn.after_nms_test == 30  # as configured


def test_online_depends_on_the_boxes_of_the_pool_alone(data: Path, tmp_path: Path) -> None:
    """Without a teacher neither their scores nor their order matter."""
    boxes = mixed_pool(data)
    before = trained(run_of(data, tmp_path, boxes, **NO_TEACHER), tmp_path / "1")
    plain = [{key: value for key, value in box.items() if key != "score"} for box in boxes]
    assert trained(run_of(data, tmp_path, plain, **NO_TEACHER), tmp_path / "2") == before
    emptied = run_of(data, tmp_path, [], **NO_TEACHER)
    assert trained(emptied, tmp_path / "3") != before


def test_online_oracle_trains_on_all_hidden_boxes(data: Path, tmp_path: Path) -> None:
    everything = run_of(data, tmp_path, hidden_boxes(data), **NO_TEACHER)
    wanted = trained(everything, tmp_path / "1")
    oracle = run_of(data, tmp_path, [], **NO_TEACHER, online__oracle="true")
    assert trained(oracle, tmp_path / "2") == wanted


@pytest.mark.parametrize("images", ["taught", "no_background"])
def test_online_oracle_treats_images_as_a_pool_of_all_boxes_does(
    without_base: Path, tmp_path: Path, images: str
) -> None:
    data, keys = without_base, {**NO_TEACHER, "online__images": images}
    wanted = trained(run_of(data, tmp_path, hidden_boxes(data), **keys), tmp_path / "1")
    oracle = run_of(data, tmp_path, [], **keys, online__oracle="true")
    assert trained(oracle, tmp_path / "2") == wanted
    everywhere = run_of(data, tmp_path, [], **NO_TEACHER, online__oracle="true")
    assert trained(everywhere, tmp_path / "3") != wanted


@pytest.mark.slow
def test_online_every_key_changes_the_training(without_base: Path, tmp_path: Path) -> None:
    data, candidates = without_base, tmp_path / "mine" / "candidates.json"
    rows = [
        {"file_name": f"train/{box['image_id'] - 1}.png", "category": shapes.NOVEL}
        | {"bbox": box["bbox"], "score": 0.5, "score_detector": 0.5, "cosine": None}
        for box in hidden_boxes(data)
    ]
    candidates.parent.mkdir()
    candidates.write_text(json.dumps(rows))
    found = {}
    for n, keys in enumerate(
        (
            {},
            {"online__ignore_candidates": "true"},
            {"online__mined_weight": 2},
            {"online__mined_boxes": "none"},
            {"online__repeat": 2},
            {"online__strong": "false"},
            {"online__strong": "stac"},
            {"online__focal_gamma": 1.5},
            {"online__images": "taught"},
            {"online__images": "no_background"},
            {"online__iou_branch": "true"},
            {"online__iou_branch": "true", "online__iou_beta": 2},
        )
    ):
        run = run_of(data, tmp_path, mixed_pool(data)[:2], **(NO_TEACHER | keys))
        found[str(keys)] = trained(run, tmp_path / str(n))
    assert len({*found.values()}) == len(found)


def test_online_refuses_a_missing_pool(data: Path, tmp_path: Path) -> None:
    with pytest.raises((UserError, DataError), match=r"pool\.json"):
        online(run_of(data, tmp_path, **NO_TEACHER), tmp_path)


def test_online_refuses_missing_candidates(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path, [], **NO_TEACHER, online__ignore_candidates="true")
    with pytest.raises(UserError, match=r"candidates\.json"):
        online(run, tmp_path)


def test_online_refuses_a_pool_of_other_pictures(data: Path, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.json", data, mixed_pool(data))

    def elsewhere(content: dict[str, Any]) -> None:
        for image in content["images"]:
            image["file_name"] = f"elsewhere/other-{image['id']}.png"

    shapes.rewrite(pool, elsewhere)
    with pytest.raises(DataError):
        online(run_of(data, tmp_path, **NO_TEACHER), tmp_path)


# The student at the start


def test_new_student_sets_the_weight_of_the_iou_loss(data: Path, tmp_path: Path) -> None:
    """beta is 0.5 unless the configuration changes it."""
    assert Online().iou_beta == RoISettings().iou_weight == 0.5
    student, _ = new_student(run_of(data, tmp_path))
    assert student.settings.roi.iou_weight == 0.5
    student, _ = new_student(run_of(data, tmp_path, online__iou_beta=2))
    assert student.settings.roi.iou_weight == 2


def test_focal_loss_is_of_the_online_stage_alone(data: Path, tmp_path: Path) -> None:
    """The last fine-tuning of what Unbiased Teacher trained has cross-entropy again."""
    run = run_of(data, tmp_path, [], **NO_TEACHER, online__focal_gamma=1.5)
    student, _ = new_student(run)
    assert student.settings.roi.focal_gamma == 1.5
    trained(run, tmp_path / "online")
    assert load_detector(run, "online").detector.settings.roi.focal_gamma == 0


def test_online_teacher_without_the_pool_needs_no_mining(data: Path, tmp_path: Path) -> None:
    alone = {"online__mingle__rpn": "false", "online__mingle__rcnn": "false"}
    mined = trained(run_of(data, tmp_path, mixed_pool(data), **alone), tmp_path / "1")
    (tmp_path / "pool.json").unlink()
    assert trained(run_of(data, tmp_path, **alone), tmp_path / "2") == mined


@pytest.mark.parametrize("iou_branch", [True, False])
def test_new_student_starts_from_transfer(data: Path, tmp_path: Path, iou_branch: bool) -> None:
    """All that TFA has frozen is trained again."""
    changes = {"online__start": "transfer", "online__iou_branch": str(iou_branch).lower()}
    run = run_of(data, tmp_path, **changes)
    few_shot = new_detector(run.config, 3)
    few_shot.backbone.requires_grad_(False)
    path = tmp_path / "transfer" / CHECKPOINT_FILE
    path.parent.mkdir()
    checkpoint.save(path, few_shot, LABELS, {"stage": "transfer", "weights": "a.safetensors"})
    student, weights = new_student(run)
    assert weights == "a.safetensors"
    assert (student.iou_branch is not None) == iou_branch
    for name, value in few_shot.state_dict().items():
        assert torch.equal(student.state_dict()[name], value), name
    assert all(parameter.requires_grad for parameter in student.parameters())


def test_new_student_is_random_from_the_seed(data: Path, tmp_path: Path) -> None:
    one, other, third = (
        new_student(run_of(data, tmp_path, seed=seed))[0].predictor.classifier.weight
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


def test_boxes_per_image_counts_images_as_often_as_they_are_shown() -> None:
    labels = LabelMap(("dog",), ("cow", "bus"))
    boxes = Boxes.of([0, 1, 1], [[0, 0, 9, 9]] * 3, [1, 1, 2])  # a cow; a cow and a bus
    training: Any = type("Training", (), {"mined": boxes})
    shares = np.array([0.25, 0.5, 0.25])
    assert boxes_per_image(training, labels, shares) == {"cow": 0.75, "bus": 0.5}
