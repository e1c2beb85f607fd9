from __future__ import annotations

import pytest
import torch

from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import RoISettings
from mini_fsod.labels import LabelMap
from mini_fsod.tfa.widen import transfer, widened

LABELS = LabelMap(("car", "dog"), ("bird", "bus", "cow"))


def base_detector(classifier: str = "linear", classes: int = 2) -> Detector:
    """Two classes; every parameter of the predictor is told from every other."""
    torch.manual_seed(1)
    detector = build(
        classes,
        "resnet18-narrow",
        norm="group",
        channels=16,
        classifier=classifier,
        roi=RoISettings(width=32),
    )
    with torch.no_grad():
        for parameter in detector.predictor.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return detector


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_rows_are_copied_and_new_ones_drawn(classifier: str) -> None:
    base = base_detector(classifier)
    new = transfer(base, LABELS, seed=0)
    assert new.settings.num_classes == 5
    rows, known = new.predictor.classifier.weight, base.predictor.classifier.weight
    assert rows.shape == (6, 32)
    assert torch.equal(rows[:3], known)  # the background, car, dog
    boxes = new.predictor.boxes
    assert torch.equal(boxes.weight[:8], base.predictor.boxes.weight)
    assert torch.equal(boxes.bias[:8], base.predictor.boxes.bias)
    assert torch.equal(boxes.bias[8:], torch.zeros(12))
    for drawn in (rows[3:], boxes.weight[8:]):
        assert 0.007 < drawn.std() < 0.013
        assert drawn.mean().abs() < 0.004
    # cosine, scale 20, no bias, whatever the base detector has
    assert new.settings.classifier == "cosine"
    assert not hasattr(new.predictor.classifier, "bias")
    logits, _ = new.predictor(20 * rows.detach())
    assert logits.diagonal().allclose(torch.full((6,), 20.0), atol=0.01)


def test_the_seed_decides_the_new_rows_alone() -> None:
    base = base_detector()
    one, same, other = (transfer(base, LABELS, seed).predictor for seed in (3, 3, 4))
    torch.manual_seed(99)  # of training, not of the rows
    again = transfer(base, LABELS, 3).predictor
    for key, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[key])
        assert torch.equal(value, again.state_dict()[key])
    assert not torch.equal(one.classifier.weight[3:], other.classifier.weight[3:])
    assert torch.equal(one.classifier.weight[:3], other.classifier.weight[:3])


def test_only_the_predictor_learns_and_all_else_is_the_base_detector() -> None:
    base = base_detector()
    new = transfer(base, LABELS, seed=0)
    learning = {name for name, p in new.named_parameters() if p.requires_grad}
    assert learning == {
        "predictor.classifier.weight",
        "predictor.boxes.weight",
        "predictor.boxes.bias",
    }
    old = base.state_dict()
    rest = {k: v for k, v in new.state_dict().items() if not k.startswith("predictor.")}
    assert rest
    assert all(torch.equal(value, old[key]) for key, value in rest.items())


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="3 classes for 2 base classes"):
        transfer(base_detector(classes=3), LABELS, seed=0)


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_a_linear_detector_of_all_classes(classifier: str) -> None:
    """What re-training may begin as: it says of base classes what the base detector said."""
    base = base_detector(classifier)
    new = widened(base, LABELS, 0, "linear", iou_branch=True)
    assert new.settings.classifier == "linear"
    assert new.iou_branch is not None
    assert all(p.requires_grad for p in new.predictor.parameters())
    learns = {name: p.requires_grad for name, p in base.named_parameters()}
    assert all(p.requires_grad == learns.get(name, True) for name, p in new.named_parameters())
    weight, bias = new.predictor.classifier.weight, new.predictor.classifier.bias
    assert torch.equal(weight[:3], base.predictor.classifier.weight)
    known = base.predictor.classifier.bias if classifier == "linear" else torch.zeros(3)
    assert torch.equal(bias, torch.cat([known, torch.zeros(3)]))
    hidden = torch.randn(4, 32)
    (scores, boxes), (known_scores, known_boxes) = new.predictor(hidden), base.predictor(hidden)
    if classifier == "linear":
        torch.testing.assert_close(scores[:, :3], known_scores)
    torch.testing.assert_close(boxes[:, :2], known_boxes)


def test_box_rows_may_begin_as_the_mean_of_the_base_classes() -> None:
    base = base_detector()
    new = transfer(base, LABELS, seed=0, mean_boxes=True).predictor.boxes
    old = base.predictor.boxes
    for row in range(4):  # x, y, width, height, of cars and of dogs
        weight, bias = ((v[row] + v[4 + row]) / 2 for v in (old.weight, old.bias))
        for novel in range(3):
            torch.testing.assert_close(new.weight[8 + 4 * novel + row], weight)
            torch.testing.assert_close(new.bias[8 + 4 * novel + row], bias)
    assert torch.equal(new.weight[:8], old.weight)
