"""The keys of a configuration, section by section, and what each means.

A stage takes its section as it is: nothing is copied into another type. The comment beside or above
a key describes it in `mini presets --keys` and docs/keys.md; a sentence that starts with
"Change it" is the column "when to change it".
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic import ValidationInfo as Info
from pydantic import field_validator as check

from mini_fsod.config.inputs import Data, DetectorSection, Shots, Views
from mini_fsod.config.values import (
    AdaptiveOrNumber,
    Auto,
    Count,
    DataPath,
    DetectorPath,
    Device,
    Float,
    Fraction,
    Fractions,
    NameOrFile,
    Names,
    NonNegative,
    NonNegativeFloat,
    PoolPath,
    Positive,
    Section,
    Sizes,
    StrongViews,
    UserPath,
)
from mini_fsod.errors import UserError
from mini_fsod.plain_yaml import format_yaml

STAGES = ("base", "transfer", "scan", "mine", "online", "tune")  # in the order in which they run
TRAINED = ("base", "transfer", "online", "tune")  # stages with the keys of `train`
REFERENCE_BATCH = 16  # the batch size that default learning rates are meant for


class Train(Section):
    """Keys shared by all stages that train; each stage may override them: `online.batch: 8`."""

    # images per iteration, over all processes. Change it if memory runs out
    batch: Count = 16
    # iterations in which the learning rate rises. Change it if losses jump at the start
    warm_up: NonNegative = 100
    # fractions of the training after which the learning rate falls to a tenth. Change it only to
    # reproduce other work
    decay: Fractions = (0.666667, 0.888889)
    # weight decay of SGD. Change it only to reproduce other work
    weight_decay: NonNegativeFloat = 1e-4
    # largest norm of the gradient; null: not clipped. Change it to 10 if losses are not finite
    clip: Positive | None = None
    # passes into which a batch is cut. Change it if memory runs out and the batch should stay
    accumulate: Count = 1
    # bfloat16 autocast; auto: on CUDA, and on CPUs with AVX-512 BF16 or AMX. Change it to false if
    # losses are not finite with clip too, or for the same figures on every CPU
    bf16: Auto = "auto"
    # seconds between saved training states. Change it on slow disks
    save_seconds: NonNegativeFloat = 60

    @check("accumulate")
    @classmethod
    def _divides(cls, value: int, info: Info) -> int:
        if info.data.get("batch", 0) % value:
            raise ValueError(f"must divide the batch of {info.data['batch']}, not {value}")
        return value


class Training(Train):
    """Keys that each stage that trains has for itself."""

    reference_rate: ClassVar[float] = 0.02
    cosine: ClassVar[bool] = False  # the rate falls along a cosine, not in the steps of `decay`

    # length of the training. Change it with the number of your images
    iterations: Count | None = 18_000
    # learning rate; null: the stage's default for a batch of 16, in proportion for other sizes.
    # Change it if losses are not finite, or fall slowly
    rate: Positive | None = None

    @property
    def learning_rate(self) -> float:
        """`rate`, or the stage's default in proportion to the batch."""
        return self.rate or self.reference_rate * self.batch / REFERENCE_BATCH

    @property
    def budget_minutes(self) -> float:
        """The time budget; 0 where iterations are given."""
        return 0.0


class TimedTraining(Training):
    """Training with a number of iterations or a time budget."""

    either = ("iterations", "minutes")

    # a time limit for the whole stage instead of iterations, with its start and the scoring of its
    # detector; the schedule is fitted to it. Change it if time is short
    minutes: Positive | None = None

    @property
    def budget_minutes(self) -> float:
        return self.minutes or 0.0

    @check("minutes")
    @classmethod
    def _one_budget(cls, value: float | None, info: Info) -> float | None:
        if value is None and info.data.get("iterations", 1) is None:
            raise ValueError("must be given where iterations is not")
        return value


