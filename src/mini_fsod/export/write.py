"""`mini export`: a detector as an ONNX file that gives the same detections."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mini_fsod.detector.model import Detector
from mini_fsod.errors import UserError
from mini_fsod.export.compare import ModelComparison, compare
from mini_fsod.export.graph import DetectorGraph
from mini_fsod.export.metadata import INPUT, OUTPUTS, THRESHOLD, describe
from mini_fsod.files import write_bytes
from mini_fsod.labels import LabelMap
from mini_fsod.limits import ONNX_BYTES
from mini_fsod.loader.decode import Bytes
from mini_fsod.predict.onnx_model import OnnxModel
from mini_fsod.predict.pictures import ImageLike
from mini_fsod.predict.torch_model import TorchModel

OPSET = 17  # RoiAlign with half a pixel's offset needs 16
TRACED = (2, 96, 128)  # batch, height, width of the picture that is traced; any other works too
# of the pictures that are made for the comparison where there are no others: height, width
MADE = ((240, 320), (333, 250), (64, 200), (480, 640))
LOW = 0.01  # score threshold of the comparison: many detections, and not none


def write_onnx(path: Path, model: TorchModel, pictures: Sequence[ImageLike]) -> ModelComparison:
    """Write the detector to `path` if it finds in the pictures what the detector finds.

    Nothing is written otherwise: a UserError says how much differs.
    """
    content = to_onnx(model.detector, model.labels)
    if len(content) > ONNX_BYTES:
        raise UserError("The detector is too large for an ONNX file.", "Use a smaller backbone.")
    result = difference(content, path, model, pictures)
    if not result.equal:
        raise UserError(
            f"{path}: not written, because onnxruntime and PyTorch disagree. In {result.pictures} "
            f"pictures, {result.lone} of {result.detections} detections are found by only one of "
            "the two, within half a pixel and 0.001 of the score.",
            "Some timm backbones cannot be exported: use a ResNet. If it is one, please report it.",
        )
    write_bytes(path, content)
    return result


def difference(
    content: bytes, path: Path, model: TorchModel, pictures: Sequence[ImageLike]
) -> ModelComparison:
    """The ONNX file's detections beside the detector's, down to low scores."""
    exported = OnnxModel(content, path, "cpu")
    detector, settings = model.detector, model.detector.settings
    low = min(LOW, settings.test.score_cut)
    exported.lower_threshold(low)
    bf16, model.bf16 = model.bf16, False  # some processors' default; the file has float32
    detector.settings = replace(settings, test=replace(settings.test, score_cut=low))
    try:
        ours = model.predict(list(pictures), score=0)
    finally:
        detector.settings, model.bf16 = settings, bf16
    theirs = exported.predict(list(pictures), score=0)
    return compare(ours, theirs, low, settings.test.detections)


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
