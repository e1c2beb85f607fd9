from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mini_fsod.detector.batch import pad_targets
from mini_fsod.detector.classes import with_classes
from mini_fsod.detector.convert import from_torchvision
from mini_fsod.detector.model import Detector
from mini_fsod.detector.preprocess import batch_images
from mini_fsod.detector.settings import DetectorSettings


@pytest.fixture(scope="module")
def detector(torchvision_model: Callable[..., Any]) -> Detector:
    """Of five classes."""
    return from_torchvision(torchvision_model())


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return batch_images([torch.rand(3, 96, 128), torch.rand(3, 100, 90)], 96, 160, 32)


def test_with_classes_keeps_scores_and_boxes(
    detector: Detector, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    smaller = with_classes(detector, [3, 1])
    assert (smaller.settings.num_classes, smaller.settings.negatives) == (2, 3)
    with torch.no_grad():
        whole, part = detector.infer(*batch), smaller.infer(*batch)
    torch.testing.assert_close(part.scores, whole.scores[..., [3, 1]])
    torch.testing.assert_close(part.boxes, whole.boxes[:, :, [3, 1]], atol=1e-3, rtol=0)
    again = with_classes(smaller, [1])
    assert again.settings.negatives == 4
    with torch.no_grad():
        torch.testing.assert_close(again.infer(*batch).scores, whole.scores[..., [1]])


def test_with_classes_forgets_the_others(
    detector: Detector, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    smaller = with_classes(detector, [3, 1], forget=True)
    assert smaller.settings.negatives == 0
    assert len(smaller.predictor.classifier.get_parameter("weight")) == 3
    with torch.no_grad():
        whole, part = detector.infer(*batch), smaller.infer(*batch)
    assert (part.scores >= whole.scores[..., [3, 1]] - 1e-6).all()
    assert part.scores.sum() > whole.scores[..., [3, 1]].sum()


def test_with_classes_trains_the_rows_of_its_classes(
    detector: Detector, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    smaller = with_classes(detector, [3, 1])
    rebuilt = Detector(DetectorSettings.from_json(smaller.settings.to_json()))
    rebuilt.load_state_dict(smaller.state_dict())
    targets = pad_targets(
        [torch.tensor([[10.0, 10, 60, 60]]), torch.zeros(0, 4)],
        [torch.tensor([0]), torch.zeros(0, dtype=torch.int64)],
    )
    rebuilt.losses(*batch, targets)["loss_classifier"].backward()
    grad = rebuilt.predictor.classifier.get_parameter("weight").grad
    assert grad is not None
    # a gradient against the row's own weight is a step towards the object
    bias = rebuilt.predictor.classifier.get_parameter("bias").grad
    assert bias is not None
    assert bias[4] < bias[5]  # of the class that is there, and of the other one
