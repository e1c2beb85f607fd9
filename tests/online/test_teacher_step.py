"""A step of teacher and student with real detectors: gradients, fixed shapes, no waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from detector.test_model import Waits
from helpers.matrix_nms import compute_as_on_a_device
from mini_fsod.config.schema import Mine, Online
from mini_fsod.detector.batch import Targets
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import RoISettings, RPNSettings
from mini_fsod.labels import LabelMap
from mini_fsod.loader.resident import ScoredBoxes
from mini_fsod.online.teacher import TeacherInputs, loss_on_mined, losses_with_teacher
from mini_fsod.train.ema import Average
from mini_fsod.train.step import Losses

LABELS = LabelMap(("dog", "cat"), ("cow", "bus"))
DRAW = torch.tensor(7)


def new_detector() -> Detector:
    """With random weights so large that some scores are high."""
    torch.manual_seed(0)
    detector = build(
        4,
        "resnet18-narrow",
        norm="group",
        channels=16,
        iou_branch=True,
        rpn=RPNSettings(
            anchor_sizes=((8,), (16,), (32,), (64,), (128,)),
            before_nms_train=60,
            before_nms_test=60,
            after_nms_train=30,
            after_nms_test=30,
            samples=32,
        ),
        roi=RoISettings(width=32, samples=32),
    )
    with torch.no_grad():
        detector.predictor.classifier.weight.normal_(std=2.0)
        detector.predictor.boxes.weight.normal_(std=0.05)
    return detector


def inputs_of(truth: int, mined: int, hidden: int = 2) -> TeacherInputs:
    """Two pictures with so many boxes each, padded to eight, four and four rows."""
    rng = torch.Generator().manual_seed(3)

    def boxes(rows: int, number: int, label: int) -> Targets:
        corner = torch.randint(0, 30, (2, rows, 2), generator=rng).float()
        side = torch.randint(10, 30, (2, rows, 2), generator=rng).float()
        valid = (torch.arange(rows) < number).expand(2, -1)
        corners = torch.cat([corner, corner + side], -1)
        return Targets(corners, torch.full((2, rows), label), valid)

    weak, strong = torch.randint(0, 256, (2, 2, 3, 64, 64), generator=rng).to(torch.uint8)
    annotated, pool = boxes(8, truth, 1), boxes(4, mined, 2)
    scores = torch.rand(2, 4, generator=rng)
    return TeacherInputs(
        weak,
        strong,
        torch.tensor([[64, 64], [60, 50]]),
        annotated,
        ScoredBoxes(pool.boxes, pool.labels, pool.valid, scores),
        boxes(3, 1, 0),
        boxes(4, hidden, 2),
        boxes(2, 0, 2),
        DRAW,
    )


def losses_of(student: Detector, teacher: Detector, **keys: Any) -> Losses:
    online = Online(**{"delta": 0.3, **keys})
    known = {"truth_known": True, "sure": 0.3}
    return losses_with_teacher(student, teacher, LABELS, online, Mine(), 0.5, **known)


def sum_of(values: dict[str, Tensor]) -> Tensor:
    return torch.stack([v for name, v in values.items() if name.startswith("loss")]).sum()


def test_mined_loss_is_the_difference_to_a_weight_of_zero() -> None:
    """Losses are linear in the weight; at 0 the annotated boxes' part is left."""
    student = new_detector()
    teacher = Average(student, torch.device("cpu")).model

    def at(weight: float) -> tuple[float, dict[str, float]]:
        values = losses_of(student, teacher, mined_weight=weight)(inputs_of(3, 3))
        return sum_of(values).item(), {name: value.item() for name, value in values.items()}

    (none, _), (once, values), (thrice, more) = at(0.0), at(1.0), at(3.0)
    assert values["online"] > 0
    assert values["offline"] > 0
    assert 0 < values["mined_loss"] == pytest.approx(once - none, rel=1e-4)
    assert more["mined_loss"] == pytest.approx(thrice - none, rel=1e-4)
    assert values["mined_loss"] < once


