"""The whole detector: edge cases, precision, and that a step never waits for the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mini_fsod.detector.batch import PaddedBoxes, Samples, Targets, pad_targets
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.rpn import propose
from mini_fsod.detector.settings import DetectorSettings, RoISettings, RPNSettings, TestSettings
from mini_fsod.errors import UserError

RPN = RPNSettings(
    before_nms_train=100, before_nms_test=60, after_nms_train=50, after_nms_test=40, samples=32
)
ROI = RoISettings(samples=16, width=32)
SIZES = torch.tensor([[96, 120], [64, 128]])
TRUTH = pad_targets(
    [torch.tensor([[5.0, 5.0, 60.0, 60.0], [20.0, 20.0, 100.0, 90.0]]), torch.zeros(0, 4)],
    [torch.tensor([1, 2]), torch.zeros(0, dtype=torch.int64)],
    width=4,
)
NO_TRUTH = TRUTH._replace(valid=torch.zeros_like(TRUTH.valid))


def small_detector(**options: Any) -> Detector:
    torch.manual_seed(0)
    test = TestSettings(min_size=96, max_size=128)
    detector = build(5, "resnet18", **{"rpn": RPN, "roi": ROI, "test": test} | options)
    with torch.no_grad():  # so that scores differ
        detector.rpn_head.predict.weight[:3].normal_(std=0.3)
        detector.predictor.classifier.weight.normal_(std=0.3)
    return detector


def pictures(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (2, 3, 96, 128), dtype=torch.uint8, generator=generator)


def backward(detector: Detector, losses: dict[str, Tensor]) -> None:
    detector.zero_grad()
    torch.stack(list(losses.values())).sum().backward()


def assert_finite(detector: Detector, losses: dict[str, Tensor]) -> None:
    assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())
    backward(detector, losses)
    gradients = [p.grad for p in detector.parameters() if p.grad is not None]
    assert gradients
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("targets", [TRUTH, NO_TRUTH], ids=["one image without", "none"])
@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_losses_of_images_without_boxes_are_finite(targets: Targets, classifier: Any) -> None:
    detector = small_detector(classifier=classifier, iou_branch=True)
    losses = detector.losses(pictures(), SIZES, targets, draw=3)
    assert list(losses) == [
        "loss_objectness",
        "loss_rpn_box_reg",
        "loss_classifier",
        "loss_box_reg",
        "loss_iou",
    ]
    assert_finite(detector, losses)
    assert losses["loss_classifier"] > 0
    if targets is NO_TRUTH:
        zero = [losses[name].item() for name in ("loss_rpn_box_reg", "loss_box_reg", "loss_iou")]
        assert zero == [0.0] * 3


def test_losses_without_any_proposal() -> None:
    detector = small_detector()
    detector.settings = replace(detector.settings, rpn=replace(RPN, score_cut=1.1))
    losses = detector.losses(pictures(), SIZES, TRUTH)
    assert_finite(detector, losses)
    assert losses["loss_box_reg"] > 0  # the ground truth is among the proposals all the same
    losses = detector.losses(pictures(), SIZES, NO_TRUTH)
    assert_finite(detector, losses)
    assert losses["loss_classifier"].item() == 0.0
    found = detector.detect(pictures(), SIZES)
    assert not found.valid.any()
    assert found.exact.all()
    assert [len(p["boxes"]) for p in detector.predict(list(pictures()))] == [0, 0]


def test_roi_outputs_of_no_rois_are_empty() -> None:
    detector = small_detector(iou_branch=True)
    pooled = detector.pool(detector.features(pictures(), SIZES), torch.zeros(2, 0, 4))
    logits, deltas, iou = detector.roi_outputs(pooled, 2)
    assert (logits.shape, deltas.shape) == ((2, 0, 6), (2, 0, 5, 4))
    assert iou is not None
    assert iou.shape == (2, 0)


def test_detect_without_any_detection() -> None:
    detector = small_detector(test=TestSettings(score_cut=1.0, min_size=64, max_size=128))
    assert not detector.detect(pictures(), SIZES).valid.any()
    assert [p["labels"].shape for p in detector.predict(list(pictures()))] == [(0,), (0,)]
    assert detector.predict([]) == []


def test_propose_clips_to_the_image_whatever_the_padding() -> None:
    detector = small_detector()
    candidates = detector.infer(pictures(), SIZES)
    boxes, valid = candidates.proposals.boxes, candidates.proposals.valid
    assert valid.sum(1).min() > 10
    for i, (height, width) in enumerate(SIZES.tolist()):
        limit = torch.tensor([width, height, width, height])
        assert (boxes[i] <= limit).all()
        assert (candidates.boxes[i] <= limit).all()
    sides = boxes[..., 2:] - boxes[..., :2]
    assert (sides[valid] >= 1e-3).all()

    other = pictures()
    other[0, :, :, 120:] = 255
    other[1, :, 64:] = 255
    assert torch.equal(detector.infer(other, SIZES).scores, candidates.scores)


def test_losses_add_the_ground_truth_to_the_rois() -> None:
    """Where no proposal is near a box, the box itself is the positive sample."""
    detector = small_detector()
    detector.settings = replace(detector.settings, rpn=replace(RPN, after_nms_train=1))
    alone = Samples(torch.tensor([[1, 2], [0, 0]]), torch.tensor([[True, True], [False, False]]))
    losses = detector.losses(pictures(), SIZES, TRUTH, roi_samples=alone)
    pooled = detector.pool(detector.features(pictures(), SIZES), TRUTH.boxes[:, :2])
    logits = detector.roi_outputs(pooled, 2).logits[0]
    wanted = torch.nn.functional.cross_entropy(logits, TRUTH.labels[0, :2] + 1)
    torch.testing.assert_close(losses["loss_classifier"], wanted)


def test_losses_depend_on_the_draw_alone() -> None:
    detector = small_detector()
    first, rebuilt, other = (
        detector.losses(pictures(), SIZES, TRUTH, draw=d) for d in (7, torch.tensor(7), 8)
    )
    assert all(torch.equal(first[name], rebuilt[name]) for name in first)
    assert not torch.equal(first["loss_objectness"], other["loss_objectness"])


def test_extra_boxes_become_proposals() -> None:
    detector = small_detector()
    boxes = torch.tensor([[[30.0, 30.0, 70.0, 71.0], [0.0] * 4], [[10.0, 20.0, 300.0, 300.0]] * 2])
    valid = torch.tensor([[True, False], [True, True]])
    extra = PaddedBoxes(boxes, valid)
    plain, more = (detector.infer(pictures(), SIZES, e) for e in (None, extra))
    assert more.scores.shape[1] == plain.scores.shape[1] + 2
    assert torch.equal(more.proposals.valid[:, -2:], valid)
    assert more.proposals.boxes[1, -1].tolist() == [10.0, 20.0, 128.0, 64.0]  # clipped to the image
    torch.testing.assert_close(more.scores[:, :-2], plain.scores)
    pooled = detector.pool(detector.features(pictures(), SIZES), boxes[:1, :1].expand(2, -1, -1))
    alone = detector.roi_outputs(pooled, 2).logits.softmax(-1)[0, 0, 1:]
    torch.testing.assert_close(more.scores[0, -2], alone)


def test_heads_on_a_cpu_see_valid_boxes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs and gradients of valid boxes are those with padding in the batch."""
    detector = small_detector(iou_branch=True)
    levels = [level.detach() for level in detector.features(pictures(), SIZES)]
    boxes = torch.tensor([[[5.0, 5, 60, 60], [0, 0, 0, 0], [20, 10, 90, 80]], [[0.0] * 4] * 3])
    valid = torch.tensor([[True, False, True], [False, False, True]])
    seen, results = [], []
    whole = detector.roi_outputs
    monkeypatch.setattr(
        detector, "roi_outputs", lambda pooled, n: seen.append(len(pooled)) or whole(pooled, n)
    )
    for on_cpu in (True, False):
        monkeypatch.setattr("mini_fsod.detector.model.eager_on_cpu", lambda _, on=on_cpu: on)
        detector.zero_grad()
        outputs = detector.outputs_of_valid(levels, boxes, valid)
        torch.stack([part[valid].square().sum() for part in outputs]).sum().backward()
        results.append(
            ([part.detach() for part in outputs], detector.box_head.layers[0].weight.grad)
        )
    assert seen == [3, 6]
    (found, gradient), (wanted, wanted_gradient) = results
    for part, expected in zip(found, wanted, strict=True):
        assert part.shape == expected.shape
        torch.testing.assert_close(part[valid], expected[valid])
        assert not part[~valid].any()
    error = (gradient - wanted_gradient).abs().max()
    assert error < 1e-5 * wanted_gradient.abs().max()
    monkeypatch.setattr("mini_fsod.detector.model.eager_on_cpu", lambda _: True)
    nothing = detector.outputs_of_valid(levels, boxes, torch.zeros_like(valid))
    assert not any(part.any() for part in nothing)


