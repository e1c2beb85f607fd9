"""Convert a torchvision Faster R-CNN: same weights, settings and normalisation."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, faster_rcnn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from mini_fsod.detector.anchors import STRIDES
from mini_fsod.detector.backbone import ResNet
from mini_fsod.detector.convolution import norm_factors
from mini_fsod.detector.model import Detector
from mini_fsod.detector.roi_align import CANONICAL_LEVEL, CANONICAL_SIZE
from mini_fsod.detector.settings import (
    BackboneSettings,
    DetectorSettings,
    Normalisation,
    RoISettings,
    RPNSettings,
    TestSettings,
)
from mini_fsod.errors import UserError

BATCH_NORMS = (nn.BatchNorm2d, FrozenBatchNorm2d)

RESNET_OF: dict[tuple[Any, ...], str] = {
    (BasicBlock, (2, 2, 2, 2)): "resnet18",
    (BasicBlock, (3, 4, 6, 3)): "resnet34",
    (Bottleneck, (3, 4, 6, 3)): "resnet50",
    (Bottleneck, (3, 4, 23, 3)): "resnet101",
    (Bottleneck, (3, 8, 36, 3)): "resnet152",
}


def from_torchvision(model: FasterRCNN) -> Detector:
    """A detector with the model's detections and, for the same samples, its losses.

    Takes ResNets with a feature pyramid and the heads of fasterrcnn_resnet50_fpn and its v2.
    BatchNorm is frozen at its running statistics. The model itself is not changed.
    """
    _check(model)
    settings = _settings(model)
    detector = Detector(settings)
    detector.backbone = ResNet(copy.deepcopy(model.backbone.body), settings.backbone.frozen_stages)

    fpn, head, roi = model.backbone.fpn, model.rpn.head, model.roi_heads
    for ours, theirs in (
        (detector.fpn.inner, fpn.inner_blocks),
        (detector.fpn.outer, fpn.layer_blocks),
        (detector.rpn_head.convs, head.conv),
        (detector.box_head.convs, _conv_blocks(roi.box_head)),
    ):
        for conv, block in zip(ours, theirs, strict=True):
            _copy(conv, *_fold_norm(block))
    first, *others = _linears(roi.box_head)
    side = detector.settings.roi.size
    by_channel = first.weight.view(first.out_features, -1, side, side)
    cells_first = by_channel.permute(0, 2, 3, 1).flatten(1)
    _copy(detector.box_head.layers[0], cells_first, first.bias)
    for layer, linear in zip(detector.box_head.layers[1:], others, strict=True):
        _copy(layer, linear.weight, linear.bias)
    _copy(
        detector.rpn_head.predict,
        torch.cat([head.cls_logits.weight, head.bbox_pred.weight]).flatten(1),
        torch.cat([head.cls_logits.bias, head.bbox_pred.bias]),
    )
    cls, box = roi.box_predictor.cls_score, roi.box_predictor.bbox_pred
    _copy(detector.predictor.classifier, cls.weight, cls.bias)
    _copy(detector.predictor.boxes, box.weight[4:], box.bias[4:])  # no boxes of the background
    return detector.to(cls.weight.device)


def _check(model: Any) -> None:
    """UserError unless the model is built as `Detector` assumes."""

    def need(condition: bool, what: str) -> None:
        if not condition:
            raise UserError(
                f"from_torchvision needs {what}; this model has something else.",
                "Use fasterrcnn_resnet50_fpn, its v2, or FasterRCNN(resnet_fpn_backbone(...)).",
            )

    need(isinstance(model, FasterRCNN), "a torchvision FasterRCNN")
    backbone, rpn, roi = model.backbone, model.rpn, model.roi_heads
    need(isinstance(backbone, BackboneWithFPN), "a ResNet with a feature pyramid")
    need(_resnet_name(backbone.body) is not None, "a ResNet-18, 34, 50, 101 or 152 as backbone")
    need(isinstance(backbone.body.bn1, BATCH_NORMS), "BatchNorm in the backbone, plain or frozen")
    need(len(backbone.fpn.inner_blocks) == 4, "the maps of all four stages in the pyramid")
    need(isinstance(backbone.fpn.extra_blocks, LastLevelMaxPool), "a max-pooled sixth level")

    need(isinstance(rpn.head, RPNHead), "torchvision's own RPNHead")
    sizes, ratios = rpn.anchor_generator.sizes, rpn.anchor_generator.aspect_ratios
    as_many = len(sizes) == 5 and len({len(s) for s in sizes}) == 1
    need(as_many, "as many anchors on all five levels")
    need(len({tuple(r) for r in ratios}) == 1, "anchors of the same ratios on all levels")

    pooler = roi.box_roi_pool
    need(list(pooler.featmap_names) == ["0", "1", "2", "3"], "RoIAlign on the first four levels")
    need(len(set(pooler.output_size)) == 1, "RoIAlign with square output")
    need(pooler.sampling_ratio > 0, "RoIAlign with a fixed sampling ratio")
    canonical = (pooler.canonical_scale, pooler.canonical_level)
    need(canonical == (CANONICAL_SIZE, CANONICAL_LEVEL), "RoIAlign's default choice of levels")

    heads = faster_rcnn.TwoMLPHead, faster_rcnn.FastRCNNConvFCHead
    need(isinstance(roi.box_head, heads), "a TwoMLPHead or FastRCNNConvFCHead")
    need(bool(_linears(roi.box_head)), "fully connected layers in the box head")
    square = (backbone.out_channels,) * 2
    convs = _conv_blocks(roi.box_head)
    need(all(b[0].weight.shape[:2] == square for b in convs), "head convolutions of equal width")
    need(
        isinstance(roi.box_predictor, faster_rcnn.FastRCNNPredictor),
        "torchvision's FastRCNNPredictor",
    )
    need(not (roi.has_mask() or roi.has_keypoint()), "a model without masks and keypoints")
    need(model.transform.fixed_size is None, "images that are not resized to one fixed size")
    need(model.transform.size_divisible % STRIDES[-1] == 0, "a canvas of multiples of 32")
    for block in (*backbone.fpn.inner_blocks, *backbone.fpn.layer_blocks, *convs):
        plain = all(isinstance(part, (*BATCH_NORMS, nn.ReLU)) for part in list(block)[1:])
        need(plain, "no norm but BatchNorm in pyramid and head")


def _settings(model: Any) -> DetectorSettings:
    rpn, roi, transform = model.rpn, model.roi_heads, model.transform
    body, pooler = model.backbone.body, roi.box_roi_pool
    stages = [body.conv1, body.layer1, body.layer2, body.layer3, body.layer4]
    frozen = 0
    while frozen < len(stages) and not any(p.requires_grad for p in stages[frozen].parameters()):
        frozen += 1
    name = _resnet_name(body) or ""
    in_1x1 = name not in ("resnet18", "resnet34") and body.layer2[0].conv1.stride == (2, 2)
    mean, std = tuple(transform.image_mean), tuple(transform.image_std)
    linears = _linears(roi.box_head)
    return DetectorSettings(
        num_classes=roi.box_predictor.cls_score.out_features - 1,
        backbone=BackboneSettings(name, "frozen", in_1x1, frozen, Normalisation(mean, std)),
        channels=model.backbone.out_channels,
        rpn=RPNSettings(
            anchor_sizes=tuple(tuple(s) for s in rpn.anchor_generator.sizes),
            ratios=tuple(rpn.anchor_generator.aspect_ratios[0]),
            convs=len(rpn.head.conv),
            before_nms_train=rpn._pre_nms_top_n["training"],
            before_nms_test=rpn._pre_nms_top_n["testing"],
            after_nms_train=rpn._post_nms_top_n["training"],
            after_nms_test=rpn._post_nms_top_n["testing"],
            nms=rpn.nms_thresh,
            score_cut=rpn.score_thresh,
            positive_iou=rpn.proposal_matcher.high_threshold,
            negative_iou=rpn.proposal_matcher.low_threshold,
            samples=rpn.fg_bg_sampler.batch_size_per_image,
            positive_share=rpn.fg_bg_sampler.positive_fraction,
        ),
        roi=RoISettings(
            size=pooler.output_size[0],
            sampling_ratio=pooler.sampling_ratio,
            convs=len(_conv_blocks(roi.box_head)),
            layers=len(linears),
            width=linears[-1].out_features,
            box_weights=tuple(roi.box_coder.weights),
            positive_iou=roi.proposal_matcher.high_threshold,
            negative_iou=roi.proposal_matcher.low_threshold,
            samples=roi.fg_bg_sampler.batch_size_per_image,
            positive_share=roi.fg_bg_sampler.positive_fraction,
        ),
        test=TestSettings(
            score_cut=roi.score_thresh,
            nms=roi.nms_thresh,
            detections=roi.detections_per_img,
            min_size=transform.min_size[-1],
            max_size=transform.max_size,
            divisible=transform.size_divisible,
        ),
    )


def _resnet_name(body: Any) -> str | None:
    if not all(hasattr(body, f"layer{i}") for i in (1, 2, 3, 4)):
        return None
    layers = [getattr(body, f"layer{i}") for i in (1, 2, 3, 4)]
    block = layers[0][0]
    if block.conv1.out_channels != 64 or block.conv2.groups != 1:  # ResNeXt, wide ResNet
        return None
    return RESNET_OF.get((type(block), tuple(len(layer) for layer in layers)))


def _conv_blocks(head: nn.Module) -> list[Any]:
    return [b for b in head.children() if isinstance(b, nn.Sequential)]


def _linears(head: nn.Module) -> list[nn.Linear]:
    return [m for m in head.modules() if isinstance(m, nn.Linear)]


def _fold_norm(block: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of a Conv2dNormActivation with its BatchNorm folded in."""
    conv, *rest = block
    if not rest or not isinstance(rest[0], BATCH_NORMS):
        return conv.weight, conv.bias
    scale, shift = norm_factors(rest[0])
    return conv.weight * scale.view(-1, 1, 1, 1), shift + (0 if conv.bias is None else conv.bias)


@torch.no_grad()
def _copy(layer: Any, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
