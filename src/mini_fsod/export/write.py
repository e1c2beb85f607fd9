"""`mini export`: a detector as an ONNX file that gives the same detections."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mini_fsod.detector.model import Detector
from mini_fsod.errors import UserError
from mini_fsod.export.compare import OWN_REDUCTION, ModelComparison, compare
from mini_fsod.export.graph import DetectorGraph
from mini_fsod.export.metadata import INPUT, OUTPUTS, THRESHOLD, describe
from mini_fsod.files import write_bytes
from mini_fsod.labels import LabelMap
from mini_fsod.limits import ONNX_BYTES
from mini_fsod.loader.decode import Bytes
from mini_fsod.loader.schedule import fit, reduced
from mini_fsod.predict.model import Model
from mini_fsod.predict.onnx_model import OnnxModel
from mini_fsod.predict.pictures import Decoded, ImageLike, read_picture
from mini_fsod.predict.torch_model import TorchModel

OPSET = 17  # RoiAlign with half a pixel's offset needs 16
TRACED = (2, 96, 128)  # batch, height, width of the picture that is traced; any other works too
# of the pictures that are made for the comparison where there are no others: height, width
MADE = ((240, 320), (333, 250), (64, 200), (480, 640))
LOW = 0.01  # score threshold of the comparison: many detections, and not none
# of pictures for the reduction in the graph: how many, and up to how many times the detector's view
LARGE, TIMES = 4, 3


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """The ONNX file's detections beside the detector's."""

    same_pixels: ModelComparison  # both get pictures that Pillow has reduced to the view
    own_reduction: ModelComparison  # the file gets larger pictures, and reduces them itself


def write_onnx(path: Path, model: TorchModel, pictures: Sequence[ImageLike]) -> ExportCheck:
    """Write the detector to `path` if it finds in the pictures what the detector finds.

    Nothing is written otherwise: a UserError says how much differs.
    """
    content = to_onnx(model.detector, model.labels)
    if len(content) > ONNX_BYTES:
        raise UserError("The detector is too large for an ONNX file.", "Use a smaller backbone.")
    result = difference(content, path, model, pictures)
    for one, where in ((result.same_pixels, ""), (result.own_reduction, " that the file reduces")):
        if not one.equal:
            raise UserError(
                f"{path}: not written, because onnxruntime and PyTorch disagree. In "
                f"{one.pictures} pictures{where}, PyTorch finds {one.detections} boxes, and "
                f"{one.lone} are found by only one of the two (within {one.tolerance.box:g} pixels "
                f"and {one.tolerance.score:g} of the score).",
                "Some timm backbones cannot be exported: use a ResNet. If it is one, please report "
                "it.",
            )
    write_bytes(path, content)
    return result


def difference(
    content: bytes, path: Path, model: TorchModel, pictures: Sequence[ImageLike]
) -> ExportCheck:
    """The ONNX file's detections beside the detector's, down to low scores."""
    exported = OnnxModel(content, path, "cpu")
    detector, settings = model.detector, model.detector.settings
    low, most = min(LOW, settings.test.score_cut), settings.test.detections
    exported.lower_threshold(low)
    large = larger_than_view(model, pictures)
    bf16, model.bf16 = model.bf16, False  # some processors' default; the file has float32
    detector.settings = replace(settings, test=replace(settings.test, score_cut=low))
    try:
        ours = model.predict(list(pictures), score=0)
        ours_of_large = model.predict(large, score=0)
    finally:
        detector.settings, model.bf16 = settings, bf16
    theirs = exported.predict(list(pictures), score=0)
    theirs_of_large = exported.predict_decoded(
        [Decoded(None, pixels, (pixels.shape[0], pixels.shape[1])) for pixels in large]
    )
    return ExportCheck(
        compare(ours, theirs, low, most),
        compare(ours_of_large, theirs_of_large, low, most, OWN_REDUCTION),
    )


def larger_than_view(model: Model, pictures: Sequence[ImageLike]) -> list[Bytes]:
    """Some of the pictures that are larger than the detector's view, evenly spread, at most TIMES
    as large. Where none is, some are enlarged.
    """
    short, long = model.min_size, model.max_size
    spread = np.linspace(0, len(pictures) - 1, min(LARGE, len(pictures))).astype(np.int64)
    read = [read_picture(pictures[n], TIMES * short, TIMES * long).pixels for n in spread]
    large = [
        pixels
        for pixels in read
        if tuple(reduced(np.array(pixels.shape[:2]), short, long)) != pixels.shape[:2]
    ]
    return large or [
        np.asarray(Image.fromarray(pixels).resize((int(width), int(height))))
        for pixels in read
        for height, width in [1.5 * fit(np.array(pixels.shape[:2]), short, long)]
    ]


def to_onnx(detector: Detector, labels: LabelMap) -> bytes:
    """The ONNX file of a detector on the CPU, with its metadata."""
    onnx = _import_onnx()
    graph = DetectorGraph(detector.eval())
    example = torch.zeros((*TRACED, 3), dtype=torch.uint8)
    content = BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            # The newer exporter cannot trace shapes that depend on data, such as NMS has.
            torch.onnx.export(
                graph,
                (example,),
                content,  # type: ignore[arg-type]  # files are fine too
                dynamo=False,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=list(OUTPUTS),
                dynamic_axes={
                    INPUT: {0: "batch", 1: "height", 2: "width"},
                    **{name: {0: "batch"} for name in OUTPUTS},
                },
            )
    except UserError:
        raise
    except Exception as error:  # the exporter raises anything
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"The detector cannot be exported ({reason}).",
            "Some timm backbones cannot be exported: use a ResNet.",
        ) from error
    proto = onnx.load_from_string(content.getvalue())
    test = detector.settings.test
    about = describe(
        labels,
        min_size=test.min_size,
        max_size=test.max_size,
        score_threshold=test.score_cut,
        nms_iou=test.nms,
        max_detections=test.detections,
    )
    onnx.helper.set_model_props(proto, about)
    _describe_shapes(onnx, proto, test.detections)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def made_pictures() -> list[Bytes]:
    """Pictures of several sizes, always the same: coloured rectangles on a rough background."""
    random = np.random.RandomState(0)
    made = []
    for height, width in MADE:
        rough = random.randint(0, 256, (height // 16 + 1, width // 16 + 1, 3)).astype(np.uint8)
        picture = np.kron(rough, np.ones((16, 16, 1), dtype=np.uint8))[:height, :width] // 2 + 64
        for _ in range(8):
            top, left = random.randint(0, height - 30), random.randint(0, width - 30)
            tall, wide = random.randint(20, height), random.randint(20, width)
            picture[top : top + tall, left : left + wide] = random.randint(0, 256, 3)
        made.append(picture)
    return made


def _describe_shapes(onnx: Any, proto: Any, detections: int) -> None:
    """The score threshold becomes an input with a default; outputs get their fixed sides."""
    helper, kinds = onnx.helper, onnx.TensorProto
    names = {tensor.name for tensor in proto.graph.initializer}
    if THRESHOLD not in names:
        raise UserError("The exported graph has no score threshold.", "Please report it.")
    threshold = helper.make_tensor_value_info(THRESHOLD, kinds.FLOAT, [])
    proto.graph.input.append(threshold)
    shapes = {
        "boxes": (kinds.FLOAT, ["batch", detections, 4]),
        "scores": (kinds.FLOAT, ["batch", detections]),
        "labels": (kinds.INT64, ["batch", detections]),
        "count": (kinds.INT64, ["batch"]),
    }
    del proto.graph.output[:]
    proto.graph.output.extend(
        helper.make_tensor_value_info(name, *shapes[name]) for name in OUTPUTS
    )


def _import_onnx() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
    except ImportError:
        raise UserError(
            "The package onnx is not installed.", 'Run: pip install "mini-fsod[onnx]"'
        ) from None
    return onnx