def test_gauges_change_no_gradient_and_the_teacher_gets_none() -> None:
    """The gradients are those of the student's losses on the same targets."""
    student = new_detector()
    teacher = Average(student, torch.device("cpu")).model
    given: list[Targets] = []
    detector_losses = student.losses

    def recording(images: Any, sizes: Any, targets: Targets, draw: Any) -> dict[str, Tensor]:
        given.append(targets)
        return detector_losses(images, sizes, targets, draw)

    student.losses = recording
    inputs = inputs_of(3, 3)
    values = losses_of(student, teacher)(inputs)
    sum_of(values).backward()
    found = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
    assert all(p.grad is None for p in teacher.parameters())

    student.zero_grad()
    targets = given[0]._replace(weights=given[0].weights.detach())
    sum_of(detector_losses(inputs.strong, inputs.sizes, targets, DRAW)).backward()
    for name, parameter in student.named_parameters():
        assert torch.equal(found[name], parameter.grad), name
    assert all(value.requires_grad is name.startswith("loss") for name, value in values.items())


def test_iou_loss_trains_no_box_predictor() -> None:
    """Its target, the IoU of the predicted box, is a constant."""
    student = new_detector()
    teacher = Average(student, torch.device("cpu")).model
    loss = losses_of(student, teacher)(inputs_of(3, 3))["loss_iou"]
    branch = student.iou_branch.predict.weight
    others = [*student.predictor.parameters(), *student.rpn_head.parameters()]
    gradient, *of_others = torch.autograd.grad(loss, [branch, *others], allow_unused=True)
    assert gradient.abs().sum() > 0
    assert of_others == [None] * len(others)


def test_loss_on_mined_is_zero_without_mined_boxes() -> None:
    one = torch.ones((), requires_grad=True)
    assert loss_on_mined({"loss": (one * torch.zeros(3)).sum() + 2}, one).item() == 0


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_as_on_a_device(monkeypatch)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize(("images", "open_"), [("all", 0), ("no_background", 0), ("all", 1)])
def test_a_step_waits_for_nothing_and_has_fixed_shapes(images: str, open_: bool) -> None:
    """Whatever the number of boxes: otherwise a CUDA graph of the step could not be replayed."""
    student = new_detector()
    teacher = Average(student, torch.device("cpu"))
    names: set[tuple[str, ...]] = set()
    shapes: set[tuple[torch.Size | None, ...]] = set()
    detector_losses = student.losses

    def recording(images: Any, sizes: Any, targets: Targets, draw: Any) -> dict[str, Tensor]:
        shapes.add(tuple(None if t is None else t.shape for t in targets))
        return detector_losses(images, sizes, targets, draw)

    student.losses = recording
    for delta, truth, mined, hidden in (
        (0.3, 8, 4, 4),
        (0.3, 0, 0, 0),
        (0.9999, 0, 4, 0),
        (0, 2, 1, 1),
    ):
        losses = losses_of(student, teacher.model, delta=delta, images=images)
        inputs = inputs_of(truth, mined, hidden)
        if open_:  # base labels are missing
            inputs = inputs._replace(missing=torch.tensor([[True, True], [False, mined > 1]]))
        with Waits():
            values = losses(inputs)
            sum_of(values).backward()
            teacher.update()
        names.add(tuple(values))
        for name, value in values.items():
            assert value.shape == ()
            assert value.dtype == torch.float32, name
            assert value.isfinite(), name
    assert len(names) == len(shapes) == 1


@pytest.mark.usefixtures("as_on_a_device")
def test_matrix_nms_gives_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step computes what the loop over boxes gives."""
    student = new_detector()
    losses = losses_of(student, Average(student, torch.device("cpu")).model)
    found = losses(inputs_of(3, 3))
    monkeypatch.undo()
    torch.testing.assert_close(losses(inputs_of(3, 3)), found)


def test_bfloat16_keeps_losses_and_gauges_in_float32() -> None:
    student = new_detector()
    losses = losses_of(student, Average(student, torch.device("cpu")).model)
    with torch.autocast("cpu", torch.bfloat16):
        values = losses(inputs_of(3, 3))
    assert {value.dtype for value in values.values()} == {torch.float32}
