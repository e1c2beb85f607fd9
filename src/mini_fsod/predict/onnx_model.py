"""A detector from the file of `mini export`, run by onnxruntime. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.errors import UserError
from mini_fsod.export.metadata import INPUT, OUTPUTS, THRESHOLD, parse
from mini_fsod.files import is_file, read_bytes
from mini_fsod.limits import ONNX_BYTES
from mini_fsod.loader.decode import cores
from mini_fsod.predict.model import Found, Model
from mini_fsod.predict.pictures import Decoded

MOST_PIXELS = 1e7  # of a box's corner
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxModel(Model):
    """A detector in an ONNX file."""

    def __init__(self, content: bytes, source: Path, device: str = "auto") -> None:
        runtime = _import_runtime()
        provider, options = _provider(runtime, device)
        settings = runtime.SessionOptions()
        settings.intra_op_num_threads = cores()
        settings.log_severity_level = 3  # errors only
        try:
            # from memory: such a file cannot name further files
            self._session = runtime.InferenceSession(content, settings, [(provider, options)])
        except Exception as error:  # onnxruntime raises classes of its own on damaged files
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{source}: onnxruntime cannot load it ({reason}).", "Export it again."
            ) from None
        about = parse(str(source), self._session.get_modelmeta().custom_metadata_map)
        inputs = {value.name for value in self._session.get_inputs()}
        outputs = {value.name for value in self._session.get_outputs()}
        if INPUT not in inputs or not {*OUTPUTS} <= outputs:
            raise UserError(f"{source}: its inputs or outputs were changed.", "Export it again.")
        self.source, self.labels = source, about.labels
        self.device = "cpu" if provider == PROVIDERS["cpu"] else f"cuda:{options['device_id']}"
        self.min_size, self.max_size = about.min_size, about.max_size
        self.score_threshold = about.score_threshold
        self._given_threshold: dict[str, Any] = {}

    @classmethod
    def read(cls, path: Path, device: str = "auto") -> OnnxModel:
        if not is_file(path):
            raise UserError(f"{path}: this file does not exist.", "Give a file of `mini export`.")
        try:
            content = read_bytes(path, ONNX_BYTES)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({error.strerror or error}).", "Check its permissions."
            ) from None
        return cls(content, path, device)

    def lower_threshold(self, score: float) -> None:
        """Keep detections down to this score; the file's own threshold is only its default."""
        self.score_threshold = score
        self._given_threshold = {THRESHOLD: np.array(score, dtype=np.float32)}

    def detect(self, pictures: Sequence[Decoded]) -> list[Found]:
        found = []
        for picture in pictures:  # of different sizes
            try:
                boxes, scores, labels = self._first(*self.run(picture.pixels[None]))
            except Exception as error:  # onnxruntime raises classes of its own
                reason = " ".join(str(error).split())[:200]
                raise UserError(
                    f"{self.source}: it does not compute detections ({reason}).", "Export it again."
                ) from None
            # the picture may have been reduced while it was decoded
            height, width = np.array(picture.size) / picture.pixels.shape[:2]
            xyxy = boxes.astype(np.float64) * [width, height, width, height]
            xywh = np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], axis=1)
            found.append((xywh, labels, scores.astype(np.float64)))
        return found

    def _first(self, boxes: Any, scores: Any, labels: Any, count: Any) -> tuple[Any, Any, Any]:
        """The detections in the first picture; a ValueError where they are none of this model."""
        shapes = [(*scores.shape, 4), scores.shape, (1,)]
        kinds = [boxes.dtype.kind, scores.dtype.kind, labels.dtype.kind, count.dtype.kind]
        if [boxes.shape, labels.shape, count.shape] != shapes or kinds != [*"ffii"]:
            raise ValueError("outputs of other shapes or types")
        n = int(count[0])
        if len(scores) != 1 or not 0 <= n <= scores.shape[1]:
            raise ValueError(f"{n} detections in a picture")
        boxes, scores, labels = boxes[0, :n], scores[0, :n], labels[0, :n]
        if not (np.abs(boxes) < MOST_PIXELS).all() or not ((scores >= 0) & (scores <= 1)).all():
            raise ValueError("boxes or scores out of range")
        if not ((labels >= 0) & (labels < len(self.names))).all():
            raise ValueError("a class without a name")
        return boxes, scores, labels

    def run(self, images: Any) -> Any:
        """The file's outputs for images (N, H, W, 3) uint8: boxes, scores, labels, count."""
        return self._session.run(list(OUTPUTS), {INPUT: images, **self._given_threshold})


def _import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UserError(
            "The package onnxruntime is not installed.", 'Run: pip install "mini-fsod[onnx]"'
        ) from None
    return onnxruntime


def _provider(runtime: Any, device: str) -> tuple[str, dict[str, Any]]:
    """onnxruntime's provider of a device, with its options."""
    kind, _, index = device.partition(":")
    available = runtime.get_available_providers()
    if kind == "auto":
        kind = "cuda" if PROVIDERS["cuda"] in available else "cpu"
    if kind not in PROVIDERS or not (index.isdigit() or not index):
        raise UserError(f'There is no device "{device}".', "Use auto, cpu, cuda or cuda:N.")
    if PROVIDERS[kind] not in available:
        raise UserError(
            f"This onnxruntime cannot use {device}.", "Install onnxruntime-gpu, or use cpu."
        )
    return PROVIDERS[kind], {"device_id": index or "0"} if kind == "cuda" else {}
