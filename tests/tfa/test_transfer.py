from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import shapes
from helpers.few_shot import make_run, save_detector
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import RoISettings
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.labels import LabelMap
from mini_fsod.tfa import fine_tune
from mini_fsod.tfa.transfer import few_shot_detector, transfer

LABELS = LabelMap(("car", "dog"), ("bird", "bus", "cow"))


def base_detector(classifier: str = "linear", classes: int = 2) -> Detector:
    """No two parameters of the predictor are equal."""
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
def test_few_shot_detector_copies_base_rows_and_draws_novel_ones(classifier: str) -> None:
    base = base_detector(classifier)
    new = few_shot_detector(base, LABELS, seed=0)
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
    # cosine, scale 20, no bias, whatever the base detector's classifier is
    assert new.settings.classifier == "cosine"
    assert not hasattr(new.predictor.classifier, "bias")
    logits, _ = new.predictor(20 * rows.detach())
    assert logits.diagonal().allclose(torch.full((6,), 20.0), atol=0.01)


def test_few_shot_detector_draws_rows_by_the_seed_alone() -> None:
    base = base_detector()
    one, same, other = (few_shot_detector(base, LABELS, seed).predictor for seed in (3, 3, 4))
    torch.manual_seed(99)
    again = few_shot_detector(base, LABELS, 3).predictor
    for key, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[key])
        assert torch.equal(value, again.state_dict()[key])
    assert not torch.equal(one.classifier.weight[3:], other.classifier.weight[3:])
    assert torch.equal(one.classifier.weight[:3], other.classifier.weight[:3])


def test_few_shot_detector_freezes_all_but_the_predictor() -> None:
    base = base_detector()
    new = few_shot_detector(base, LABELS, seed=0)
    assert {name for name, p in new.named_parameters() if p.requires_grad} == {
        "predictor.classifier.weight",
        "predictor.boxes.weight",
        "predictor.boxes.bias",
    }
    old = base.state_dict()
    rest = {k: v for k, v in new.state_dict().items() if not k.startswith("predictor.")}
    assert rest
    assert all(torch.equal(value, old[key]) for key, value in rest.items())


def test_few_shot_detector_refuses_another_number_of_classes() -> None:
    with pytest.raises(ValueError, match="3 classes for 2 base classes"):
        few_shot_detector(base_detector(classes=3), LABELS, seed=0)


def test_few_shot_detector_starts_novel_boxes_as_the_mean_of_base_boxes() -> None:
    base = base_detector()
    new = few_shot_detector(base, LABELS, seed=0, mean_boxes=True).predictor.boxes
    old = base.predictor.boxes
    for row in range(4):  # x, y, width, height, of cars and of dogs
        weight, bias = ((v[row] + v[4 + row]) / 2 for v in (old.weight, old.bias))
        for novel in range(3):
            torch.testing.assert_close(new.weight[8 + 4 * novel + row], weight)
            torch.testing.assert_close(new.bias[8 + 4 * novel + row], bias)
    assert torch.equal(new.weight[:8], old.weight)


@pytest.mark.parametrize("cached", [True, False])
def test_transfer_trains_novel_box_rows_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    if not cached:
        monkeypatch.setattr(fine_tune, "why_not_cached", lambda *_: "asked for")
    data = shapes.write_data(tmp_path / "data")
    distance = {}
    for boxes in ("new", "mean", "fixed"):
        folder = tmp_path / boxes
        run = make_run(
            data, folder, transfer__boxes=boxes, transfer__rate=0.01, transfer__iterations=25
        )
        base = save_detector(run, "base")
        (folder / "transfer").mkdir()
        figures = transfer(run, folder / "transfer")
        assert figures["iterations"] == 25
        weights = load_file(folder / "transfer" / CHECKPOINT_FILE)
        known, rows = base.predictor.boxes.weight.detach(), weights["predictor.boxes.weight"]
        mean = known.view(-1, 4, known.shape[1]).mean(0)
        distance[boxes] = float((rows[-4:] - mean).norm() / mean.norm())
    assert distance["fixed"] < 3e-4  # weight decay alone
    assert distance["mean"] > 1e-3
    assert distance["new"] > 0.9
