"""The step of teacher and student with real detectors: gradients, shapes, no waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mining.test_teaching import DRAW, HOW
from torch import Tensor

from detector.test_model import Waits
from mini_fsod.detector import Detector, RoISettings, RPNSettings, Targets, build
from mini_fsod.detector.nms import by_matrix
from mini_fsod.online.teacher import carried, losses_with_teacher
from mini_fsod.train.ema import Average


def small() -> Detector:
    """One that is sure of something here and there."""
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


def inputs(truth: int, mined: int, hidden: int = 2) -> list[Tensor]:
    """Two pictures with so many boxes each, in rows for eight, four and four."""
    rng = torch.Generator().manual_seed(3)

    def some(rows: int, number: int, label: int) -> tuple[Tensor, Tensor, Tensor]:
        corner = torch.randint(0, 30, (2, rows, 2), generator=rng).float()
        side = torch.randint(10, 30, (2, rows, 2), generator=rng).float()
        valid = (torch.arange(rows) < number).expand(2, -1)
        return torch.cat([corner, corner + side], -1), torch.full((2, rows), label), valid

    pictures = torch.randint(0, 256, (2, 2, 3, 64, 64), generator=rng).to(torch.uint8)
    sizes = torch.tensor([[64, 64], [60, 50]])
    region = some(3, 1, 0)
    return [
        *pictures,
        sizes,
        *some(8, truth, 1),
        *some(4, mined, 2),
        torch.rand(2, 4, generator=rng),
        *region,
        *some(4, hidden, 2),
        DRAW,
    ]


KNOWN = replace(HOW, use_iou=True, truth_known=True)
LOW = torch.tensor([0.3, 0.3])


def test_what_mined_boxes_carry_is_what_is_lost_without_them() -> None:
    """Losses are linear in the weight: at 0 the others' part is left, and the IoU branch's."""
    student = small()
    teacher = Average(student, torch.device("cpu")).model

    def at(weight: float) -> tuple[float, dict[str, float]]:
        losses = losses_with_teacher(student, teacher, replace(KNOWN, weight=weight), LOW)
        told = {name: value.item() for name, value in losses(*inputs(3, 3)).items()}
        return sum(v for name, v in told.items() if name.startswith("loss")), told

    (none, _), (once, told), (thrice, more) = at(0.0), at(1.0), at(3.0)
    assert told["online"] > 0
    assert told["offline"] > 0
    assert 0 < told["mined_loss"] == pytest.approx(once - none, rel=1e-4)
    assert more["mined_loss"] == pytest.approx(thrice - none, rel=1e-4)
    assert told["mined_loss"] < once


def test_gauges_change_no_gradient_and_the_teacher_learns_nothing() -> None:
    """The gradients are those of the student's own losses on the same targets."""
    student = small()
    teacher = Average(student, torch.device("cpu")).model
    seen: list[Targets] = []
    own = student.losses

    def losses(*words: Any) -> dict[str, Tensor]:
        seen.append(words[2])
        return own(*words)

    student.losses = losses
    given = inputs(3, 3)
    told = losses_with_teacher(student, teacher, KNOWN, LOW)(*given)
    torch.stack([v for name, v in told.items() if name.startswith("loss")]).sum().backward()
    found = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
    assert all(p.grad is None for p in teacher.parameters())

    student.zero_grad()
    plain = own(given[1], given[2], seen[0]._replace(weights=seen[0].weights.detach()), DRAW)
    torch.stack(list(plain.values())).sum().backward()
    for name, parameter in student.named_parameters():
        assert torch.equal(found[name], parameter.grad), name
    assert all(value.requires_grad is name.startswith("loss") for name, value in told.items())


def test_carried_by_nobody() -> None:
    once = torch.ones((), requires_grad=True)
    assert carried({"loss": (once * torch.zeros(3)).sum() + 2}, once).item() == 0


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("detector.nms", "detector.postprocess", "mining.mingling"):
        monkeypatch.setattr(f"mini_fsod.{room}.nms", by_matrix)


@pytest.mark.usefixtures("as_on_a_device")
def test_a_step_waits_for_nothing_and_has_one_shape() -> None:
    """Whatever the number of boxes: else a recorded step could not be replayed."""
    student = small()
    teacher = Average(student, torch.device("cpu"))
    names: set[tuple[str, ...]] = set()
    shapes: set[tuple[torch.Size, ...]] = set()
    own = student.losses

    def losses(*words: Any) -> dict[str, Tensor]:
        shapes.add(tuple(t.shape for t in words[2]))
        return own(*words)

    student.losses = losses
    for delta, truth, mined, hidden in (
        (0.3, 8, 4, 4),
        (0.3, 0, 0, 0),
        (1.1, 0, 4, 0),
        (0, 2, 1, 1),
    ):
        step = losses_with_teacher(student, teacher.model, KNOWN, torch.tensor([delta, delta]))
        given = inputs(truth, mined, hidden)
        with Waits():
            told = step(*given)
            torch.stack([v for k, v in told.items() if k.startswith("loss")]).sum().backward()
            teacher.update()
        names.add(tuple(told))
        for name, value in told.items():
            assert value.shape == ()
            assert value.dtype == torch.float32, name
            assert value.isfinite(), name
    assert len(names) == len(shapes) == 1


@pytest.mark.usefixtures("as_on_a_device")
def test_the_matrix_form_mingles_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a recorded step computes is what the loop over boxes gives."""
    student = small()
    teacher = Average(student, torch.device("cpu")).model
    step = losses_with_teacher(student, teacher, KNOWN, LOW)
    found = step(*inputs(3, 3))
    monkeypatch.undo()
    torch.testing.assert_close(step(*inputs(3, 3)), found)


def test_bfloat16_keeps_gauges_in_float32() -> None:
    student = small()
    step = losses_with_teacher(student, Average(student, torch.device("cpu")).model, KNOWN, LOW)
    with torch.autocast("cpu", torch.bfloat16):
        told = step(*inputs(3, 3))
    assert {value.dtype for value in told.values()} == {torch.float32}
