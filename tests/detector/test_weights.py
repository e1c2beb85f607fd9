from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models import resnet34

from mini_fsod.detector.backbone import make_backbone
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.detector.weights import WeightsFile, load_weights, read_weights
from mini_fsod.errors import UserError
from mini_fsod.limits import TENSORS, WEIGHTS_BYTES


def test_read_weights_of_both_kinds_of_files(tmp_path: Path) -> None:
    state = {"conv1.weight": torch.rand(2, 2), "fc.weight": torch.rand(2)}
    torch.save(state, tmp_path / "a.pth")
    save_file(state, tmp_path / "a.safetensors")
    for name in ("a.pth", "a.safetensors"):
        found = read_weights(tmp_path / name).tensors
        assert found.keys() == {"conv1.weight"}
        assert torch.equal(found["conv1.weight"], state["conv1.weight"])


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def test_load_weights_names_missing_and_unknown_tensors(net: nn.Module) -> None:
    tensors = {n: v + 1 for n, v in net.state_dict().items() if not n.endswith("batches_tracked")}
    load_weights(net, WeightsFile(Path("a.pth"), tensors | {"head.bias": torch.zeros(1)}), "net")
    assert torch.equal(net[0].weight, tensors["0.weight"])
    with pytest.raises(UserError, match=r"fit net: unknown tensors \(1\): 2\.weight"):
        load_weights(net, WeightsFile(Path("a.pth"), tensors | {"2.weight": torch.zeros(1)}), "net")
    tensors["stem"] = tensors.pop("0.weight")
    with pytest.raises(UserError, match=r"fit net: missing .*0\.weight; unknown .*stem"):
        load_weights(net, WeightsFile(Path("a.pth"), tensors), "net")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "0.weight",
            torch.zeros(2, 3),
            r"other shapes \(1\): 0.weight \(2, 3\) instead of \(2, 2\)",
        ),
        ("0.weight", torch.zeros(2, 2, dtype=torch.int8), r"no floating-point .*0.weight .*int8"),
        ("0.bias", torch.tensor([0, torch.nan]), r"NaN.*0.bias"),
        ("0.bias", torch.tensor([0, 1e300], dtype=torch.float64), r"NaN, infinite.*0.bias"),
        ("1.running_var", torch.tensor([1.0, -1]), r"negative variances.*1.running_var"),
    ],
)
def test_load_weights_rejects_unusable_tensors(
    net: nn.Module, name: str, value: torch.Tensor, words: str
) -> None:
    before = net[0].weight.clone()
    tensors = {n: v + 1 for n, v in net.state_dict().items()} | {name: value}
    with pytest.raises(UserError, match=words):
        load_weights(net, WeightsFile(Path("a.pth"), tensors), "net")
    assert torch.equal(net[0].weight, before)


def test_make_backbone_rejects_the_weights_of_a_deeper_network(tmp_path: Path) -> None:
    """All tensors of a ResNet-18 are in a ResNet-34, with the same shapes."""
    torch.save(resnet34().state_dict(), tmp_path / "r34.pth")
    with pytest.raises(UserError, match=r"fit resnet18: unknown tensors .*layer1\.2\.conv1"):
        make_backbone(BackboneSettings("resnet18"), tmp_path / "r34.pth")


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def _zipped(path: Path, method: int, pickle_bytes: int) -> None:
    torch.save({"a": torch.zeros(2)}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content.ljust(pickle_bytes if "pkl" in name else 0, b"."))