class Base(TimedTraining):
    """The base detector: base classes alone."""

    # a finished detector instead of training one: a checkpoint, a run, or torchvision's by name, as
    # in torchvision:fasterrcnn_resnet50_fpn. Its classes are the base classes. Change it if your
    # pictures have no labels of base classes
    checkpoint: DetectorPath | None = None
    # classes of base.checkpoint that are no base classes. Change it to learn one of them anew
    drop: Names = ()
    # pictures without labels: detections of base classes with at least this score count as labels,
    # the others as regions to ignore; null: all are ignored. Change it if the given detector is
    # wrong too often
    sure: Fraction | None = 0.7

    @check("drop")
    @classmethod
    def _of_checkpoint(cls, value: tuple[str, ...], info: Info) -> tuple[str, ...]:
        if value and info.data.get("checkpoint") is None:
            raise ValueError("names classes of base.checkpoint, which is not set")
        return value


class Transfer(Training):
    """TFA: predictors for the novel classes, fine-tuned on the K shots."""

    reference_rate: ClassVar[float] = 0.001

    # a finished few-shot detector (a checkpoint or a run) instead of training one. Change it to
    # mine with a detector trained elsewhere
    checkpoint: UserPath | None = None
    # box regression of novel classes: new: starts at random (TFA); mean: starts as the mean of the
    # base classes'; fixed: stays that mean
    boxes: Literal["new", "mean", "fixed"] = "new"
    # balanced: K boxes of every class (TFA); known: all base boxes of the shots' pictures as well
    data: Literal["balanced", "known"] = "balanced"
    # prototypes: mining reads the mean of the detector's score and the similarity to the shots, as
    # in DeFRCN. Change it to mine with another few-shot detector
    calibration: Literal["none", "prototypes"] = "none"
    # fine-tune a second time, with so many of the best mined boxes of each class as further shots;
    # 0: once. Change it to 25 if few objects are found with few shots
    mined_shots: NonNegative = 0
    iterations: Count = 4_000
    warm_up: NonNegative = 0
    decay: Fractions = (0.9,)


class DiscriminatorSection(Section):
    """The network that compares candidates with the shots (section 3.3)."""

    # none, a file, or a name of torchvision or timm, as in resnet50:IMAGENET1K_V1
    weights: NameOrFile = "none"
    short: Count = 800  # short side of its input, before boxes are pooled or cut out
    # resize each box to a square of so many pixels; null: pool its features from the whole picture;
    # file: as a file of `mini pretrain` was trained for, else null
    crop: Literal["file"] | Count | None = "file"
    # weights come from Caffe: BGR input, stride in the 1x1 convolutions. Change it for such a file
    caffe: bool = False
    whiten: bool = False  # whiten features of crops by the covariance within base classes
    # compare with the mean of that many best crops of a class, instead of the shots; 0: the shots
    refine: NonNegative = 0
    # subtract that share of the similarity to the most similar other new class, and mine no box
    # that is more like another; needs refine. Change it to 0.25 if new classes look alike
    compete: Fraction = 0.0

    @check("compete")
    @classmethod
    def _refined(cls, value: float, info: Info) -> float:
        if value and not info.data.get("refine"):
            raise ValueError("needs discriminator.refine, for example 100")
        return value


