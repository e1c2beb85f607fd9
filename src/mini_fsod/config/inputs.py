"""The keys that say what a run is given: its data, the shots, the network, and the sizes of images.

Comments are the text of the reference, as in schema.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic import ValidationInfo as Info
from pydantic import field_validator as check

from mini_fsod.config.values import (
    Anchors,
    Count,
    DataPath,
    Float,
    Fraction,
    Interval,
    NameOrFile,
    Names,
    NonNegative,
    Section,
    Sizes,
    SplitName,
    UserPath,
)


class Data(Section):
    either = ("split", "novel")

    # the data set: anything `mini check` can read, or a URL of object storage such as s3://bucket/voc
    root: DataPath | None = None
    # folder of its pictures; null: beside the annotations. Change it for exports without pictures
    pictures: DataPath | None = None
    split: SplitName | None = None  # a split known by name, such as voc-split1
    novel: Names = ()  # the novel classes, instead of a split
    # image set to train on; null: trainval or train. Change it if your sets have other names
    train: str | None = None
    # image set to score on; null: test, else val. Change it if your sets have other names
    test: str | None = None
    # most pictures of the test set to score on, the same ones in every run; null: all. Change it
    # if scoring takes long
    test_most: Count | None = None
    # pictures beside those of the annotations, which do not list them, count as pictures without
    # labels; needs base.checkpoint. Change it to true if only some of your pictures are annotated
    unlisted: bool = False
    # a novel class: training images that show it are left out, its shots stay. Change it to learn a
    # class that the training images do not show (the paper's Appendix B)
    leave_out: str | None = None
    metric: Literal["voc07", "voc", "coco"] = "voc07"  # AP as VOC 2007, VOC 2010 or COCO has it
    # folder of decoded pictures; null: ~/.cache/mini. Change it if your home folder is small
    cache: UserPath | None = None
    # resident: all pictures on the device; stream: decoded as needed. Change it if memory runs out
    loading: Literal["auto", "resident", "stream"] = "auto"


class Shots(Section):
    either = ("official", "file")

    # boxes of each class; null: as many as shots.file has of each
    k: Count | None = 1
    # which random sample of the shots; training has its own seed. Change it to repeat a run with
    # other shots
    seed: NonNegative = 0
    # published lists of shots instead of a random sample: voc, coco, or a file of lists
    official: NameOrFile | None = None
    # your own shots: a file of `mini sample`, or any data set with boxes of the novel classes.
    # Change it to choose the shots yourself
    file: UserPath | None = None
    # folder of the pictures in shots.file; null: beside it. Change it if they lie elsewhere
    root: UserPath | None = None
    subset: str | None = None  # image set to sample from; null: data.train

    @check("file")
    @classmethod
    def _gives_k(cls, value: Path | None, info: Info) -> Path | None:
        if value is None and info.data.get("k", 1) is None:
            raise ValueError("must be given where shots.k is null")
        return value


class DetectorSection(Section):
    backbone: str = "resnet50"  # resnet18 to resnet152, or a timm model
    # pretrained backbone: a name torchvision or timm knows, or a file; null: random weights
    weights: NameOrFile | None = None
    # frozen: frozen BatchNorm; group: GroupNorm, the only one that trains from random weights
    norm: Literal["frozen", "group"] = "frozen"
    # weights come from Caffe: BGR input, stride in the 1x1 convolutions. Change it for such a file
    caffe: bool = False
    # frozen stages of the backbone: 0 none, 1 stem, 2 stem and res2, ... 5 all; null: 2 with
    # weights, else 0. Change it to 0 if your pictures are unlike photographs and you have many
    frozen_stages: Annotated[NonNegative, Field(le=5)] | None = None
    anchors: Anchors = (32, 64, 128, 256, 512)  # anchor size of each pyramid level, P2 to P6
    fpn_channels: Count = 256  # channels of the feature pyramid
    head_width: Count = 1024  # width of the RoI head's two layers
    rpn_pre_nms: Count = 2000  # proposals per pyramid level before NMS, in training
    rpn_post_nms: Count = 1000  # proposals per image after NMS
    rpn_samples: Count = 256  # anchors per image in the RPN loss
    roi_samples: Count = 512  # proposals per image in the RoI head's loss
    # detections with a lower score are dropped. Change it to 0.001 for the last tenth of COCO's AP
    score_threshold: Fraction = 0.05
    # IoU threshold of the class-wise NMS. Change it if objects of a class overlap much
    nms_iou: Annotated[Float, Field(gt=0, le=1)] = 0.5
    # most detections per image. Change it if your pictures hold more objects than that
    max_detections: Count = 100
    # multiply scores by the IoU branch's at test too (Eq. 7). Change it if boxes that fit rank
    # below boxes that do not
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


class Views(Section):
    # short sides in training; one is drawn for every batch
    short: Sizes = tuple(range(480, 801, 32))
    long: Count = 1333  # largest long side
    test: Count = 800  # short side at test
    flip: bool = True  # horizontal flips in training
    # [0.5, 1.25]: each image is scaled on its canvas by a factor drawn from this range
    zoom: Interval | None = None
    few_shot: Sizes | None = None  # short sides in the stages transfer and tune; null: short

    @check("long", "test")
    @classmethod
    def _fits(cls, value: int, info: Info) -> int:
        if info.field_name == "long" and value < max(info.data.get("short", [0])):
            raise ValueError(f"must not be less than the largest of short, not {value}")
        if info.field_name == "test" and value > info.data.get("long", value):
            raise ValueError(f"must not be more than long, not {value}")
        return value
