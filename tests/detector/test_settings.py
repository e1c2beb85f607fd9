from __future__ import annotations

import json

import pytest

from mini_fsod.detector.settings import (
    CAFFE,
    BackboneSettings,
    DetectorSettings,
    RoISettings,
    RPNSettings,
)
from mini_fsod.errors import UserError

SETTINGS = DetectorSettings(
    20,
    BackboneSettings("resnet101", stride_in_1x1=True, frozen_stages=2, normalisation=CAFFE),
    classifier="cosine",
    iou_branch=True,
    rpn=RPNSettings(anchor_sizes=((16, 24),) * 5, ratios=(1.0,)),
    roi=RoISettings(beta=1.0, box_weights=(1.0, 2.0, 3.0, 4.0)),
)


def test_settings_survive_json() -> None:
    text = json.dumps(SETTINGS.to_json())
    assert DetectorSettings.from_json(json.loads(text)) == SETTINGS


def test_from_json_ignores_keys_of_older_checkpoints() -> None:
    assert DetectorSettings.from_json(SETTINGS.to_json() | {"nms_rounds": 12}) == SETTINGS


def test_default_settings_are_those_of_torchvision() -> None:
    rpn, roi, test = SETTINGS.rpn, RoISettings(), DetectorSettings(1).test
    assert (rpn.before_nms_train, rpn.before_nms_test, rpn.after_nms_train) == (2000, 1000, 1000)
    assert (rpn.nms, rpn.samples, rpn.positive_iou, rpn.negative_iou) == (0.7, 256, 0.7, 0.3)
    assert (roi.samples, roi.positive_share, roi.positive_iou) == (512, 0.25, 0.5)
    assert (test.score_cut, test.nms, test.detections) == (0.05, 0.5, 100)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"num_classes": 3, "classifer": "linear"}, 'Did you mean "classifier"'),
        ({"num_classes": 3, "rpn": {"nsm": 0.5}}, 'RPNSettings has no key "nsm"'),
        ({}, "num_classes"),
        ({"num_classes": 3, "roi": 5}, "RoISettings must be an object"),
    ],
)
def test_from_json_rejects_wrong_keys(data: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        DetectorSettings.from_json(data)
