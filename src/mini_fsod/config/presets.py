"""The presets: for each, the keys that differ from the defaults.

Data split, K and seed are ordinary keys: `mini run voc-320 --split voc-split2 --shots 5 --seed 1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from mini_fsod.config.auto import AUTO

Keys = Mapping[str, Any]  # dotted key: value


class Preset(NamedTuple):
    about: str  # one line
    keys: Keys


IMAGENET = {"detector.weights": "IMAGENET1K_V2"}
# not V2: cosines of its features hardly tell similar boxes from others
DISCRIMINATOR = {"discriminator.weights": "resnet50:IMAGENET1K_V1"}

# The paper's schedule (Appendix A), where it is not the default of the keys. The weights are those
# of torchvision. The paper's are a Caffe ResNet-101 (detector.weights, detector.caffe) and MoCo v2
# (discriminator.weights); both keys take a file.
PAPER: Keys = {
    "data.split": "voc-split1",
    "shots.k": 1,
    "shots.official": "voc",
    "detector.backbone": "resnet101",
    **IMAGENET,
    "base.sure": None,  # external images have no base labels, not even a detector's
    "transfer.iterations": AUTO,
    "transfer.warm_up": AUTO,
    "transfer.decay": AUTO,
    **DISCRIMINATOR,
    "tune.iterations": AUTO,
}

# The same on COCO. `mini data coco` arranges its image sets.
COCO: Keys = {
    **PAPER,
    "data.split": "coco",
    "data.metric": "coco",
    "shots.k": 10,
    "shots.official": "coco",
    "views.short": list(range(640, 801, 32)),
    "base.iterations": 110_000,
    "base.decay": [0.772727, 0.909091],  # 85,000 and 100,000
    "base.warm_up": 1_000,
    "mine.per_class": 3_000,
    "mine.extra_per_class": 2_000,
    "online.iterations": 160_000,
    "online.decay": [0.6875, 0.90625],  # 110,000 and 145,000
    "online.warm_up": 1_000,
    "online.delta": 0.8,
    "tune.part": "head",
}

# One GPU: smaller pictures, ResNet-50, base training in minutes. Images are scaled on canvases
# larger than 320 pixels so that views differ from epoch to epoch: with flips alone at 320 pixels,
# longer training did not help (docs/results.md, training probe).
VOC_320: Keys = {
    **PAPER,
    "detector.backbone": "resnet50",
    "views.short": [416],
    "views.long": 832,
    "views.test": 416,
    "views.zoom": [0.6, 1.25],
    "views.few_shot": [320, 368, 416, 464, 512],
    "base.iterations": None,
    "base.minutes": 8,
    "discriminator.short": 320,
    # Six to eight minutes on an H200. Not a time budget: iterations with a teacher take longer, and
    # ablations with a teacher would train on less than those without.
    "online.iterations": 12_000,
    "online.ema": 0.998,  # averages over about 5 % of the training
}

# What helped beyond the paper, measured on VOC split 1 with 1 and 5 shots
PLUS: Keys = {
    "base.sure": 0.7,
    "transfer.data": "known",
    "transfer.boxes": "fixed",
    "discriminator.crop": 224,
    "discriminator.whiten": True,
    "discriminator.refine": 100,
    "mine.mean_score": AUTO,
    "mine.box_correction": True,
    "mine.drop_on_base": True,
    "mine.drop_nested": True,
    "online.ema": 0.998,
    "online.ema_warm_up": AUTO,
    "online.clip": 10,
    "online.mingle.keep_pool": True,
    "online.shots": True,
    "online.repeat": 3,
    "online.ignore_candidates": True,
    "online.mined_boxes": "pool",
    "tune.data": "none",  # it no longer helps
}

VOC_320_PLUS: Keys = {**VOC_320, **PLUS, "online.start": AUTO, "online.iterations": AUTO}

# Your own pictures on one GPU: what helped on VOC, with time budgets
PHOTOS: Keys = {
    **PLUS,
    "data.metric": "voc",
    "shots.k": 5,
    **IMAGENET,
    "views.short": [480, 560, 640],
    "views.long": 1000,
    "views.test": 640,
    "base.iterations": None,
    "base.minutes": 20,
    **DISCRIMINATOR,
    "discriminator.short": 640,
    # for every K: base classes lose nothing, and little time suffices
    "online.start": "transfer",
    "online.iterations": None,
    "online.minutes": 15,
}

# Your own pictures on a CPU: the same stages on smaller views, with fewer proposals and shorter
# re-training. Best with a finished base detector (base.checkpoint). For a GPU, or for small objects
# and time to wait, use photos.
PHOTOS_CPU: Keys = {
    **PHOTOS,
    # the head takes a tenth of the time with 1,000 proposals, next to none with 300
    "detector.rpn_pre_nms": 1_000,
    "detector.rpn_post_nms": 300,
    "detector.roi_samples": 128,
    "views.short": [320, 368, 416],
    "views.long": 640,
    "views.test": 416,
    "discriminator.short": 416,
    "base.batch": 4,
    # 200 iterations or so, on two cores: the rate of the measured run (docs/results.md)
    "online.minutes": 10,
    "online.batch": 4,
    "online.rate": 0.002,
}

# Pictures of 144 to 176 pixels with digits 20 to 66 pixels high, on two CPU cores and from random
# weights: a narrow backbone with GroupNorm, because frozen BatchNorm cannot be trained from random
# weights.
DEMO: Keys = {
    "data.root": "runs/demo-data",
    "data.novel": ["three", "six", "eight"],
    "data.train": "train",
    "data.test": "test",
    "data.metric": "voc",
    "shots.k": 5,
    "shots.subset": "shots",
    "detector.backbone": "resnet18-narrow",
    "detector.norm": "group",
    "detector.anchors": [16, 32, 64, 128, 256],
    "detector.fpn_channels": 64,
    "detector.head_width": 256,
    "detector.rpn_pre_nms": 300,
    "detector.rpn_post_nms": 150,
    "detector.rpn_samples": 64,
    "detector.roi_samples": 64,
    "views.short": [144, 160, 176],
    "views.long": 224,
    "views.test": 160,
    "views.flip": False,  # a mirrored digit is no digit
    "train.batch": 8,
    "train.bf16": False,  # so that every CPU computes in the precision of the published figures
    # learning rates for a batch of 16, with which the demo was measured
    "base.iterations": 1_000,
    "base.rate": 0.02,
    "base.clip": 10,
    "transfer.iterations": 1_000,
    "transfer.rate": 0.001,
    "transfer.boxes": "mean",
    "transfer.data": "known",
    "mine.drop_on_base": True,
    # from random weights, re-training would take as long as base training
    "online.start": "transfer",
    "online.iterations": 300,
    "online.rate": 0.02,
    "online.clip": 10,
    # averages over 100 iterations, and no warm-up: the few-shot detector is a good start
    "online.ema": 0.99,
    "online.ema_warm_up": None,
    "online.shots": True,
    "online.repeat": 3,
    "online.ignore_candidates": True,
    "tune.iterations": 300,
    "tune.rate": 0.0003,
    "tune.data": "known",
}

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "paper": Preset("VOC with the paper's schedule: ResNet-101, 800 pixels.", PAPER),
        "coco": Preset("COCO with the paper's schedule: ResNet-101, 800 pixels.", COCO),
        "voc-320": Preset(
            "VOC on one GPU: the paper's method with ResNet-50 at about 320 pixels, base training "
            "in 8 minutes.",
            VOC_320,
        ),
        "voc-320-plus": Preset("voc-320 with what helped beyond the paper.", VOC_320_PLUS),
        "photos": Preset(
            "Your own pictures on one GPU; needs data.root, data.novel and the shots.", PHOTOS
        ),
        "photos-cpu": Preset(
            "photos without a GPU: smaller views, fewer proposals, shorter re-training.", PHOTOS_CPU
        ),
        "demo": Preset(
            "Handwritten digits on photographs, made by `mini demo`: minutes on two CPU cores.",
            DEMO,
        ),
    }
)
