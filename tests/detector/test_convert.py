"""The same detections, losses and gradients as torchvision's Faster R-CNN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models.detection import FasterRCNN

from mini_fsod.detector.batch import Samples, Targets, pad_targets
from mini_fsod.detector.convert import from_torchvision
from mini_fsod.detector.model import Detector
from mini_fsod.detector.preprocess import batch_images
from mini_fsod.detector.settings import DetectorSettings
from mini_fsod.errors import UserError

Make = Callable[..., FasterRCNN]
SHAPES = [(100, 140), (180, 90), (64, 64), (96, 160)]


def pictures(shapes: list[tuple[int, int]] = SHAPES) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.rand(3, *shape) for shape in shapes]


def assert_same(found: list[dict[str, Tensor]], wanted: list[dict[str, Tensor]]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        assert torch.equal(ours["labels"], theirs["labels"])
        assert ours["labels"].dtype == theirs["labels"].dtype
        torch.testing.assert_close(ours["boxes"], theirs["boxes"], atol=0.05, rtol=0)
        torch.testing.assert_close(ours["scores"], theirs["scores"], atol=1e-3, rtol=0)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, None], ids=["batch norm", "frozen norm"])
def test_from_torchvision_gives_the_same_detections(torchvision_model: Make, norm: Any) -> None:
    model = torchvision_model(**({} if norm is None else {"norm_layer": norm}))
    images = pictures()
    with torch.no_grad():
        wanted = model(images)
    assert all(len(w["boxes"]) > 20 for w in wanted)
    assert_same(from_torchvision(model).predict(images), wanted)


@pytest.mark.slow
def test_from_torchvision_copies_thresholds_sizes_and_normalisation(
    torchvision_model: Make,
) -> None:
    model = torchvision_model(
        seed=3,
        min_size=(64, 128),
        max_size=150,
        size_divisible=64,
        image_mean=[0.1, 0.2, 0.3],
        image_std=[0.5, 1.0, 2.0],
        rpn_nms_thresh=0.5,
        rpn_score_thresh=0.4,
        box_score_thresh=0.2,
        box_nms_thresh=0.3,
        box_detections_per_img=7,
        bbox_reg_weights=(5.0, 6.0, 7.0, 8.0),
        rpn_anchor_generator=detection.anchor_utils.AnchorGenerator(
            tuple((s, 1.5 * s) for s in (16, 32, 64, 128, 256)), ((0.5, 2.0),) * 5
        ),
    )
    images = pictures()
    with torch.no_grad():
        wanted = model(images)
    assert sum(len(w["boxes"]) for w in wanted) > 10
    detector = from_torchvision(model)
    assert_same(detector.predict(images), wanted)

    rebuilt = Detector(DetectorSettings.from_json(detector.settings.to_json()))
    rebuilt.load_state_dict(detector.state_dict())
    assert_same(rebuilt.predict(images), wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_a_device")
def test_detect_flags_inexact_results_and_predict_repeats_them(torchvision_model: Make) -> None:
    model = torchvision_model()
    detector = from_torchvision(model)
    test = replace(detector.settings.test, candidates=60)
    detector.settings = replace(detector.settings, test=test)
    images = pictures()
    batch, sizes = batch_images(images, 96, 160, 32)
    assert not detector.detect(batch, sizes).exact.any()
    assert detector.detect(batch, sizes, exact=True).exact.all()
    with torch.no_grad():
        assert_same(detector.predict(images), model(images))


@pytest.mark.slow
def test_from_torchvision_converts_version_2(version_2: FasterRCNN) -> None:
    images = pictures([(64, 80), (70, 60)])
    with torch.no_grad():
        wanted = version_2(images)
    assert all(len(w["boxes"]) > 5 and w["scores"].max() < 0.999 for w in wanted)
    assert_same(from_torchvision(version_2).predict(images), wanted)


def test_from_torchvision_rejects_other_models(torchvision_model: Make) -> None:
    mobile = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3
    )
    masks = torchvision_model()
    masks.roi_heads.has_mask = lambda: True
    adaptive = torchvision_model()
    adaptive.roi_heads.box_roi_pool.sampling_ratio = 0
    groups = torchvision_model(norm_layer=lambda channels: nn.GroupNorm(32, channels))
    for model, words in [
        (nn.Conv2d(1, 1, 1), "a torchvision FasterRCNN"),
        (mobile, "ResNet-18"),
        (masks, "without masks"),
        (adaptive, "fixed sampling ratio"),
        (groups, "BatchNorm"),
    ]:
        with pytest.raises(UserError, match=words):
            from_torchvision(model)  # type: ignore[arg-type]


class Recorder:
    """Replaces torchvision's sampler and records what it drew."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __call__(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        self.positive, self.negative = self.sampler(labels)
        return self.positive, self.negative

    def samples(self, proposals: list[int] | None, rows: int) -> Samples:
        """As rows of ours: behind torchvision's n proposals of an image comes the ground truth,
        behind ours there is padding up to `rows` first.
        """
        index = []
        for i, (p, n) in enumerate(zip(self.positive, self.negative, strict=True)):
            drawn = torch.where((p | n).bool())[0]
            if proposals is not None:
                drawn = torch.where(drawn < proposals[i], drawn, drawn - proposals[i] + rows)
            index.append(drawn)
        width = max(len(i) for i in index) + 3  # padding must not count
        out = torch.zeros(len(index), width, dtype=torch.int64)
        valid = torch.zeros(len(index), width, dtype=torch.bool)
        for i, drawn in enumerate(index):
            out[i, : len(drawn)], valid[i, : len(drawn)] = drawn, True
        return Samples(out, valid)


