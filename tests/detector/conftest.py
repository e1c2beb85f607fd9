"""Small torchvision models with random weights that still detect something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchvision.models.detection import FasterRCNN, fasterrcnn_resnet50_fpn_v2
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import FrozenBatchNorm2d

from helpers.matrix_nms import compute_as_on_a_device

WIDTH = 64  # of the box head: 1024 would cost most of the tests' time


def shake(model: Any, logits: float) -> None:
    """Random norms, each with its own epsilon, and scores that spread and do not tie."""
    for i, norm in enumerate(m for m in model.modules() if hasattr(m, "running_var")):
        norm.running_mean.uniform_(-0.1, 0.1)
        norm.running_var.uniform_(0.5, 1.5)
        norm.weight.data.uniform_(0.5, 1.0)
        norm.bias.data.uniform_(-0.1, 0.1)
        norm.eps = 0.01 * (i % 3)
    with torch.no_grad():
        model.rpn.head.cls_logits.weight.normal_(std=1.0)
        model.rpn.head.bbox_pred.weight.normal_(std=0.02)
        model.roi_heads.box_predictor.cls_score.weight.normal_(std=logits)
        model.roi_heads.box_predictor.bbox_pred.weight.normal_(std=0.2)


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_as_on_a_device(monkeypatch)


@pytest.fixture(scope="session")
def torchvision_model() -> Callable[..., FasterRCNN]:
    def make(seed: int = 0, norm_layer: Any = FrozenBatchNorm2d, **numbers: Any) -> FasterRCNN:
        torch.manual_seed(seed)
        backbone = resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, norm_layer=norm_layer, trainable_layers=3
        )
        numbers = {
            "min_size": 96,
            "max_size": 160,
            "rpn_pre_nms_top_n_train": 300,
            "rpn_pre_nms_top_n_test": 200,
            "rpn_post_nms_top_n_train": 150,
            "rpn_post_nms_top_n_test": 120,
            "rpn_batch_size_per_image": 64,
            "box_batch_size_per_image": 48,
        } | numbers
        model = FasterRCNN(
            backbone,
            box_head=TwoMLPHead(256 * 49, WIDTH),
            box_predictor=FastRCNNPredictor(WIDTH, 6),
            **numbers,
        )
        shake(model, logits=0.7)
        return model.eval()

    return make


@pytest.fixture(scope="session")
def version_2() -> FasterRCNN:
    """fasterrcnn_resnet50_fpn_v2 with few and small images."""
    torch.manual_seed(0)
    model = fasterrcnn_resnet50_fpn_v2(
        weights=None,
        weights_backbone=None,
        num_classes=4,
        min_size=96,
        max_size=128,
        rpn_post_nms_top_n_test=30,
    )
    shake(model, logits=0.3)
    return model.eval()
