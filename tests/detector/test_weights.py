from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mini_fsod.detector.backbone import make_backbone
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.detector.weights import WeightsFile, load_weights, read_weights
from mini_fsod.errors import UserError


def test_read_weights_of_both_kinds_of_files(tmp_path: Path) -> None:
    state = {"conv1.weight": torch.rand(2, 2), "fc.weight": torch.rand(2)}
    torch.save(state, tmp_path / "a.pth")
    save_file(state, tmp_path / "a.safetensors")
    for name in ("a.pth", "a.safetensors"):
        found = read_weights(tmp_path / name).tensors
        assert found.keys() == {"conv1.weight"}
        assert torch.equal(found["conv1.weight"], state["conv1.weight"])


def test_load_weights_names_missing_and_unknown_tensors() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    tensors = {n: v + 1 for n, v in net.state_dict().items() if not n.endswith("batches_tracked")}
    load_weights(net, WeightsFile(Path("a.pth"), tensors | {"more": torch.zeros(1)}), "net")
    assert torch.equal(net[0].weight, tensors["0.weight"])
    tensors["stem"] = tensors.pop("0.weight")
    with pytest.raises(UserError, match=r"fit net: missing .*0\.weight; unknown .*stem"):
        load_weights(net, WeightsFile(Path("a.pth"), tensors), "net")


class TestTimm:
    timm = pytest.importorskip("timm")

    @pytest.mark.parametrize(
        "name",
        [
            "resnet10t",
            "test_efficientnet",  # a name of its features has "_" for "."
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
            assert torch.equal(value, wanted[tensor.replace(".", "_")]), tensor
        del state[next(iter(state))]
        torch.save(state, path)
        with pytest.raises(UserError, match=r"missing tensors \(1\)"):
            make_backbone(BackboneSettings(name), path)