GROUND_TRUTH = [
    ([[10.0, 12.0, 60.0, 70.0], [30.0, 5.0, 130.0, 95.0], [80.5, 40.25, 93.0, 61.0]], [1, 3, 5]),
    ([], []),
    ([[4.0, 4.0, 36.0, 36.0]], [2]),
]


def training_case(
    torchvision_model: Make, truth: list[tuple[list[list[float]], list[int]]]
) -> tuple[FasterRCNN, Detector, dict[str, Tensor], dict[str, Tensor]]:
    """Both models' losses for the same pictures, boxes and samples."""
    model = torchvision_model(seed=2).train()
    detector = from_torchvision(model)
    images = pictures([(96, 144), (150, 100), (96, 96)])
    boxes = [torch.tensor(b).reshape(-1, 4) for b, _ in truth]
    labels = [torch.tensor(n, dtype=torch.int64) for _, n in truth]
    model.rpn.fg_bg_sampler = Recorder(model.rpn.fg_bg_sampler)
    model.roi_heads.fg_bg_sampler = Recorder(model.roi_heads.fg_bg_sampler)
    number: list[int] = []
    model.rpn.register_forward_hook(lambda m, i, out: number.extend(len(b) for b in out[0]))
    theirs = model(images, [{"boxes": b, "labels": n} for b, n in zip(boxes, labels, strict=True)])

    batch, sizes = batch_images(images, 96, 160, 32)
    scale = [s[1] / i.shape[2] for s, i in zip(sizes, images, strict=True)]
    scaled = [b * s for b, s in zip(boxes, scale, strict=True)]
    targets = pad_targets(scaled, [n - 1 for n in labels], width=5)
    ours = detector.losses(
        batch,
        sizes,
        targets,
        rpn_samples=model.rpn.fg_bg_sampler.samples(None, 0),
        roi_samples=model.roi_heads.fg_bg_sampler.samples(number, 150),
    )
    return model, detector, ours, theirs


@pytest.mark.parametrize(
    "truth", [GROUND_TRUTH, [([], [])] * 3], ids=["one image without boxes", "no boxes at all"]
)
def test_losses_and_gradients_equal_torchvision(
    torchvision_model: Make, truth: list[tuple[list[list[float]], list[int]]]
) -> None:
    model, detector, ours, theirs = training_case(torchvision_model, truth)
    assert ours.keys() == theirs.keys()
    for name, loss in theirs.items():
        torch.testing.assert_close(ours[name], loss, atol=1e-5, rtol=1e-4)

    sum(theirs.values()).backward()  # type: ignore[union-attr]
    sum(ours.values()).backward()  # type: ignore[union-attr]
    predictor, body = model.roi_heads.box_predictor, model.backbone.body
    pairs = {
        "classifier": (detector.predictor.classifier.weight, predictor.cls_score.weight.grad),
        "boxes": (detector.predictor.boxes.weight, predictor.bbox_pred.weight.grad[4:]),
        "fc7": (detector.box_head.layers[1].weight, model.roi_heads.box_head.fc7.weight.grad),
        "rpn": (detector.rpn_head.convs[0].weight, model.rpn.head.conv[0][0].weight.grad),
        "fpn": (detector.fpn.inner[0].weight, model.backbone.fpn.inner_blocks[0][0].weight.grad),
        "res3": (detector.backbone.layer2[0].conv1.weight, body.layer2[0].conv1.weight.grad),
        "res5": (detector.backbone.layer4[1].conv2.weight, body.layer4[1].conv2.weight.grad),
    }
    for name, (parameter, wanted) in pairs.items():
        error = (parameter.grad - wanted).norm() / wanted.norm().clamp(min=1e-9)
        assert error < 1e-3, f"{name}: {error}"
    assert detector.backbone.layer1[0].conv1.weight.grad is None  # frozen in torchvision's, too
    assert not any(p.requires_grad for p in detector.backbone.conv1.parameters())


def test_losses_ignore_padding(torchvision_model: Make) -> None:
    """More padded boxes, with garbage in them and in the padded area, do not change the losses."""
    detector = from_torchvision(torchvision_model(seed=2))
    images = pictures([(96, 144), (150, 100)])
    batch, sizes = batch_images(images, 96, 160, 32)
    truth = [torch.tensor(GROUND_TRUTH[0][0]), torch.zeros(0, 4)]
    labels = [torch.tensor([0, 2, 4]), torch.zeros(0, dtype=torch.int64)]
    few = pad_targets(truth, labels)
    many = pad_targets(truth, labels, width=9)
    garbage = Targets(
        torch.where(many.valid[..., None], many.boxes, torch.tensor([0.0, 0.0, 90.0, 90.0])),
        torch.where(many.valid, many.labels, 3),
        many.valid,
    )
    dirty = batch.clone()
    for i, (h, w) in enumerate(sizes):
        dirty[i, :, h:] = 0.7
        dirty[i, :, :, w:] = 0.7
    wanted = detector.losses(batch, sizes, few, draw=1, roi_samples=_all_rois(few, 150, 0))
    found = detector.losses(dirty, sizes, garbage, draw=1, roi_samples=_all_rois(few, 150, 0))
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


def _all_rois(targets: Targets, proposals: int, start: int) -> Samples:
    """The first proposals and the ground truth, whatever the padding after them."""
    rows = torch.cat((torch.arange(start, 40), proposals + torch.arange(targets.valid.shape[1])))
    valid = torch.cat((torch.ones(len(targets.valid), 40 - start).bool(), targets.valid), 1)
    return Samples(rows.expand(len(targets.valid), -1), valid)