def _write_expanded(path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(1).expand(10**13)}, path)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "text": lambda path: path.write_text("weights"),
    "number": lambda path: torch.save(3, path),
    "list": lambda path: torch.save([torch.zeros(2)], path),
    "nothing": lambda path: torch.save({}, path),
    "names of numbers": lambda path: torch.save({1: torch.zeros(2)}, path),
    "no tensors": lambda path: torch.save({"state_dict": {"a": 1}}, path),
    "expanded": _write_expanded,
    "sparse": lambda path: torch.save({"a": torch.eye(3).to_sparse()}, path),
    "complex": lambda path: torch.save({"a": torch.zeros(2, dtype=torch.complex64)}, path),
    "meta": lambda path: torch.save({"a": torch.zeros(2, device="meta")}, path),
    "compressed": lambda path: _zipped(path, zipfile.ZIP_DEFLATED, 0),
    "long pickle in a zip": lambda path: _zipped(path, zipfile.ZIP_STORED, 9_000_000),
    "long pickle": lambda path: path.write_bytes(b"\x80\x02" + b")0" * 6_000_000),
    "long text in a pickle": lambda path: path.write_bytes(
        b"\x80\x02X\xff\xff\xff\x7f" + b"a" * 99
    ),
    "script": lambda path: torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path),
    "payload": lambda path: torch.save({"a": Payload(path.parent / "ran")}, path),
    "old payload": lambda path: torch.save(
        {"a": Payload(path.parent / "ran")}, path, _use_new_zipfile_serialization=False
    ),
    "bare payload": lambda path: path.write_bytes(pickle.dumps(Payload(path.parent / "ran"))),
}


@pytest.mark.filterwarnings("ignore")  # of torch.jit
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["a.pth", "a.bin", "a.safetensors"])
def test_read_weights_rejects_other_files(tmp_path: Path, damage: str, name: str) -> None:
    path = tmp_path / name
    DAMAGE[damage](path)
    with pytest.raises(UserError) as caught:
        read_weights(path)
    assert str(path) in caught.value.what
    assert len(caught.value.what) < 400 + len(str(path))
    assert "\n" not in caught.value.what
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["a.pth", "old.pth", "a.safetensors"])
def test_read_weights_rejects_a_file_cut_anywhere(tmp_path: Path, name: str) -> None:
    state = {"conv1.weight": torch.rand(8, 8), "bn1.bias": torch.rand(8)}
    path = tmp_path / name
    if name == "a.safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=name == "a.pth")
    content = path.read_bytes()
    for length in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=name):
            read_weights(path)


class TestTimm:
    timm = pytest.importorskip("timm")

    @pytest.mark.parametrize(
        "name",
        [
            "resnet10t",
            "test_efficientnet",  # a name of its features has "_" for "."
            "regnetx_002",  # its filter has another name, and takes one argument
            pytest.param("legacy_xception", marks=pytest.mark.slow),  # names with "body."
            pytest.param("swin_tiny_patch4_window7_224", marks=pytest.mark.slow),
            pytest.param("convnext_atto", marks=pytest.mark.slow),
        ],
    )
    def test_make_backbone_loads_all_tensors_of_a_timm_model(
        self, name: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "net.pth"
        torch.manual_seed(0)
        net = self.timm.create_model(name)
        state = {n: v + 0.01 if v.is_floating_point() else v for n, v in net.state_dict().items()}
        torch.save(state, path)
        torch.manual_seed(1)
        backbone = make_backbone(BackboneSettings(name), path)
        wanted = {n.replace(".", "_"): v for n, v in state.items()}
        for tensor, value in backbone.net.state_dict().items():
            assert torch.equal(value, wanted[tensor.removeprefix("body.").replace(".", "_")]), (
                tensor
            )
        del state[next(iter(state))]
        torch.save(state, path)
        with pytest.raises(UserError, match=r"missing tensors \(1\)"):
            make_backbone(BackboneSettings(name), path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_read_weights_refuses_what_no_network_has(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    many = {f"n{n}": torch.zeros(0) for n in range(TENSORS + 1)}
    save_file(many, path) if suffix == ".safetensors" else torch.save(many, path)
    with pytest.raises(UserError, match="more than 20,000 tensors"):
        read_weights(path)
    os.truncate(path, WEIGHTS_BYTES + 1)  # sparse
    with pytest.raises(UserError, match="larger than 8,192 MB"):
        read_weights(path)
