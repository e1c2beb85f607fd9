from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from mini_fsod import checkpoint
from mini_fsod.config.schema import Config
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import CAFFE
from mini_fsod.errors import UserError
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.labels import LabelMap
from mini_fsod.runs.detectors import load_detector, new_detector, to_device

LABELS = LabelMap(("car", "bus"), ("bird",))
SMALL = {"backbone": "resnet18-narrow", "norm": "group", "fpn_channels": 16, "head_width": 8}


def config_of(**detector: Any) -> Config:
    return Config.model_validate({"detector": SMALL | detector, "views": {"test": 320}})


def run_of(folder: Path, config: Config) -> Any:
    """What `load_detector` reads of a run whose only finished stages are saved in `folder`."""
    return SimpleNamespace(
        config=config, folder=lambda stage: folder / stage, data=SimpleNamespace(labels=LABELS)
    )


def save_stage(folder: Path, stage: str, classes: LabelMap, config: Config) -> Path:
    path = folder / stage / CHECKPOINT_FILE
    detector = new_detector(config, len(classes.classes))
    checkpoint.save(path, detector, classes, {"stage": stage})
    return path


def test_new_detector_follows_the_configuration() -> None:
    config = config_of(
        anchors=[8, 16, 32, 64, 128], rpn_pre_nms=600, rpn_post_nms=50, rpn_samples=32,
        roi_samples=64, score_threshold=0.1, nms_iou=0.4, max_detections=7, rank_by_iou=True,
    )  # fmt: skip
    settings = new_detector(config, 3, iou_branch=True).settings
    assert settings.num_classes == 3
    assert settings.iou_branch
    assert (settings.channels, settings.roi.width) == (16, 8)
    assert settings.backbone.frozen_stages == 0
    rpn, test = settings.rpn, settings.test
    assert rpn.anchor_sizes == ((8,), (16,), (32,), (64,), (128,))
    assert (rpn.before_nms_train, rpn.before_nms_test) == (600, 600)
    assert (rpn.after_nms_train, rpn.after_nms_test) == (50, 50)
    assert (rpn.samples, settings.roi.samples) == (32, 64)
    assert (test.score_cut, test.nms, test.detections, test.use_iou) == (0.1, 0.4, 7, True)
    assert (test.min_size, test.max_size) == (320, 1333)


def test_new_detector_never_takes_more_proposals_at_test_than_torchvision() -> None:
    settings = new_detector(config_of(rpn_pre_nms=2000), 1).settings
    assert (settings.rpn.before_nms_train, settings.rpn.before_nms_test) == (2000, 1000)


def test_new_detector_with_caffe_has_caffe_means_and_strides() -> None:
    plain = new_detector(config_of(backbone="resnet50"), 1).settings.backbone
    assert plain.normalisation != CAFFE
    assert not plain.stride_in_1x1
    caffe = new_detector(config_of(backbone="resnet50", caffe=True), 1).settings.backbone
    assert caffe.normalisation == CAFFE
    assert caffe.stride_in_1x1


def test_to_device_makes_the_weights_channels_last() -> None:
    detector = to_device(new_detector(config_of(), 1), torch.device("cpu"))
    weight = detector.fpn.outer[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_load_detector_applies_the_test_settings_of_this_run(tmp_path: Path) -> None:
    save_stage(tmp_path, "base", LabelMap(LABELS.base, ()), config_of(score_threshold=0.05))
    saved = load_detector(run_of(tmp_path, config_of(score_threshold=0.3)), "base")
    assert saved.detector.settings.test.score_cut == 0.3
    assert saved.labels.classes == LABELS.base
    assert saved.about == {"stage": "base"}


def test_load_detector_refuses_other_classes(tmp_path: Path) -> None:
    config = config_of()
    save_stage(tmp_path, "base", LABELS, config)
    save_stage(tmp_path, "transfer", LabelMap(LABELS.base, ()), config)
    with pytest.raises(UserError, match="not the base classes of this run: car, bus, bird"):
        load_detector(run_of(tmp_path, config), "base")
    with pytest.raises(UserError, match="car, bus instead of car, bus, bird"):
        load_detector(run_of(tmp_path, config), "transfer")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"head_width": 4}, r"detector.head_width is 8 in the checkpoint, 4 in the configuration"),
        ({"fpn_channels": 8}, r"detector.fpn_channels is 16"),
        ({"anchors": [1, 2, 3, 4, 5]}, r"detector.anchors is \[32.0, 64.0, 128.0, "),
        ({"backbone": "resnet18"}, r"detector.backbone is resnet18-narrow"),
        ({"norm": "frozen"}, r"detector.norm is group"),
    ],
)
def test_load_detector_refuses_another_architecture(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    save_stage(tmp_path, "transfer", LABELS, config_of())
    with pytest.raises(UserError, match=words) as caught:
        load_detector(run_of(tmp_path, config_of(**changed)), "transfer")
    line = re.search(r"detector: \{.*\}", caught.value.fix)
    assert line is not None
    keys = yaml.safe_load(line[0])["detector"]
    assert keys.keys() == changed.keys()
    load_detector(run_of(tmp_path, config_of(**(changed | keys))), "transfer")


def test_load_detector_keeps_the_normalisation_and_stride_of_the_checkpoint(tmp_path: Path) -> None:
    """Caffe's stride without its means, as converted from torchvision, fits no `caffe`."""
    config = config_of(backbone="resnet50", norm="frozen")
    settings = new_detector(config, 3).settings
    body = replace(settings.backbone, stride_in_1x1=True)
    path = tmp_path / "transfer" / CHECKPOINT_FILE
    checkpoint.save(path, Detector(replace(settings, backbone=body)), LABELS, {})
    for caffe in (False, True):
        changed = config_of(backbone="resnet50", norm="frozen", caffe=caffe)
        detector = load_detector(run_of(tmp_path, changed), "transfer").detector
        assert detector.settings.backbone == body
        assert detector.backbone.layer2[0].conv1.stride == (2, 2)


def test_load_detector_names_a_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"transfer/{CHECKPOINT_FILE}: .* does not exist"):
        load_detector(run_of(tmp_path, config_of()), "transfer")