class Mine(Section):
    """Offline mining (section 3.3)."""

    # a pool mined elsewhere (a run or a pool.json). Change it to train on the pool of another run
    pool: PoolPath | None = None
    # images to mine in: all for training, or those with a base box
    images: Literal["all", "base"] = "all"
    # what may be mined: transfer: what the few-shot detector takes for a novel class; proposals:
    # whatever it sees off base boxes, of any class, that is like the shots. Change it to proposals
    # if candidates reach few novel objects
    candidates: Literal["transfer", "proposals"] = "transfer"
    # short sides at which the detector scans, such as [416, 640]; null: views.test. Change it if
    # novel objects are small
    scan_short: Sizes | None = None
    # least detector score of a candidate, before calibration. Change it if there are too few
    # candidates
    min_score: Fraction = 0.05
    # adaptive: one threshold per class (Eq. 5); a number: the same for all classes (Eq. 1)
    threshold: AdaptiveOrNumber = "adaptive"
    # alpha in Eq. 5: threshold = mean + alpha x deviation. Change it if too few or too many boxes
    # are mined
    alpha: Float = 1.5
    # N of the paper: most boxes mined per class, with the adaptive threshold. Change it if your
    # pictures hold many more objects
    per_class: Count = 300
    # mine more than N boxes of a class while their mean detector score is at least this; null: N
    mean_score: Fraction | None = None
    # temperature in Eq. 3. Change it only to reproduce other work
    tau: Annotated[Positive, Field(le=1)] = 1.0
    # shift and scale the boxes of a class where that makes their crops more like the shots
    box_correction: bool = False
    # the file mobile_sam.pt, weights of MobileSAM: mined boxes end where their objects end. Change
    # it if mined boxes are on the right objects but badly placed
    segmenter: UserPath | None = None
    drop_on_base: bool = False  # drop candidates and boxes of the teacher that overlap base boxes
    # drop boxes inside or around a better one of their class; inside a kept one is background
    drop_nested: bool = False
    # another tool's detections on the training images (COCO results), instead of transfer's.
    # Change it to mine with another few-shot detector
    detections: UserPath | None = None
    # a folder of pictures without annotations, mined too. Change it if you have more pictures
    extra: DataPath | None = None
    # N for mine.extra. Change it with the size of that folder
    extra_per_class: Count = 100
    # mine in mine.extra alone. Change it to measure what the extra pictures bring
    extra_only: bool = False

    @check("mean_score")
    @classmethod
    def _of_novel_classes(cls, value: float | None, info: Info) -> float | None:
        if value is not None and info.data.get("candidates") == "proposals":
            raise ValueError("must be null with mine.candidates: proposals, scores of any class")
        return value

    @check("detections")
    @classmethod
    def _of_one_kind(cls, value: Path | None, info: Info) -> Path | None:
        if value is not None and info.data.get("candidates") == "proposals":
            raise ValueError("replaces mine.candidates: proposals; leave one of them out")
        return value


class Mingle(Section):
    """Mingling of the offline pool with the teacher's boxes (Eq. 6)."""

    rpn: bool = True  # add the pool to the teacher's proposals
    rcnn: bool = True  # add the pool to the teacher's boxes
    # NMS over both: class: class by class; agnostic: across classes. Change it if novel classes are
    # confused with each other
    nms: Literal["class", "agnostic"] = "class"
    keep_pool: bool = False  # boxes of the pool stay, whatever the teacher's scores


