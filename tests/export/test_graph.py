"""The graph, before and after it is an ONNX file, beside the detector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.tiny_detector import LABELS, tiny_detector
from mini_fsod.detector.model import Detector
from mini_fsod.detector.nms import nms
from mini_fsod.export.graph import NO_LABEL, DetectorGraph, nms_by_onnx
from mini_fsod.predict.model import Model
from mini_fsod.predict.onnx_model import OnnxModel
from mini_fsod.predict.prediction import Prediction
from mini_fsod.predict.torch_model import TorchModel

SIZES = ((64, 64), (50, 96), (333, 200))  # one as it is, one enlarged, one reduced


def pictures(size: tuple[int, int], count: int) -> np.ndarray:
    random = np.random.RandomState(sum(size))
    rough = random.randint(0, 256, (count, size[0] // 8 + 1, size[1] // 8 + 1, 3)).astype(np.uint8)
    return rough.repeat(8, axis=1).repeat(8, axis=2)[:, : size[0], : size[1]]


def assert_same(first: Prediction, second: Prediction) -> None:
    assert first.names == second.names
    np.testing.assert_allclose(first.xywh, second.xywh, atol=0.5)
    np.testing.assert_allclose(first.scores, second.scores, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 4])
def test_onnx_file_finds_what_the_detector_finds(
    tiny_onnx: bytes, tiny_model: Model, size: tuple[int, int], count: int
) -> None:
    images = pictures(size, count)
    boxes, scores, labels, number = OnnxModel(tiny_onnx, Path("tiny.onnx"), "cpu").run(images)
    assert boxes.shape == (count, 20, 4)
    for n, wanted in enumerate(tiny_model.predict(list(images), score=0)):
        assert len(wanted) == number[n] > 0
        real = slice(0, len(wanted))
        assert labels[n, real].tolist() == wanted.labels.tolist()
        # where the graph reduces the picture itself, single pixels differ from Pillow's by one
        np.testing.assert_allclose(boxes[n, real], wanted.boxes, atol=0.5)
        np.testing.assert_allclose(scores[n, real], wanted.scores, atol=1e-3)
        assert (labels[n, len(wanted) :] == NO_LABEL).all()
        assert not boxes[n, len(wanted) :].any()
        assert not scores[n, len(wanted) :].any()


def exported(detector: Detector) -> tuple[TorchModel, OnnxModel]:
    from mini_fsod.export.write import to_onnx

    content = to_onnx(detector, LABELS)
    model = TorchModel(detector, LABELS, Path("tiny"), "cpu")
    model.bf16 = False
    return model, OnnxModel(content, Path("tiny.onnx"), "cpu")


def test_onnx_file_with_another_head_and_the_iou_branch(tiny_onnx: bytes) -> None:
    torch.manual_seed(3)
    start = tiny_detector().settings
    settings = replace(
        start,
        classifier="cosine",
        iou_branch=True,
        rpn=replace(start.rpn, convs=2, ratios=(0.5, 1.0)),
        roi=replace(start.roi, convs=1, layers=1, size=5),
        test=replace(start.test, use_iou=True, score_cut=0.1, detections=7),
    )
    model, onnx = exported(Detector(settings).eval())
    for size in SIZES[:2]:
        for image in pictures(size, 2):
            found = model.predict(image, score=0)
            assert 0 < len(found) <= 7
            assert_same(found, onnx.predict(image, score=0))


def test_onnx_file_where_nothing_is_found(tiny_onnx: bytes) -> None:
    model = OnnxModel(tiny_onnx, Path("tiny.onnx"), "cpu")
    model.lower_threshold(1.0)
    boxes, scores, labels, number = model.run(pictures((64, 64), 2))
    assert number.tolist() == [0, 0]
    assert boxes.shape == (2, 20, 4)
    assert not boxes.any()
    assert not scores.any()
    assert (labels == NO_LABEL).all()
    found = model.predict(pictures((64, 64), 1)[0], score=0)
    assert len(found) == 0


def test_graph_equals_its_onnx_file_to_the_last_digits(tiny_onnx: bytes) -> None:
    images = pictures((90, 130), 2)
    with torch.no_grad():
        wanted = DetectorGraph(tiny_detector())(torch.from_numpy(images))
    found = OnnxModel(tiny_onnx, Path("tiny.onnx"), "cpu").run(images)
    for ours, theirs in zip(wanted, found, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-3)


@pytest.mark.parametrize("groups", [1, 3])
def test_suppress_equals_nms(groups: int) -> None:
    torch.manual_seed(0)
    corner, side = 50 * torch.rand(2, 40, 2), 20 + 20 * torch.rand(2, 40, 2)
    boxes = torch.cat((corner, corner + side), -1)
    valid: Tensor = torch.rand(2, 40) < 0.8
    group = torch.randint(0, groups, (2, 40))
    wanted = nms(boxes, valid, 0.4, group)
    assert torch.equal(nms_by_onnx(boxes, group, valid, 0.4, groups), wanted)
    assert 0 < int(wanted.sum()) < int(valid.sum())
    assert not nms_by_onnx(boxes, group, valid & False, 0.4, groups).any()
