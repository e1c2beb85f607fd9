"""Configurations with a name: the keys of `--set`, and the values in which a preset differs.

The numbers of a group stand in one table each: PAPER, AT_320, PLUS, PHOTOS and DEMO.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mini_fsod.errors import UserError, nearest

Keys = dict[str, Any]  # dotted key: value


@dataclass(frozen=True, slots=True)
class Preset:
    about: str  # one line, the same for all presets of a group
    keys: Keys


# Shots: iterations, the share of them after which the rate falls, warm-up; as in TFA's and
# mmfewshot's configurations of split 1 (protocol.md, section 2).
TRANSFER = {
    1: (4_000, 0.75, 0),
    2: (8_000, 0.875, 0),
    3: (12_000, 0.916667, 10),
    5: (20_000, 0.9, 10),
    10: (40_000, 0.9, 10),
}

# Shots: iterations of the last fine-tuning (the paper's Appendix A)
TUNE = {1: 4_000, 2: 8_000, 3: 8_000, 5: 8_000, 10: 12_000}

# protocol.md, sections 2 and 3, where it is not the default of a key already
PAPER: Keys = {
    "detector.backbone": "resnet101",
    "detector.weights": "IMAGENET1K_V2",
    "views.short": list(range(480, 801, 32)),
    "views.long": 1333,
    "views.test": 800,
    "base.iterations": 18_000,
    "base.warm_up": 100,
    "base.decay": [0.666667, 0.888889],
    "mine.discriminator": "resnet50:IMAGENET1K_V2",
    "online.iterations": 18_000,
}
PAPER_ABOUT = (
    "The paper's schedule. Weights are torchvision's: it has neither a Caffe ResNet-101, which "
    "detector.weights, normalisation and stride_in_1x1 take from a file, nor MoCo v2, which "
    "mine.discriminator takes."
)

# One GPU, VOC with a short side of 320 pixels: the budget is time, the rest is the paper's.
# Canvases somewhat larger than the pictures, and views that differ from epoch to epoch: with flips
# alone at 320 pixels longer training did not pay (docs/results.md, training probe).
AT_320: Keys = PAPER | {
    "detector.backbone": "resnet50",
    "views.short": [416],
    "views.zoom": [0.6, 1.25],
    "views.long": 832,
    "views.test": 416,
    "base.iterations": None,
    "base.minutes": 8,
    "transfer.short": [320, 368, 416, 464, 512],
    "mine.discriminator_short_side": 640,
    # six to eight minutes on an H200, and not told in minutes: rows with a teacher are slower, and
    # would learn less than the others
    "online.iterations": 12_000,
    "online.ema": 0.998,  # its memory is some 5 % of that
    # with a tenth the first teacher is as immature as its student, and finds slices of buses
    # (docs/decisions/0006)
    "online.ema_growth": 1,
    "tune.short": [320, 368, 416, 464, 512],
}
AT_320_ABOUT = "For one GPU: pictures of about 320 pixels, base training within minutes."

# Beyond the paper: what has helped on split 1 (docs/on-the-way.md)
PLUS: Keys = {
    "transfer.data": "known",
    "transfer.boxes": "fixed",
    "mine.discriminator_crop": 224,
    "mine.whiten": True,
    "mine.refine": 100,
    "mine.drop_on_base": True,
    "mine.stretch": True,
    "mine.drop_nested": True,
    "online.shots": True,
    "online.repeat": 3,
    "online.ignore_candidates": True,
    "online.mined_boxes": "pool",
    "online.mingle.keep_pool": True,
    "online.clip": 10,
    "online.ema": 0.998,
    "tune.data": "none",  # there is nothing left to mend
}
# What re-training begins as. From ImageNet weights it knows nothing of what the base training has
# taught as background, which pays where five shots mine well: new classes gain 1.8 by it, and base
# classes lose 2.5 (docs/results.md; 2, 3 and 10 shots were not measured).
FROM_TRANSFER: Keys = {
    "online.start": "transfer",
    "online.ema_growth": 0.1,  # with which it was measured; the demo does better with null
}
FROM_WEIGHTS: Keys = {"online.start": "weights", "online.ema_growth": 1}
MANY = 5  # shots from which on it is ImageNet weights
# Shots: one-shot detectors are right more often than their scores say, five-shot ones are not
# (pools of K = 1 and 5 in docs/on-the-way.md; the others were not measured)
EXPECTED = {1: 0.65, 2: 0.75, 3: 0.75, 5: 0.75, 10: 0.8}
AT_320_FROM_TRANSFER = 7_000  # iterations, five minutes alone on an H200: it knows much already
PLUS_ABOUT = "Beyond the paper: what has helped on split 1 at 320 pixels, with 1 and 5 shots."
AT_320_PLUS_ABOUT = "Beyond the paper, for one GPU: what has helped on split 1, with 1 and 5 shots."

# Somebody's own pictures, on one GPU: what has helped on VOC, with budgets of time
PHOTOS: Keys = {
    **PLUS,
    **FROM_TRANSFER,  # whatever K: base classes keep theirs, and it learns more in few minutes
    "data.metric": "voc",
    "shots.k": 5,
    "detector.backbone": "resnet50",
    "detector.weights": "IMAGENET1K_V2",
    "views.short": [480, 560, 640],
    "views.long": 1000,
    "views.test": 640,
    "base.iterations": None,
    "base.minutes": 20,
    "mine.discriminator": "resnet50:IMAGENET1K_V2",
    "mine.expected": EXPECTED[5],
    "online.iterations": None,
    "online.minutes": 15,
}
PHOTOS_ABOUT = (
    "For your own pictures: name data.root, data.novel and the shots in a file that begins with it."
)

# Pictures of 144 to 176 pixels with digits 20 to 66 high, on two cores and from nothing: a small
# GroupNorm backbone, because frozen BatchNorm does not train from random weights.
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
    "detector.channels": 64,
    "detector.width": 256,
    "detector.rpn_before": 300,
    "detector.rpn_after": 150,
    "detector.rpn_samples": 64,
    "detector.roi_samples": 64,
    "views.short": [144, 160, 176],
    "views.long": 224,
    "views.test": 160,
    "views.flip": False,  # a mirrored digit is no digit
    "base.iterations": 1_000,
    "base.batch": 8,
    "base.rate": 0.02,  # that of a batch of 16, with which it was measured; so are the others
    "base.clip": 10,
    "transfer.iterations": 1_000,
    "transfer.batch": 8,
    "transfer.rate": 0.001,
    "transfer.data": "known",
    "transfer.boxes": "mean",
    "mine.drop_on_base": True,
    # from nothing again would take as long as the base training
    "online.start": "transfer",
    "online.ignore_candidates": True,
    "online.repeat": 3,
    "online.iterations": 300,
    "online.batch": 8,
    "online.rate": 0.02,
    "online.clip": 10,
    # a memory of 100 iterations, whole from the start: the few-shot detector is worth remembering
    "online.ema": 0.99,
    "online.ema_growth": None,
    "online.shots": True,
    "tune.iterations": 300,
    "tune.rate": 0.0003,
    "tune.data": "known",
    "tune.batch": 8,
}
DEMO_ABOUT = "Handwritten digits on photographs, made on the spot: minutes on two cores."


def _voc(about: str, keys: Keys, suffix: str) -> Iterator[tuple[str, Preset]]:
    for split in (1, 2, 3):
        for shots, (iterations, decay, warm_up) in TRANSFER.items():
            own: Keys = {
                "data.split": f"voc-split{split}",
                "data.metric": "voc07",
                "shots.k": shots,
                "shots.official": "voc",
                "transfer.iterations": iterations,
                "transfer.warm_up": warm_up,
                "transfer.decay": [decay],
                "tune.iterations": TUNE[shots],
            }
            if suffix.endswith("-plus"):
                own |= {"mine.expected": EXPECTED[shots]}
                own |= FROM_WEIGHTS if shots >= MANY else FROM_TRANSFER
            if suffix == "-320-plus" and shots < MANY:
                own["online.iterations"] = AT_320_FROM_TRANSFER
            yield f"voc-split{split}-{shots}shot{suffix}", Preset(about, keys | own)


PRESETS = MappingProxyType(
    {
        **dict(_voc(PAPER_ABOUT, PAPER, "")),
        **dict(_voc(AT_320_ABOUT, AT_320, "-320")),
        **dict(_voc(PLUS_ABOUT, PAPER | PLUS, "-plus")),
        **dict(_voc(AT_320_PLUS_ABOUT, AT_320 | PLUS, "-320-plus")),
        "photos": Preset(PHOTOS_ABOUT, PHOTOS),
        "demo": Preset(DEMO_ABOUT, DEMO),
    }
)


def preset(name: str) -> Keys:
    """The keys of a preset; all others keep their defaults."""
    if name not in PRESETS:
        raise UserError(
            f'There is no preset "{name}".{nearest(name, PRESETS)}', "mini presets lists them."
        )
    return dict(PRESETS[name].keys)
