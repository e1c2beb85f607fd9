"""The keys of a configuration, section by section, and what each means.

A section is what its stage takes: nothing is copied into another type. The comment beside or above a
key is what `mini presets --keys` prints of it; the part after "Change it" is the reference's column
"when to change it".
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

REFERENCE_BATCH = 16  # the batch size that default learning rates are meant for


def _threshold(value: Any) -> Any:
    with suppress(ValueError, TypeError):
        if value == "adaptive" or (not isinstance(value, bool) and 0 <= float(value) <= 1):
            return value
    raise ValueError(f"must be adaptive or a number from 0 to 1, not {shown(value)}")


class Data(Section):
    root: Place | None = None  # the data set: anything `mini check` can read
    split: str | None = None  # a split known by name, such as voc-split1
    novel: Names = ()  # the novel classes, instead of a split
    # image set to train on; null: trainval or train. Change it if your sets have other names
    train: str | None = None
    # image set to score on; null: test, else val. Change it if your sets have other names
    test: str | None = None
    metric: Literal["voc07", "voc", "coco"] = "voc07"  # AP as VOC 2007, VOC 2010 or COCO has it
    # folder of decoded pictures; null: ~/.cache/mini. Change it if your home is small
    cache: Place | None = None
    # resident: all pictures on the device; stream: decoded as needed. Change it if memory runs out
    loading: Literal["auto", "resident", "stream"] = "auto"

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
    seed: Whole = 0  # which sample of the shots; training has its own seed
    # the field's published lists instead of a random draw: voc, or a file of lists
    official: NameOrFile | None = None
    # your own shots: written by `mini sample`, or any data set with boxes of the new classes
    file: Place | None = None
    subset: str | None = None  # image set to draw from; null: data.train

    @check("file")
    @classmethod
    def _one(cls, value: Path | None, info: Info) -> Path | None:
        not_both("official", value, info)
        return value


class Detector(Section):
    backbone: str = "resnet50"  # resnet18 to resnet152, or a timm model
    # pretrained backbone: a name torchvision or timm knows, or a file; null: random weights
    weights: NameOrFile | None = None
    # frozen: frozen BatchNorm; group: GroupNorm, the only one that trains from random weights
    norm: Literal["frozen", "group"] = "frozen"
    # weights come from Caffe: BGR input, stride in the 1x1 convolutions. Change it for such a file
    caffe: bool = False
    # frozen stages: 0 none, 1 stem, 2 stem and res2, ... 5 all; null: 2 with weights, else 0.
    # Change it to 0 if your pictures are unlike photographs and you have many
    frozen_stages: Annotated[Whole, Field(le=5)] | None = None
    anchors: Numbers = (32, 64, 128, 256, 512)  # anchor size of each pyramid level, P2 to P6
    fpn_channels: Count = 256  # channels of the feature pyramid
    head_width: Count = 1024  # width of the RoI head's two layers
    rpn_pre_nms: Count = 2000  # proposals per level before NMS, in training
    rpn_post_nms: Count = 1000  # proposals per image after NMS
    rpn_samples: Count = 256  # anchors per image in the RPN loss
    roi_samples: Count = 512  # proposals per image in the RoI head's loss
    # detections below it are dropped. Change it to 0.001 for the last tenth of COCO's AP
    score_threshold: Share = 0.05
    # IoU of the class-wise NMS. Change it if objects of a class overlap much
    nms_iou: Annotated[Float, Field(gt=0, le=1)] = 0.5
    # most detections per image. Change it if pictures hold more objects than that
    max_detections: Count = 100
    # rank by the IoU branch at test too (Eq. 7). Change it if boxes are right but badly ranked
    rank_by_iou: bool = False

    @check("norm")
    @classmethod
    def _from_nothing(cls, value: str, info: Info) -> str:
        if value == "group" and info.data.get("weights"):
            raise ValueError(
                "group is for training from random weights: set detector.weights to null"
            )
        return value

    @check("frozen_stages")
    @classmethod
    def _trainable(cls, value: int | None, info: Info) -> int | None:
        if value and info.data.get("norm") == "group":
            raise ValueError("must be 0 with norm: group, which trains from random weights")
        return value

    @check("anchors")
    @classmethod
    def _levels(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(value) != 5:
            raise ValueError(f"must be 5 sizes, one per pyramid level, not {len(value)}")
        ascending(value)
        return value


class Views(Section):
    # short sides in training; one is drawn for every batch
    short: Annotated[Counts, Field(min_length=1)] = tuple(range(480, 801, 32))
    long: Count = 1333  # largest long side
    test: Count = 800  # short side at test
    flip: bool = True  # horizontal flips in training
    # [0.5, 1.25]: each image is scaled on its canvas by a factor drawn from this range
    zoom: Numbers | None = None
    few_shot: Counts | None = None  # short sides in the stages transfer and tune; null: short

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


class Train(Section):
    """Keys shared by all stages that train; each stage may override them: `online.batch: 8`."""

    # images per iteration, over all processes. Change it if memory runs out
    batch: Count = 16
    warm_up: Whole = 100  # iterations in which the learning rate rises
    # shares of the run after which the learning rate falls to a tenth
    decay: Numbers = (0.666667, 0.888889)
    # momentum of SGD. Change it only to reproduce other work
    momentum: Share = 0.9
    # Change it only to reproduce other work
    weight_decay: Annotated[Float, Field(ge=0)] = 1e-4
    clip: Positive | None = None  # largest norm of the gradient; null: not clipped
    # passes that a batch is cut into. Change it if memory runs out and the batch should stay
    accumulate: Count = 1
    # bfloat16 autocast; auto: on CUDA. Change it to false if losses are not finite
    bf16: Auto = "auto"
    # seconds between saved training states. Change it on slow disks
    save_seconds: Annotated[Float, Field(ge=0)] = 60

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


class Training(Train):
    """What every stage that trains has of its own."""

    reference_rate: ClassVar[float] = 0.02

    iterations: Count | None = 18_000  # length of the training
    minutes: Positive | None = None  # a time budget instead; the schedule fits itself to it
    # learning rate; null: the stage's usual one for a batch of 16, in proportion for others
    rate: Positive | None = None

    @property
    def learning_rate(self) -> float:
        """In proportion to the batch: the gradient of a smaller one is noisier."""
        return self.rate or self.reference_rate * self.batch / REFERENCE_BATCH

    @check("minutes")
    @classmethod
    def _one_budget(cls, value: float | None, info: Info) -> float | None:
        not_both("iterations", value, info)
        if value is None and info.data.get("iterations", 1) is None:
            raise ValueError("must be given where iterations is not")
        return value


class Base(Training):
    """The base detector: base classes alone."""

    # a finished base detector, or a run, instead of training one
    checkpoint: Place | None = None


class Transfer(Training):
    """TFA: rows for the novel classes, then fine-tuning of the predictors on the K shots."""

    reference_rate: ClassVar[float] = 0.001

    # a finished few-shot detector, or a run, instead of training one
    checkpoint: Place | None = None
    # box regression of novel classes: new: random start (TFA); mean: starts as the mean of the base
    # classes'; fixed: that mean, never trained
    boxes: Literal["new", "mean", "fixed"] = "new"
    # balanced: K boxes of every class (TFA); known: all base boxes of the shots' pictures as well
    data: Literal["balanced", "known"] = "balanced"
    iterations: Count | None = 4_000
    warm_up: Whole = 0
    decay: Numbers = (0.9,)


class Discriminator(Section):
    """The network that compares candidates with the shots (section 3.2)."""

    # none, a file, or a name of torchvision's or timm's, as in resnet50:IMAGENET1K_V1
    weights: NameOrFile = "none"
    short: Count = 800  # short side of the pictures it sees
    # cut boxes out and resize them to so many pixels; null: pool features of the whole picture
    crop: Count | None = None
    # weights come from Caffe: BGR input, stride in the 1x1 convolutions. Change it for such a file
    caffe: bool = False
    whiten: bool = False  # whiten features of crops by the covariance within base classes
    # compare with the mean of so many of the best crops of a class instead of the shots; 0: shots
    refine: Whole = 0


class Mine(Section):
    """Offline mining (section 3.2)."""

    # a pool mined elsewhere: a run, or a pool.json. Change it to train on a pool of another tool
    pool: Place | None = None
    images: Literal["all", "base"] = "all"  # all training images, or those with a base box
    # short sides at which the detector scans, such as [416, 640]; null: views.test. Change it if
    # the new objects are small
    scan_short: Annotated[Counts, Field(min_length=1)] | None = None
    # least detector score of a candidate, before calibration. Change it if candidates are too few
    min_score: Share = 0.05
    # adaptive: Eq. 5; a number: the same threshold for all classes (Eq. 1)
    threshold: Annotated[Literal["adaptive"] | float, BeforeValidator(_threshold)] = "adaptive"
    # Eq. 5: delta = mean + alpha x deviation. Change it if too few or too many boxes are mined
    alpha: Float = 1.5
    # N of the paper: most boxes kept of a class, with the adaptive threshold. Change it if your
    # pictures hold many more objects
    per_class: Count = 300
    # keep more than N of a class as long as their mean detector score is at least this
    mean_score: Share | None = None
    # Eq. 3. Change it only to reproduce other work
    tau: Annotated[Positive, Field(le=1)] = 1.0
    # correct the boxes of a class where that makes their crops more like the shots
    box_correction: bool = False
    drop_on_base: bool = False  # drop candidates and teacher's boxes that overlap base boxes
    # drop boxes inside or around a better one of their class; what lies in a kept one is background
    drop_nested: bool = False
    # another tool's detections on the training images (COCO results), instead of transfer's.
    # Change it to mine with another few-shot detector
    detections: Place | None = None
    # a folder of pictures without annotations, mined too. Change it if you have more pictures
    extra: Place | None = None
    # N for mine.extra. Change it with the size of that folder
    extra_per_class: Count = 100
    # mine in mine.extra alone. Change it to measure what the extra pictures bring
    extra_only: bool = False

    @check("pool")
    @classmethod
    def _pool_of_run(cls, value: Path | None) -> Path | None:
        return value / "pool.json" if value is not None and is_folder(value) else value


class Mingle(Section):
    """How the offline pool joins what the teacher finds (Eq. 6)."""

    rpn: bool = True  # the pool joins the teacher's proposals
    rcnn: bool = True  # the pool joins the teacher's boxes
    # NMS over both: class: class by class; agnostic: a better box of another class wins. Change it
    # if new classes are confused with each other
    nms: Literal["class", "agnostic"] = "class"
    keep_pool: bool = False  # a box of the pool stays, whatever the teacher's score


class Online(Training):
    """Re-training on base boxes and mined ones, with a teacher that mines on (section 3.3)."""

    # start from the backbone's weights, or from the few-shot detector
    start: Literal["weights", "transfer"] = "weights"
    # images to train on: all; taught: those with a target; no_background: all, but no background
    # loss in images without a target
    images: Literal["all", "taught", "no_background"] = "all"
    teacher: bool = True  # the teacher mines on, and is the detector that comes out
    # EMA decay of the teacher; without a teacher, of the weights that come out
    ema: Annotated[Float, Field(gt=0, lt=1)] | None = 0.999
    ema_warm_up: Positive | None = 1.0  # EMA warm-up rate; null disables the warm-up
    delta: Share = 0.7  # least score of the teacher's boxes
    mingle: Mingle = Mingle()
    iou_branch: bool = True  # scores of the teacher count how well a box fits (Eq. 7)
    # beta: weight of the IoU branch's loss. Change it only to reproduce Appendix C
    iou_beta: Annotated[Float, Field(ge=0)] = 0.5
    strong: bool = True  # strong augmentation for the student
    shots: bool = False  # train on the K shots too
    repeat: Count = 1  # how often an epoch shows images with a mined box or a shot
    ignore_candidates: bool = False  # no background loss on candidates that were not chosen
    # weight of the losses on mined boxes. Change it if the pool is poor
    mined_weight: Annotated[Float, Field(ge=0)] = 1.0
    # mined boxes with a box regression loss: all, those of the pool, or none
    mined_boxes: Literal["all", "pool", "none"] = "all"
    # train on all hidden novel boxes instead of the pool: a ceiling, not a method
    oracle: bool = False

    @check("ema")
    @classmethod
    def _averaged(cls, value: float | None, info: Info) -> float | None:
        if value is None and info.data.get("teacher"):
            raise ValueError("must be a number where online.teacher is true")
        return value


class Tune(Training):
    """The last fine-tuning, on the K shots (section 3.3)."""

    reference_rate: ClassVar[float] = 0.001

    # balanced: K boxes of every class; novel: the novel shots alone; known: all base boxes of the
    # shots' pictures as well; none: no fine-tuning
    data: Literal["balanced", "novel", "known", "none"] = "balanced"
    # predictors: classifier, box and IoU predictors; head: the whole R-CNN head (the paper, COCO)
    part: Literal["predictors", "head"] = "predictors"
    # box regression of novel classes: trained, or left as it is
    boxes: Literal["trained", "fixed"] = "trained"
    iterations: Count | None = 4_000
    warm_up: Whole = 0
    decay: Numbers = (0.9,)


class Config(Section):
    seed: Whole = 0  # of training and of new weights; shots have their own
    # auto, cpu, cuda, cuda:1. Change it to choose a GPU
    device: str = "auto"
    data: Data = Data()
    shots: Shots = Shots()
    detector: Detector = Detector()
    views: Views = Views()
    train: Train = Train()
    base: Base = Base()
    transfer: Transfer = Transfer()
    discriminator: Discriminator = Discriminator()
    mine: Mine = Mine()
    online: Online = Online()
    tune: Tune = Tune()
