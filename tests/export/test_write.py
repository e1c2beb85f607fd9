"""Writing an ONNX file: what is in it, and that no wrong one is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.tiny_detector import LABELS, tiny_detector, write_photos
from mini_fsod import __version__, checkpoint
from mini_fsod.errors import UserError
from mini_fsod.export import write
from mini_fsod.export.graph import DetectorGraph
from mini_fsod.export.resize import resized_canvas
from mini_fsod.export.write import larger_than_view, made_pictures, to_onnx, write_onnx
from mini_fsod.predict.onnx_model import OnnxModel
from mini_fsod.predict.torch_model import TorchModel


def test_onnx_file_describes_itself(tiny_onnx: bytes) -> None:
    import onnx

    proto = onnx.load_from_string(tiny_onnx)
    about = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(about["names"]) == ["car", "bus", "bird"]
    assert json.loads(about["mini"]) == {
        "format": 1, "version": __version__, "base": ["car", "bus"], "novel": ["bird"],
        "min_size": 64, "max_size": 96, "score_threshold": 0.05, "nms_iou": 0.5,
        "max_detections": 20,
    }  # fmt: skip
    assert about["input"].startswith("images: uint8 [batch, height, width, 3], RGB")

    def shape(value: Any) -> list[Any]:
        return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]

    graph = proto.graph
    assert {v.name: shape(v) for v in graph.input} == {
        "images": ["batch", "height", "width", 3], "score_threshold": [],
    }  # fmt: skip
    assert {v.name: shape(v) for v in graph.output} == {
        "boxes": ["batch", 20, 4], "scores": ["batch", 20], "labels": ["batch", 20],
        "count": ["batch"],
    }  # fmt: skip
    domains = {opset.domain for opset in proto.opset_import}
    assert domains <= {"", "ai.onnx"}  # no operators of a vendor


def test_write_onnx_compares_and_writes(tmp_path: Path, tiny_model: TorchModel) -> None:
    result = write_onnx(tmp_path / "a" / "tiny.onnx", tiny_model, made_pictures())
    for one in (result.same_pixels, result.own_reduction):
        assert one.equal
        assert one.pictures == 4
        assert one.detections == 80
        assert one.lone == 0
    assert tiny_model.detector.settings.test.score_cut == 0.05  # as before
    model = OnnxModel.read(tmp_path / "a" / "tiny.onnx")
    assert model.score_threshold == 0.05
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["tiny.onnx"]


def test_write_onnx_refuses_a_file_that_finds_something_else(
    tmp_path: Path, tiny_model: TorchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an exporter would that drops a part of the preprocessing."""

    class Wrong(DetectorGraph):
        def forward(self, images: torch.Tensor) -> Any:
            return super().forward(images.flip(3))  # BGR

    target = tmp_path / "tiny.onnx"
    target.write_bytes(b"before")
    monkeypatch.setattr(write, "DetectorGraph", Wrong)
    with pytest.raises(UserError, match=r"not written, because onnxruntime and PyTorch disagree"):
        write_onnx(target, tiny_model, made_pictures())
    assert target.read_bytes() == b"before"


def black_where_reduced(images: torch.Tensor, scaled: Any, canvas: Any) -> torch.Tensor:
    large = torch._shape_as_tensor(images)[1] > scaled[0]
    return resized_canvas(images * (1 - large.to(images.dtype)), scaled, canvas)


def without_a_filter(images: torch.Tensor, scaled: Any, canvas: Any) -> torch.Tensor:
    """One pixel of many is taken where Pillow averages."""
    size = torch._shape_as_tensor(images)[1:3]
    step = torch.div(size, scaled, rounding_mode="floor")
    rows, columns = (torch.arange(scaled[n]) * step[n] for n in range(2))
    small = torch.where(
        (size > scaled).any(), images[:, rows][:, :, columns], images[:, : scaled[0], : scaled[1]]
    )
    return resized_canvas(small, scaled, canvas)


@pytest.mark.parametrize("broken", [black_where_reduced, without_a_filter])
def test_write_onnx_refuses_a_file_that_reduces_pictures_wrongly(
    tmp_path: Path, tiny_model: TorchModel, monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    """Pictures that are reduced already are no test of that."""
    monkeypatch.setattr("mini_fsod.export.graph.resized_canvas", broken)
    with pytest.raises(UserError, match="In 4 pictures that the file reduces, "):
        write_onnx(tmp_path / "tiny.onnx", tiny_model, made_pictures())
    assert not list(tmp_path.iterdir())


def test_larger_than_view_enlarges_where_no_picture_is_large(tiny_model: TorchModel) -> None:
    large, small = np.zeros((300, 100, 3), np.uint8), np.zeros((30, 40, 3), np.uint8)
    found = larger_than_view(tiny_model, [small, large, small])
    assert [pixels.shape for pixels in found] == [(288, 96, 3)]  # three times the view of 64 to 96
    assert [pixels.shape for pixels in larger_than_view(tiny_model, [small])] == [(96, 127, 3)]
    assert len(larger_than_view(tiny_model, [large] * 9)) == 4


def test_to_onnx_says_what_cannot_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such\noperator")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UserError, match=r"cannot be exported \(no such operator\)"):
        to_onnx(tiny_detector(), LABELS)


def test_export_command_writes_beside_the_run(tmp_path: Path, mini: Any) -> None:
    run = tmp_path / "run"
    checkpoint.save(run / "checkpoint.safetensors", tiny_detector(), LABELS, {"weights": None})
    code, out, err = mini("export", run)
    assert code == 0, err
    assert "model.onnx: " in out
    assert "Equal to PyTorch in 4 generated images: 80 detections" in out
    assert "In 4 large ones that the file reduces itself: 80 detections" in out
    photos = write_photos(tmp_path / "photos")
    code, out, err = mini("export", run, "-o", tmp_path / "b.onnx", "--compare", photos)
    assert code == 0, err
    assert "in 5 images" in out
    assert (tmp_path / "b.onnx").read_bytes() == (run / "model.onnx").read_bytes()
    for words, message in (
        (["-o", tmp_path / "b.pt"], "not the name of an ONNX file"),
        (["--compare", tmp_path / "none"], "none"),
    ):
        code, _, err = mini("export", run, *words)
        assert code == 2
        assert message in err


def test_made_pictures_are_always_the_same() -> None:
    for one, other in zip(made_pictures(), made_pictures(), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == np.uint8
