"""The tiny detector and its ONNX file."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.tiny_detector import LABELS, tiny_detector
from mini_fsod.predict.torch_model import TorchModel


@pytest.fixture(scope="session")
def tiny_onnx() -> bytes:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from mini_fsod.export.write import to_onnx

    return to_onnx(tiny_detector(), LABELS)


@pytest.fixture(scope="session")
def tiny_model() -> TorchModel:
    model = TorchModel(tiny_detector(), LABELS, Path("tiny.safetensors"), "cpu")
    model.bf16 = False  # the default of some processors; the file has float32
    return model
