from __future__ import annotations

import pytest
import torch

from mini_fsod.detector.roi import Predictor


def test_predictor_with_cosine_classifier_gives_20_times_the_cosine() -> None:
    torch.manual_seed(0)
    predictor = Predictor(32, 5, "cosine")
    hidden = torch.rand(3, 32)
    logits, deltas = predictor(hidden)
    weight = predictor.classifier.weight
    assert isinstance(weight, torch.Tensor)
    assert weight.shape == (6, 32)
    assert deltas.shape == (3, 5, 4)
    cosine = torch.nn.functional.cosine_similarity(hidden[1], weight[2], dim=0)
    assert logits[1, 2].item() == pytest.approx(20 * cosine.item(), rel=1e-3)


def test_predictor_of_no_rois_is_empty() -> None:
    logits, deltas = Predictor(32, 5, "linear")(torch.zeros(0, 32))
    assert (logits.shape, deltas.shape) == ((0, 6), (0, 5, 4))