class Online(TimedTraining):
    """Re-training on base boxes and mined ones, with a teacher that keeps mining (section 3.4)."""

    # start from the backbone's weights, or from the few-shot detector
    start: Literal["weights", "transfer"] = "weights"
    # images to train on: all; taught: those with a target; no_background: all, without a background
    # loss in images without a target. Change it if mining misses many novel objects
    images: Literal["all", "taught", "no_background"] = "all"
    # a teacher (EMA of the student) mines in every batch, and is the result
    teacher: bool = True
    # EMA decay of the teacher; without a teacher, EMA of the resulting weights
    ema: Annotated[Float, Field(gt=0, lt=1)] | None = 0.999
    ema_warm_up: Positive | None = 1.0  # EMA warm-up rate; null disables the warm-up
    # least score of the teacher's boxes. Change it if the teacher finds too few or too many
    delta: Fraction = 0.7
    mingle: Mingle = Mingle()
    iou_branch: bool = True  # the teacher's scores include the predicted IoU (Eq. 7)
    # beta of the paper: weight of the IoU branch's loss. Change it only to reproduce Appendix C
    iou_beta: NonNegativeFloat = 0.5
    # strong augmentation for the student: true: Unbiased Teacher's, as in the paper; stac: STAC's.
    # Change it to false if novel classes differ by colour alone
    strong: StrongViews = True
    shots: bool = False  # train on the K shots too
    repeat: Count = 1  # times an epoch shows each image with a mined box or a shot
    ignore_candidates: bool = False  # no background loss on candidates that were not mined
    # gamma of the focal loss in the RoI classifier; 0: cross-entropy. Change it only to reproduce
    # Unbiased Teacher
    focal_gamma: NonNegativeFloat = 0.0
    # weight of the losses on mined boxes. Change it if the pool is poor
    mined_weight: NonNegativeFloat = 1.0
    # mined boxes that have a box regression loss: all, those of the pool, or none
    mined_boxes: Literal["all", "pool", "none"] = "all"
    # train on the annotated novel boxes instead of the pool: an upper bound, not a method
    oracle: bool = False

    @property
    def uses_pool(self) -> bool:
        """Whether offline mining is read: an oracle and a teacher without the pool do not."""
        alone = self.teacher and not (self.mingle.rpn or self.mingle.rcnn or self.ignore_candidates)
        return not (self.oracle or alone)

    @check("ema")
    @classmethod
    def _averaged(cls, value: float | None, info: Info) -> float | None:
        if value is None and info.data.get("teacher"):
            raise ValueError("must be a number where online.teacher is true")
        return value


class Tune(Training):
    """The last fine-tuning, on the K shots (section 4.4)."""

    reference_rate: ClassVar[float] = 0.001

    # balanced: K boxes of every class; novel: the novel shots alone; known: all base boxes of the
    # shots' pictures as well; none: no fine-tuning
    data: Literal["balanced", "novel", "known", "none"] = "balanced"
    # predictors: classifier, box and IoU predictors; head: the whole R-CNN head. Change it to head
    # for COCO, as the paper does
    part: Literal["predictors", "head"] = "predictors"
    iterations: Count = 4_000
    warm_up: NonNegative = 0
    decay: Fractions = (0.9,)


class Config(Section):
    # seed of training and new weights; shots have another. Change it to measure the spread of runs
    seed: NonNegative = 0
    # auto (the first GPU, or the CPU), cpu, cuda or cuda:1. Change it to choose a GPU
    device: Device = "auto"
    # the run's detector.safetensors has the novel classes alone. Change it if you need no others
    only_novel: bool = False
    data: Data = Data()
    shots: Shots = Shots()
    detector: DetectorSection = DetectorSection()
    views: Views = Views()
    train: Train = Train()
    base: Base = Base()
    transfer: Transfer = Transfer()
    discriminator: DiscriminatorSection = DiscriminatorSection()
    mine: Mine = Mine()
    online: Online = Online()
    tune: Tune = Tune()

    def ready(self) -> None:
        """Raise UserError if keys are missing that a run needs and that have no default."""
        missing, examples = [], []
        if self.data.root is None:
            missing.append("data.root")
            examples.append("--set data.root=FOLDER")
        if self.data.split is None and not self.data.novel:
            missing.append("data.split or data.novel")
            examples.append("--set data.split=voc-split1 (or data.novel=bird,bus)")
        if missing:
            raise UserError(
                f"The configuration lacks {' and '.join(missing)}.",
                f"Add {' '.join(examples)}. For your own photos, `mini init PHOTOS --boxes FILE` "
                "writes a whole configuration.",
            )

    def to_yaml(self) -> str:
        """Every key with its value; stages omit what equals `train`. `load.resolve` reads it."""
        table = self.model_dump(mode="json")
        for stage in TRAINED:
            for name, shared in table["train"].items():
                if table[stage][name] == shared:
                    del table[stage][name]
        return format_yaml(table)
