"""torchvision's detectors of COCO's classes, by name: fetched once, and converted.

The architecture is built here with torchvision's parts, because its own functions read the file
themselves; the tests compare the result with theirs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torchvision.models.detection import FasterRCNN, faster_rcnn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.resnet import resnet50
from torchvision.ops import FrozenBatchNorm2d

from mini_fsod.config.values import TORCHVISION
from mini_fsod.detector.classes import with_classes
from mini_fsod.detector.convert import from_torchvision
from mini_fsod.detector.download import fetch_torchvision
from mini_fsod.detector.model import Detector
from mini_fsod.detector.weights import WeightsFile, load_weights, read_weights

COCO = {
    "fasterrcnn_resnet50_fpn": faster_rcnn.FasterRCNN_ResNet50_FPN_Weights.COCO_V1,
    "fasterrcnn_resnet50_fpn_v2": faster_rcnn.FasterRCNN_ResNet50_FPN_V2_Weights.COCO_V1,
}
ANCHORS = 3  # in each cell
ROI_SIDE = 7  # cells of RoIAlign's output

# Names in older files: pattern, and what stands before the last part now
OLD_NAMES = (
    (re.compile(r"(backbone\.fpn\.(?:inner|layer)_blocks\.\d)\.(weight|bias)"), "0"),
    (re.compile(r"(rpn\.head\.conv)\.(weight|bias)"), "0.0"),
)


class Published(NamedTuple):
    """A converted detector and the names of its classes."""

    detector: Detector
    classes: tuple[str, ...]


def classes_of(name: str) -> tuple[str, ...]:
    """COCO's 80 names; nothing is fetched."""
    return tuple(c for c in COCO[name].meta["categories"] if _is_class(c))


def fetch_published(name: str) -> Path:
    """The file of weights in torch's cache, downloaded if it is not there; its hash is checked."""
    return fetch_torchvision(TORCHVISION + name, url_of(name), checked=True)


def url_of(name: str) -> str:
    """Where the weights lie; the file's name has the first digits of its hash."""
    url: str = COCO[name].url
    return url


def published_detector(name: str) -> Published:
    """The detector of a name in `COCO`, on the CPU.

    COCO numbers its 80 classes up to 90, and the file has rows for all numbers. Those without a
    class were never right in training, so they are left out.
    """
    weights = read_weights(fetch_published(name))
    model = _untrained(name, len(COCO[name].meta["categories"]))
    load_weights(model, _with_new_names(weights), f"torchvision's {name}")
    categories = COCO[name].meta["categories"][1:]  # without the background
    kept = [i for i, category in enumerate(categories) if _is_class(category)]
    return Published(with_classes(from_torchvision(model), kept, forget=True), classes_of(name))


def _is_class(category: str) -> bool:
    return category not in ("__background__", "N/A")


def _untrained(name: str, rows: int) -> FasterRCNN:
    """The architecture as torchvision builds it for its weights, with random ones."""
    with torch.random.fork_rng(devices=[]):  # random weights are drawn, then overwritten
        if name == "fasterrcnn_resnet50_fpn":
            backbone = _backbone(FrozenBatchNorm2d, None)
            for norm in backbone.modules():
                if isinstance(norm, FrozenBatchNorm2d):
                    norm.eps = 0.0  # as these weights were trained
            return FasterRCNN(backbone, rows)
        backbone = _backbone(nn.BatchNorm2d, nn.BatchNorm2d)
        channels = backbone.out_channels
        head = faster_rcnn.FastRCNNConvFCHead(
            (channels, ROI_SIDE, ROI_SIDE), [channels] * 4, [1024], norm_layer=nn.BatchNorm2d
        )
        rpn = RPNHead(channels, ANCHORS, conv_depth=2)
        return FasterRCNN(backbone, rows, rpn_head=rpn, box_head=head)


def _backbone(norm: type[nn.Module], fpn_norm: type[nn.Module] | None) -> BackboneWithFPN:
    """A ResNet-50 with a feature pyramid, frozen as torchvision freezes a trained detector's."""
    net = resnet50(norm_layer=norm)
    for part in (net.conv1, net.bn1, net.layer1):
        part.requires_grad_(False)
    layers = {f"layer{n + 1}": str(n) for n in range(4)}
    channels = [256, 512, 1024, 2048]
    return BackboneWithFPN(net, layers, channels, 256, norm_layer=fpn_norm)


def _with_new_names(weights: WeightsFile) -> WeightsFile:
    """Files that torchvision wrote before version 0.14 lack the index of a layer in its block."""
    tensors = dict(weights.tensors)
    for name in weights.tensors:
        for old, new in OLD_NAMES:
            found = old.fullmatch(name)
            if found:
                tensors[f"{found[1]}.{new}.{found[2]}"] = tensors.pop(name)
    return weights._replace(tensors=tensors)
