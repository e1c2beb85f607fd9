from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import tiny
from mini_fsod.data.read import read
from mini_fsod.data.subsets import arranged
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import RoISettings, RPNSettings
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import Schedule
from mini_fsod.train.step import Step, inputs_of, losses_of, make_optimiser

CPU = torch.device("cpu")
LABELS = LabelMap(("car", "bus"), ("bird",))


@pytest.fixture
def source(tmp_path: Path) -> tuple[Resident, np.ndarray]:
    data = arranged(read(tiny.write_coco(tmp_path / "data")), LABELS)
    pictures = cached_pictures(data, tmp_path / "cache", 64, 128, workers=1)
    return Resident(pictures, Annotations.of(data.boxes, len(data)), CPU), pictures.sizes


def detector() -> Detector:
    torch.manual_seed(0)
    rpn = RPNSettings(
        before_nms_train=100, before_nms_test=50, after_nms_train=60, after_nms_test=40
    )
    roi = RoISettings(samples=32, width=64)
    return build(3, "resnet18", norm="group", rpn=rpn, roi=roi)


@pytest.mark.slow
def test_steps_reduce_the_loss(source: tuple[Resident, np.ndarray]) -> None:
    loader, sizes = source
    model = detector()
    optimiser = make_optimiser(model, CPU, 1e-4)
    optimiser.param_groups[0]["lr"].fill_(0.005)
    step = Step(losses_of(model), optimiser, CPU, bf16=False)
    schedule = Schedule(sizes, 3, (64,), 128, seed=0, flip=False)
    totals = [
        step([inputs_of(loader.batch(schedule.plan(0)), torch.tensor(n))]).sum().item()
        for n in range(12)
    ]
    assert step.names == ("loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg")
    assert all(np.isfinite(totals))
    assert np.mean(totals[-3:]) < 0.8 * totals[0]


def test_step_equals_plain_torch(source: tuple[Resident, np.ndarray]) -> None:
    """The same weights after one step as by hand."""
    loader, sizes = source
    batch = loader.batch(Schedule(sizes, 3, (64,), 128, seed=0).plan(0))
    ours, by_hand = detector(), detector()
    optimiser = make_optimiser(ours, CPU, 1e-4)
    optimiser.param_groups[0]["lr"].fill_(0.01)
    Step(losses_of(ours), optimiser, CPU, bf16=False)([inputs_of(batch, torch.tensor(5))])

    losses = by_hand.losses(batch.images, batch.sizes, batch.targets, torch.tensor(5))
    sum(losses.values()).backward()
    torch.optim.SGD(by_hand.parameters(), 0.01, 0.9, weight_decay=1e-4).step()
    for a, b in zip(ours.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b)
