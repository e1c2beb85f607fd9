"""Loading a detector, whatever it was saved as. Imports torch only for what needs it."""

from __future__ import annotations

from pathlib import Path

from mini_fsod.predict.model import Model


def load_model(path: str | Path, device: str = "auto") -> Model:
    """The detector of a run's folder, of a checkpoint, or of an ONNX file.

    `device` is auto (the first GPU, or the CPU), cpu, cuda or cuda:1. An ONNX file needs
    onnxruntime (`pip install "mini-fsod[onnx]"`), and torch is not imported for it.
    """
    path = Path(path)
    if path.suffix.lower() == ".onnx":
        from mini_fsod.predict.onnx_model import OnnxModel

        return OnnxModel.read(path, device)
    from mini_fsod.predict.torch_model import TorchModel

    return TorchModel.read(path, device)
