"""Faster R-CNN with torchvision's maths, over whole padded batches. Start reading at `model.py`."""

from mini_fsod.detector.batch import (
    Detections,
    PaddedBoxes,
    Proposals,
    Regions,
    RoIOutputs,
    Samples,
    ScoredProposals,
    Targets,
    pad_targets,
)
from mini_fsod.detector.convert import from_torchvision
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.postprocess import select
from mini_fsod.detector.settings import (
    CAFFE,
    IMAGENET,
    BackboneSettings,
    DetectorSettings,
    Normalisation,
    RoISettings,
    RPNSettings,
    TestSettings,
)

__all__ = [
    "CAFFE",
    "IMAGENET",
    "BackboneSettings",
    "Detections",
    "Detector",
    "DetectorSettings",
    "Normalisation",
    "PaddedBoxes",
    "Proposals",
    "RPNSettings",
    "Regions",
    "RoIOutputs",
    "RoISettings",
    "Samples",
    "ScoredProposals",
    "Targets",
    "TestSettings",
    "build",
    "from_torchvision",
    "pad_targets",
    "select",
]
