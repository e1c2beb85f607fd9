"""The keys of a configuration, section by section, and what each means.

A comment beside or above a key is what `mini presets NAME` says of it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic import ValidationInfo as Info
from pydantic import field_validator as check

from mini_fsod.config.values import (
    Auto,
    Count,
    Counts,
    Float,
    NameOrFile,
    Names,
    Numbers,
    Place,
    Positive,
    Section,
    Share,
    Whole,
    ascending,
    choice,
    not_both,
)
from mini_fsod.data.text import shown
from mini_fsod.files import is_folder
from mini_fsod.labels import SPLITS


def _threshold(value: Any) -> Any:
    with suppress(ValueError, TypeError):
        if value == "adaptive" or (not isinstance(value, bool) and 0 <= float(value) <= 1):
            return value
    raise ValueError(f"must be adaptive or a number from 0 to 1, not {shown(value)}")


class Data(Section):
    root: Place | None = None  # the data set: whatever mini check can read
    split: str | None = None  # a split the field knows by name
    novel: Names = ()  # the novel classes instead of a split
    train: str | None = None  # image set to train on; null: trainval or train
    test: str | None = None  # image set to score on; null: test, else val
    metric: Literal["voc07", "voc", "coco"] = "voc07"  # the paper's: voc07
    cache: Place | None = None  # decoded pictures; null: mini's in ~/.cache
    feed: Literal["auto", "resident", "stream"] = "auto"  # stream: not held on the device

    @check("split")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in SPLITS:
            raise ValueError(choice(value, list(SPLITS)))
        return value

    @check("novel")
    @classmethod
    def _names(cls, value: tuple[str, ...], info: Info) -> tuple[str, ...]:
        not_both("split", value, info)
        twice = sorted({name for name in value if value.count(name) > 1})
        if twice:
            raise ValueError(f"names {', '.join(twice)} twice")
        return value


class Shots(Section):
    k: Count = 1  # boxes of each class
    seed: Whole = 0  # which sample; not the seed of training
    official: NameOrFile | None = None  # lists instead of a draw: voc, or a file
    file: Place | None = None  # a sample of mini sample, or any data set, of new classes at least
    subset: str | None = None  # image set to draw from; null: data.train

    @check("file")
    @classmethod
    def _one(cls, value: Path | None, info: Info) -> Path | None:
        not_both("official", value, info)
        return value


class Detector(Section):
    backbone: str = "resnet50"  # resnet18 to resnet152, or one of timm's
    weights: NameOrFile | None = None  # a name its library knows, or a file; null: from nothing
    norm: Literal["frozen", "group"] = "frozen"  # group: GroupNorm, which alone trains from nothing
    stride_in_1x1: bool = False  # as in Caffe's ResNets
    # of pixels; auto: as the library's own weights want it
    normalisation: Literal["auto", "imagenet", "caffe"] = "auto"
    # 0 none, 1 stem, 2 stem and res2, ... 5 all; null: 2 with weights, else 0
    frozen_stages: Annotated[Whole, Field(le=5)] | None = None
    anchors: Numbers = (32, 64, 128, 256, 512)  # a size a level, P2 to P6
    channels: Count = 256  # of the pyramid
    width: Count = 1024  # of the RoI head's layers
    rpn_before: Count = 2000  # proposals a level before NMS, in training
    rpn_after: Count = 1000  # proposals an image after NMS
    rpn_samples: Count = 256  # anchors an image in the RPN's loss
    roi_samples: Count = 512  # proposals an image in the RoI head's loss
    score_cut: Share = 0.05  # detections below it are dropped
    nms: Annotated[Float, Field(gt=0, le=1)] = 0.5  # IoU, class by class
    detections: Count = 100  # the most an image may have
    rank_by_iou: bool = False  # where there is an IoU branch, its say counts at test too (Eq. 7)

    @check("norm")
    @classmethod
    def _from_nothing(cls, value: str, info: Info) -> str:
        if value == "group" and info.data.get("weights"):
            raise ValueError("group is for training from nothing: set detector.weights to null")
        return value

    @check("frozen_stages")
    @classmethod
    def _learning(cls, value: int | None, info: Info) -> int | None:
        if value and info.data.get("norm") == "group":
            raise ValueError("must be 0 with norm: group, which trains from nothing")
        return value

    @check("anchors")
    @classmethod
    def _levels(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(value) != 5:
            raise ValueError(f"must be 5 sizes, one a level, not {len(value)}")
        ascending(value)
        return value


class Views(Section):
    # short sides in training, one is drawn for every batch
    short: Annotated[Counts, Field(min_length=1)] = tuple(range(480, 801, 32))
    long: Count = 1333  # the most a long side may have
    test: Count = 800  # short side at test
    flip: bool = True
    # [0.5, 1.25]: each image is enlarged or reduced on its canvas by a factor drawn between
    zoom: Numbers | None = None

    @check("long", "test")
    @classmethod
    def _fits(cls, value: int, info: Info) -> int:
        if info.field_name == "long" and value < max(info.data.get("short", [0])):
            raise ValueError(f"must not be less than the largest of short, not {value}")
        if info.field_name == "test" and value > info.data.get("long", value):
            raise ValueError(f"must not be more than long, not {value}")
        return value

    @check("zoom")
    @classmethod
    def _pair(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and len(value) != 2:
            raise ValueError(f"must be two factors, as in [0.5, 1.25], not {len(value)}")
        ascending(value or ())
        return value


USUAL_BATCH = 16  # for which rates are meant


class Training(Section):
    usual_rate: ClassVar[float] = 0.02

    iterations: Count | None = 18_000
    minutes: Positive | None = None  # a budget of time instead; the schedule fits itself to it
    batch: Count = 16  # images an iteration, over all processes
    # learning rate; null: 0.02 for a batch of 16, in proportion for others
    rate: Positive | None = None
    warm_up: Whole = 100  # iterations in which the rate rises
    decay: Numbers = (0.666667, 0.888889)  # shares of the run after which the rate falls to a tenth
    momentum: Share = 0.9
    weight_decay: Annotated[Float, Field(ge=0)] = 1e-4
    clip: Positive | None = None  # the largest norm of the gradient
    # decay of the averaged weights, such as 0.999
    ema: Annotated[Float, Field(gt=0, lt=1)] | None = None
    # iterations by which their memory grows in each; null: it is whole from the first one on, for a
    # start worth remembering
    ema_growth: Positive | None = 0.1
    accumulate: Count = 1  # passes a batch is cut into, to save memory
    bf16: Auto = "auto"  # auto: on CUDA
    save_seconds: Annotated[Float, Field(ge=0)] = 60  # how often the state to go on with is written

    @property
    def learning_rate(self) -> float:
        """A smaller batch is noisier: its steps are as much shorter."""
        return self.rate or self.usual_rate * self.batch / USUAL_BATCH

    @check("minutes")
    @classmethod
    def _one_budget(cls, value: float | None, info: Info) -> float | None:
        not_both("iterations", value, info)
        if value is None and info.data.get("iterations", 1) is None:
            raise ValueError("must be given where iterations is not")
        return value

    @check("decay")
    @classmethod
    def _shares(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if max(value, default=0) > 1:
            raise ValueError(f"must be shares of the run, above 0 and at most 1, not {list(value)}")
        ascending(value)
        return value

    @check("accumulate")
    @classmethod
    def _divides(cls, value: int, info: Info) -> int:
        if info.data.get("batch", 0) % value:
            raise ValueError(f"must divide the batch of {info.data['batch']}, not {value}")
        return value


class Base(Training):
    checkpoint: Place | None = None  # a finished base detector, or its run, instead of training one


class Mine(Section):
    """Offline mining (section 3.2 of the paper; protocol.md, section 3)."""

    given: Place | None = None  # another run, or a pool.json with what lies beside it
    images: Literal["all", "base"] = "all"  # all training images, or those with a base box
    rounds: Count = 1  # 2: re-train, and mine again with what was re-trained
    # short sides at which the detector looks at each image, such as [416, 640]; null: views.test
    short: Annotated[Counts, Field(min_length=1)] | None = None
    cut: Share = 0.05  # the least detector score of a candidate, before calibration
    # a number: Eq. 1, for all classes
    threshold: Annotated[Literal["adaptive"] | float, BeforeValidator(_threshold)] = "adaptive"
    alpha: Float = 1.5  # Eq. 5
    most: Count = 300  # N of the paper: the most that are kept of a class, where it is adaptive
    # more, as long as the mean detector score of the best of a class is this; where it is adaptive
    expected: Share | None = None
    tau: Annotated[Positive, Field(le=1)] = 1.0  # Eq. 3; so scores are at most 1
    # none; a file or a name of torchvision's or timm's
    discriminator: NameOrFile = "none"
    discriminator_short_side: Count = 800
    # boxes are cut out, so many pixels wide and high, and seen one by one, after NMS
    discriminator_crop: Count | None = None
    discriminator_normalisation: Literal["auto", "imagenet", "caffe"] = "auto"
    discriminator_stride_in_1x1: bool = False
    centre: bool = False  # features minus the mean feature of base boxes; of crops they always are
    whiten: bool = False  # features of crops in a space in which base classes are round
    refine: Whole = 0  # so many of the best crops of a class are its prototype, not the shots
    # boxes of a class are stretched alike where that makes crops of them more like the shots
    stretch: bool = False
    drop_on_base: bool = False  # no candidates, nor a teacher's finds, that overlap base boxes
    # none is chosen, nor taken from a teacher, that lies in a better one of its class, or around
    # it; what lies in a taught one is background, whatever online.ignore_candidates says
    drop_nested: bool = False
    detections: Place | None = None  # another tool's on the training images, instead of transfer's
    extra: Place | None = None  # a folder of pictures without annotations, mined too
    extra_most: Count = 100  # N of theirs
    extra_only: bool = False  # the pool is theirs alone: nothing is mined in the training images

    @check("given")
    @classmethod
    def _pool_of_run(cls, value: Path | None) -> Path | None:
        return value / "mine" / "pool.json" if value is not None and is_folder(value) else value


class Mingle(Section):
    """Where the pool joins what the teacher finds (Eq. 6)."""

    rpn: bool = True  # its proposals
    rcnn: bool = True  # its instances
    nms: Literal["class", "agnostic"] = "class"  # agnostic: a better box of another class replaces
    keep_pool: bool = False  # the pool's box stays, however sure the teacher is of its own


class Online(Training):
    """Re-training on base boxes and mined ones."""

    checkpoint: Place | None = None  # a finished detector of this stage instead of training one
    # what it begins as: the backbone's own weights, the base detector with rows for new classes, or
    # the few-shot detector
    start: Literal["weights", "base", "transfer"] = "weights"
    # of the teacher; without one, of what comes out
    ema: Annotated[Float, Field(gt=0, lt=1)] | None = 0.999
    teacher: bool = True  # it goes on mining, and is the detector that comes out
    delta: Share = 0.7  # the least score of what the teacher finds
    # delta rises for classes of which the teacher finds more than the scores of the mined
    # candidates add up to
    adapt_delta: bool = False
    mingle: Mingle = Mingle()
    iou_branch: bool = True  # a teacher's scores know how well a box lies (Eq. 7)
    oracle: bool = False  # all hidden novel boxes in place of the pool: a ceiling, not a method
    strong: bool = True  # strong views
    shots: bool = False  # the K shots are targets too
    repeat: Count = 1  # images with a box of the pool, or a shot, are seen so many times as often
    ignore_candidates: bool = False  # no background loss on candidates that were not chosen
    ignore_above: Share | None = None  # nor on what the teacher finds with such a score or a better
    mined_weight: Annotated[Float, Field(ge=0)] = 1.0  # of the losses on mined boxes
    # box losses on all mined boxes, on the pool's alone, or on none: a teacher that learns where
    # objects end from its own boxes drifts
    mined_boxes: Literal["all", "pool", "none"] = "all"

    @property
    def asks_for_candidates(self) -> str | None:
        """The key that needs candidates.json, if one does."""
        adapts = self.teacher and self.adapt_delta
        if self.oracle or not (self.ignore_candidates or adapts):
            return None
        return "online.ignore_candidates" if self.ignore_candidates else "online.adapt_delta"

    @check("teacher")
    @classmethod
    def _averaged(cls, value: bool, info: Info) -> bool:
        if value and "ema" in info.data and info.data["ema"] is None:
            raise ValueError("needs online.ema, the decay of the teacher's weights")
        return value

    @check("ignore_above")
    @classmethod
    def _middling(cls, value: float | None, info: Info) -> float | None:
        if value is not None and value >= info.data.get("delta", 1):
            raise ValueError(
                f"must be below online.delta, above which boxes are taught, not {value:g}"
            )
        return value


class Tune(Training):
    """The last fine-tuning, of classifier, box and IoU predictors."""

    usual_rate: ClassVar[float] = 0.001

    iterations: Count | None = 4_000
    # learning rate; null: 0.001 for a batch of 16, in proportion for others
    rate: Positive | None = None
    warm_up: Whole = 0
    decay: Numbers = (0.9,)
    # novel: without the shots of base classes; known: with all base boxes of the shots' pictures;
    # none: no fine-tuning, what was re-trained is what comes out
    data: Literal["balanced", "novel", "known", "none"] = "balanced"
    boxes: Literal["learnt", "fixed"] = "learnt"  # box rows of new classes
    short: Counts | None = None  # short sides instead of views.short
    cached: bool = True  # what is frozen is computed once for each view


class Transfer(Training):
    usual_rate: ClassVar[float] = 0.001

    checkpoint: Place | None = None  # a finished few-shot detector instead of training one
    # box rows of new classes begin as random ones (TFA), or as the mean of the base classes', and
    # fixed ones stay so, but for weight decay: one shot teaches more about itself than about where
    # objects end
    boxes: Literal["new", "mean", "fixed"] = "new"
    data: Literal["balanced", "known"] = "balanced"  # known: all base boxes of the shots' pictures
    iterations: Count | None = 4_000
    # learning rate; null: 0.001 for a batch of 16, in proportion for others
    rate: Positive | None = None
    warm_up: Whole = 0  # iterations in which the rate rises
    decay: Numbers = (0.9,)  # as in base
    short: Counts | None = None  # short sides instead of views.short
    cached: bool = True  # what is frozen is computed once for each view