def ranking_by(settings: DetectorSettings, use_iou: bool) -> DetectorSettings:
    return replace(settings, test=replace(settings.test, use_iou=use_iou))


def test_choose_keeps_the_proposal_and_ranks_by_the_iou_branch() -> None:
    detector = small_detector(iou_branch=True)
    assert detector.iou_branch is not None
    torch.nn.init.normal_(detector.iou_branch.predict.weight, std=1.0)
    with torch.no_grad():
        candidates = detector.infer(pictures(), SIZES)
    for use_iou in (False, True):
        detector.settings = ranking_by(detector.settings, use_iou)
        found = detector.choose(candidates)
        assert found.valid.sum(1).min() > 5
        for i in range(2):
            rows, labels = found.proposal[i][found.valid[i]], found.labels[i][found.valid[i]]
            score = candidates.scores[i, rows, labels]
            if use_iou:
                score = (score * candidates.iou[i, rows]).sqrt()
            torch.testing.assert_close(found.scores[i][found.valid[i]], score)
            assert torch.equal(found.boxes[i][found.valid[i]], candidates.boxes[i, rows, labels])


def test_losses_skip_proposals_on_ignored_regions() -> None:
    """One proposal per image and no ground truth: background, unless it is on an ignored region."""
    detector = small_detector()
    detector.settings = replace(detector.settings, rpn=replace(RPN, after_nms_train=1))
    anchors, counts = detector.anchors(pictures())
    outputs = detector.rpn_head(detector.features(pictures(), SIZES))
    only = propose(*outputs, anchors, counts, SIZES, detector.settings.rpn, training=True)
    assert only.valid.tolist() == [[True], [True]]
    boxes = only.boxes + torch.tensor([0.5, 0.5, 0.0, 0.0])
    nothing = torch.zeros(2, 1, dtype=torch.bool)
    targets = Targets(boxes, torch.zeros(2, 1, dtype=torch.int64), nothing)
    assert detector.losses(pictures(), SIZES, targets)["loss_classifier"] > 0
    losses = detector.losses(pictures(), SIZES, targets._replace(ignore=~nothing))
    assert losses["loss_classifier"].item() == 0.0
    assert_finite(detector, losses)


