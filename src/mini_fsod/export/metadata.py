"""What an ONNX file says about itself: classes, sizes, thresholds, input and outputs.

The key "mini" holds JSON that `predict.onnx_model` reads; the other keys are for people and for
other programs. Does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from mini_fsod import __version__
from mini_fsod.data.text import is_text
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap
from mini_fsod.state_files import Count, Finite, Kind, check_kind

FORMAT = 1
INPUT, OUTPUTS = "images", ("boxes", "scores", "labels", "count")
THRESHOLD = "score_threshold"

EXPLAINED = {
    "input": "images: uint8 [batch, height, width, 3], RGB, of any size; all pictures of a batch "
    "have one size. Resizing and normalisation are in the graph.",
    "outputs": "boxes: float32 [batch, detections, 4], left, top, right, bottom in pixels of the "
    "input; scores: float32 [batch, detections], best first; labels: int64 [batch, detections], "
    "index of names; count: int64 [batch], how many are real, the rest is padding (label -1). "
    "NMS is in the graph.",
    "score_threshold": "an optional input, float32 [], lower scores are dropped",
}


class OnnxMetadata(Kind):
    """The JSON under the key "mini"."""

    format: Count
    version: str  # of mini
    base: list[str]
    novel: list[str]
    min_size: Annotated[Count, Field(ge=1)]
    max_size: Annotated[Count, Field(ge=1)]
    score_threshold: Finite
    nms_iou: Finite
    max_detections: Count

    @property
    def labels(self) -> LabelMap:
        return LabelMap(tuple(self.base), tuple(self.novel))


def describe(labels: LabelMap, **settings: float) -> dict[str, str]:
    """The metadata of a file; `settings` are the numbers of `OnnxMetadata`."""
    names = {"base": list(labels.base), "novel": list(labels.novel)}
    about = {"format": FORMAT, "version": __version__, **names, **settings}
    return {
        "mini": json.dumps(about, ensure_ascii=False, allow_nan=False),
        "names": json.dumps(list(labels.classes), ensure_ascii=False),
        **EXPLAINED,
    }


def parse(name: str, metadata: Mapping[str, str]) -> OnnxMetadata:
    """The content of the key "mini"; UserError if `mini` did not write the file of this name."""
    if "mini" not in metadata:
        raise UserError(
            f"{name}: an ONNX file, but not one of `mini export`.",
            "Give a file that `mini export RUN` wrote.",
        )
    try:
        content = json.loads(metadata["mini"])
        if check_kind(content, _Format)["format"] > FORMAT:
            raise UserError(f"{name}: written by a newer mini.", "Update mini.")
        found = OnnxMetadata.model_validate(check_kind(content, OnnxMetadata))
        names = found.labels.classes
        if not names or len({*names}) < len(names) or not all(map(is_text, names)):
            raise ValueError("class names are missing, not text, or there twice")
        return found
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{name}: its metadata cannot be read ({str(error)[:200]}).", "Export it again."
        ) from None


class _Format(Kind):
    format: Count
