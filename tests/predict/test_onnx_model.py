"""A detector from an ONNX file: without torch, and never from a file that is something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mini_fsod
from helpers.tiny_detector import LABELS, files, tiny_detector, write_photos
from mini_fsod.errors import UserError
from mini_fsod.export.metadata import describe
from mini_fsod.predict.onnx_model import OnnxModel
from mini_fsod.predict.torch_model import TorchModel

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SIZES = {
    "min_size": 64, "max_size": 96, "score_threshold": 0.05, "nms_iou": 0.5, "max_detections": 1,
}  # fmt: skip
SOURCE = Path(mini_fsod.__file__).parents[1]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mini_fsod.export.write import to_onnx

    path = tmp_path_factory.mktemp("onnx") / "tiny.onnx"
    path.write_bytes(to_onnx(tiny_detector(), LABELS))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def test_load_reads_an_onnx_file_that_finds_what_torch_finds(file: Path, photos: Path) -> None:
    model = mini_fsod.load(file, "cpu")
    assert isinstance(model, OnnxModel)
    assert repr(model) == f"OnnxModel({file}, on cpu: car, bus, bird)"
    assert (model.min_size, model.max_size, model.labels) == (64, 96, LABELS)
    torch_model = TorchModel(tiny_detector(), LABELS, file, "cpu")
    torch_model.bf16 = False
    wanted = torch_model.predict(files(photos), score=0)
    for found, other in zip(model.predict(files(photos), score=0), wanted, strict=True):
        assert len(found) > 0
        assert (found.path, found.size, found.names) == (other.path, other.size, other.names)
        np.testing.assert_allclose(found.xywh, other.xywh, atol=0.01)
        np.testing.assert_allclose(found.scores, other.scores, atol=1e-4)


def test_predict_command_does_not_import_torch(file: Path, photos: Path, tmp_path: Path) -> None:
    """Neither do the Python names; torch cannot be imported here at all."""
    script = """
import sys
sys.modules["torch"] = sys.modules["torchvision"] = None
import mini_fsod
detector = mini_fsod.load(sys.argv[1])
assert len(detector.predict(sys.argv[2] + "/a.png", score=0)) > 0
from mini_fsod import cli
sys.argv = ["mini", "predict", *sys.argv[1:]]
cli.main()
"""
    words = ["--json", "--draw", tmp_path / "drawn", "--coco", tmp_path / "c.json"]
    ended = subprocess.run(
        [sys.executable, "-c", script, file, photos, *words, "--sheet", tmp_path / "s.png"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    records = json.loads(ended.stdout)
    assert len(records) == 5
    assert sum(len(record["detections"]) for record in records) > 20
    assert len(list((tmp_path / "drawn").iterdir())) == 5


def test_read_refuses_other_files(file: Path, tmp_path: Path) -> None:
    import onnx

    def refuses(content: bytes, message: str) -> None:
        (tmp_path / "x.onnx").write_bytes(content)
        with pytest.raises(UserError, match=message):
            OnnxModel.read(tmp_path / "x.onnx")

    refuses(b"", "onnxruntime cannot load it")
    refuses(file.read_bytes()[:-100], "onnxruntime cannot load it")
    proto = onnx.load(file)
    about = {entry.key: entry.value for entry in proto.metadata_props}

    def changed(**mini: Any) -> bytes:
        content = json.dumps(json.loads(about["mini"]) | mini)
        onnx.helper.set_model_props(proto, about | {"mini": content})
        return bytes(proto.SerializeToString())

    refuses(changed(format=2), "written by a newer mini")
    refuses(changed(base="car"), "its metadata cannot be read")
    refuses(changed(min_size=-3), "its metadata cannot be read")
    del proto.metadata_props[:]
    refuses(bytes(proto.SerializeToString()), "not one of `mini export`")
    with pytest.raises(UserError, match="does not exist"):
        OnnxModel.read(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("device", "message"), [("gpu", "no device"), ("cuda", "cannot use cuda"), ("cuda:x", "no dev")]
)
def test_read_refuses_other_devices(file: Path, device: str, message: str) -> None:
    import onnxruntime

    if device == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(UserError, match=message):
        OnnxModel.read(file, device)


def test_read_without_onnxruntime(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match="onnxruntime is not installed"):
        OnnxModel.read(file)


BOXES, SCORES = np.array([[[1, 2, 9, 9]]], np.float32), np.array([[0.75]], np.float32)
LABEL, COUNT = np.array([[2]]), np.array([1])


def made(path: Path, about: dict[str, Any], **outputs: Any) -> Path:
    """A file that gives the same detections for every picture."""
    import onnx
    from onnx import TensorProto, helper

    usual = {"boxes": BOXES, "scores": SCORES, "labels": LABEL, "count": COUNT} | outputs
    tensors = {name: onnx.numpy_helper.from_array(value, name) for name, value in usual.items()}
    nodes = [helper.make_node("Constant", [], [n], value=t) for n, t in tensors.items()]
    kinds = [helper.make_tensor_value_info(n, t.data_type, None) for n, t in tensors.items()]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", "h", "w", 3])
    graph = helper.make_graph(nodes, "made", [images], kinds)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for key, value in describe(LABELS, **SIZES).items():
        text = json.dumps(json.loads(value) | about) if key == "mini" else value
        model.metadata_props.add(key=key, value=text)
    path.write_bytes(model.SerializeToString())
    return path


def test_predict_takes_what_an_onnx_file_computes(tmp_path: Path) -> None:
    model = OnnxModel.read(made(tmp_path / "a.onnx", {}), "cpu")
    found = model.predict(np.zeros((30, 40, 3), np.uint8))
    assert found.xywh.tolist() == [[1, 2, 8, 7]]
    assert (found.scores.tolist(), found.names) == ([0.75], ("bird",))


@pytest.mark.parametrize(
    "outputs",
    [
        {"labels": np.array([[3]])},
        {"labels": np.array([[-1]])},
        {"labels": np.array([[2.0]], np.float32)},
        {"boxes": BOXES * np.nan},
        {"boxes": BOXES * np.float32(1e30)},
        {"boxes": BOXES[..., :3]},
        {"boxes": BOXES[0], "scores": SCORES[0], "labels": LABEL[0]},
        {"scores": SCORES * np.nan},
        {"scores": SCORES * 7},
        {"scores": -SCORES},
        {"count": np.array([2])},
        {"count": np.array([-1])},
        {"count": np.array([1.0], np.float32)},
        {"count": np.array(1)},
        {name: np.repeat(v, 2, 0) for name, v in (("boxes", BOXES), ("scores", SCORES))},
    ],
    ids=lambda outputs: "-".join(f"{k}{v.ravel()[:1]}" for k, v in outputs.items()),
)
def test_predict_refuses_outputs_that_are_no_detections(
    tmp_path: Path, outputs: dict[str, Any]
) -> None:
    model = OnnxModel.read(made(tmp_path / "a.onnx", {}, **outputs), "cpu")
    with pytest.raises(UserError, match=r"a\.onnx: it does not compute detections"):
        model.predict(np.zeros((30, 40, 3), np.uint8))


@pytest.mark.parametrize(
    "about",
    [
        {"base": [], "novel": []},
        {"base": ["bird"]},
        {"base": ["\ud800"]},
        {"min_size": 0},
        {"max_size": 10**400},
        {"nms_iou": "1"},
    ],
)
def test_load_refuses_metadata_that_says_nothing(tmp_path: Path, about: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"a\.onnx: its metadata cannot be read"):
        OnnxModel.read(made(tmp_path / "a.onnx", about), "cpu")
