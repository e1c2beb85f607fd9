"""The settings of a detector: all but its weights. They are stored in its checkpoint, as JSON.

They are a file format, with fields of their own beside the configuration's keys: a detector built
from them takes the same images (normalisation, sizes) and gives the same detections (thresholds,
numbers of boxes) as the one that was saved.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import Field

from mini_fsod.errors import UserError, nearest
from mini_fsod.state_files import check_kind

Norm = Literal["frozen", "group"]
Classifier = Literal["linear", "cosine"]

T = TypeVar("T")

FIX = "Save the checkpoint again."
DELETED = ("nms_rounds",)  # keys in older checkpoints that have no effect any more

# of numbers in a checkpoint: no file may ask for more memory than a detector can need
Size = Annotated[int, Field(ge=1, le=1 << 16)]
Number = Annotated[int, Field(ge=0, le=1 << 20)]
Layers = Annotated[int, Field(ge=0, le=64)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Normalisation:
    """What the backbone gets: (pixel * scale - mean) / std, with pixels in 0..1.

    `mean` and `std` are in the channel order of `order`; images themselves are always RGB.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    order: Literal["RGB", "BGR"] = "RGB"
    scale: float = 1.0  # value of a white pixel: 1, or 255 for Caffe's weights


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CAFFE = Normalisation((103.939, 116.779, 123.68), (1.0, 1.0, 1.0), "BGR", 255.0)


@dataclass(frozen=True, slots=True)
class BackboneSettings:
    name: str = "resnet50"  # resnet18 to resnet152 of torchvision, else a timm model
    norm: Norm = "frozen"
    stride_in_1x1: bool = False  # Caffe's ResNets: stride in the 1x1, not the 3x3 convolution
    frozen_stages: Layers = 0  # 0 none, 1 stem, 2 stem and res2, ... 5 the whole backbone
    normalisation: Normalisation = IMAGENET


@dataclass(frozen=True, slots=True)
class RPNSettings:
    """`*_train` is used in `Detector.losses`, `*_test` in `Detector.detect`."""

    anchor_sizes: tuple[tuple[float, ...], ...] = ((32,), (64,), (128,), (256,), (512,))  # P2 .. P6
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # height / width
    convs: Layers = 1
    before_nms_train: Number = 2000  # per level
    before_nms_test: Number = 1000
    after_nms_train: Number = 1000  # per image
    after_nms_test: Number = 1000
    nms: Share = 0.7
    score_cut: Share = 0.0
    positive_iou: Share = 0.7
    negative_iou: Share = 0.3
    samples: Number = 256
    positive_share: Share = 0.5
    beta: Weight = 1 / 9  # of smooth-L1


@dataclass(frozen=True, slots=True)
class RoISettings:
    size: Size = 7  # output of RoIAlign: size x size cells
    sampling_ratio: Layers = 2
    convs: Layers = 0  # 3x3 convolutions before the fully connected layers of the head
    layers: Layers = 2  # fully connected layers of the head
    width: Size = 1024
    box_weights: tuple[float, float, float, float] = (10.0, 10.0, 5.0, 5.0)
    positive_iou: Share = 0.5
    negative_iou: Share = 0.5
    samples: Number = 512
    positive_share: Share = 0.25
    beta: Weight = 1 / 9  # of smooth-L1
    iou_weight: Weight = 0.5  # the paper's beta, Eq. 8
    focal_gamma: Weight = 0.0  # of the classifier's focal loss; 0: cross-entropy


@dataclass(frozen=True, slots=True)
class TestSettings:
    __test__ = False  # not a test, whatever pytest makes of the name

    score_cut: Share = 0.05
    nms: Share = 0.5
    detections: Number = 100
    candidates: Number = 1024  # (proposal, class) pairs that enter NMS; see postprocess.select
    use_iou: bool = False  # with an IoU branch: rank by sqrt(score * IoU), Eq. 7
    min_size: Size = 800
    max_size: Size = 1333
    divisible: Size = 32


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    num_classes: Size  # without the background
    backbone: BackboneSettings = BackboneSettings()
    channels: Size = 256  # of the feature pyramid
    classifier: Classifier = "linear"
    # further rows of the classifier that count as background: classes it knows but does not report
    negatives: Number = 0
    iou_branch: bool = False
    rpn: RPNSettings = RPNSettings()
    roi: RoISettings = RoISettings()
    test: TestSettings = TestSettings()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DetectorSettings:
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if key not in DELETED}
        settings = _rebuild(cls, data)
        try:
            check_kind(data, cls, as_json=True)
        except ValueError as error:
            raise UserError(f"wrong settings of the detector: {error}.", FIX) from None
        return settings


def _rebuild(kind: type[T], data: Any) -> T:
    """A settings dataclass from plain JSON: nested objects, lists as tuples, no unknown keys."""
    if not isinstance(data, dict):
        raise UserError(f"{kind.__name__} must be an object, not {str(data)[:50]}.", FIX)
    types = get_type_hints(kind)
    for key in data:
        if key not in types:
            hint = nearest(key, types)
            raise UserError(
                f'{kind.__name__} has no key "{key}".{hint}', f"Use {', '.join(types)}."
            )
    values = {
        key: _rebuild(types[key], value) if is_dataclass(types[key]) else _tuples(value)
        for key, value in data.items()
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise UserError(f"{kind.__name__} is incomplete: {error}.", FIX) from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value