def test_autocast_keeps_boxes_and_losses_in_float32() -> None:
    detector = small_detector(iou_branch=True)
    wanted = detector.losses(pictures(), SIZES, TRUTH, draw=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = detector.losses(pictures(), SIZES, TRUTH, draw=1)
        levels = detector.features(pictures(), SIZES)
        candidates = detector.infer(pictures(), SIZES)
        found = detector.choose(candidates)
        outputs = (*detector.rpn_head(levels), *detector.predictor(torch.rand(3, 32)))
    assert levels[0].dtype == torch.bfloat16  # autocast was on
    assert_finite(detector, losses)
    torch.testing.assert_close(
        losses["loss_objectness"], wanted["loss_objectness"], rtol=0.05, atol=0
    )
    boxes = (candidates.proposals.boxes, candidates.boxes, candidates.scores, found.boxes)
    assert all(t.dtype == torch.float32 for t in (*outputs, *boxes))
    # bfloat16 (8 bits) can hold few coordinates beyond 16 pixels.
    far = candidates.boxes[candidates.boxes.frac() != 0]
    far = far[far > 16]
    assert len(far) > 100
    assert (far != far.bfloat16().float()).float().mean() > 0.9


def test_channels_last_gives_the_same_losses() -> None:
    detector = small_detector()
    wanted = detector.losses(pictures(), SIZES, TRUTH)
    detector = detector.to(memory_format=torch.channels_last)
    levels = detector.features(pictures(), SIZES)
    assert levels[0].is_contiguous(memory_format=torch.channels_last)
    found = detector.losses(pictures(), SIZES, TRUTH)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-3, atol=1e-5)


class Waits(TorchDispatchMode):
    """Fails on operations whose result's value or shape the host must wait for."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name()
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")
        assert name.removeprefix("aten::") not in waits, name
        if name.startswith("aten::index"):
            masks = [a for a in args[1] if isinstance(a, Tensor)] if len(args) > 1 else []
            assert all(m.dtype != torch.bool for m in masks), "indexing by a mask"
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("as_on_a_device")
def test_losses_and_detect_never_wait_for_the_device() -> None:
    detector = small_detector(iou_branch=True)
    detector.settings = ranking_by(detector.settings, use_iou=True)
    draw = torch.tensor(3)
    with Waits():
        losses = detector.losses(pictures(), SIZES, TRUTH, draw)
        torch.stack(list(losses.values())).sum().backward()
        detector.detect(pictures(), SIZES)
    with pytest.raises(AssertionError, match="aten::"), Waits():
        detector.detect(pictures(), SIZES, exact=True)


def test_detector_is_rebuilt_from_its_settings() -> None:
    detector = small_detector(classifier="cosine", iou_branch=True, norm="group")
    rebuilt = Detector(DetectorSettings.from_json(detector.settings.to_json()))
    rebuilt.load_state_dict(detector.state_dict())
    found, wanted = rebuilt.detect(pictures(), SIZES), detector.detect(pictures(), SIZES)
    assert torch.equal(found.boxes, wanted.boxes)
    assert found.valid.any()


def test_detector_rejects_bad_numbers() -> None:
    with pytest.raises(UserError, match="at least one class"):
        build(0, "resnet18")
    with pytest.raises(UserError, match="multiples of 32"):
        small_detector().detect(torch.zeros(1, 3, 100, 128), torch.tensor([[100, 128]]))
