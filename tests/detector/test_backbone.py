from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models.resnet import ResNet as TorchvisionResNet

from mini_fsod.detector.backbone import (
    ResNet,
    check_backbone,
    default_normalisation,
    make_backbone,
)
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.errors import UserError

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
CAFFE_FILE = SHARED / "weights" / "resnet50_imagenet_caffe.safetensors"


def maps(net: TorchvisionResNet, x: Tensor) -> list[Tensor]:
    x = net.maxpool(net.relu(net.bn1(net.conv1(x))))
    out = []
    for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
        x = layer(x)
        out.append(x)
    return out


def test_make_backbone_with_stride_in_1x1_equals_the_caffe_network() -> None:
    if not CAFFE_FILE.is_file():
        pytest.skip(f"{CAFFE_FILE.name} is not beside the checkout in ../shared/weights")
    from safetensors.torch import load_file

    net = resnet50(weights=None)
    net.load_state_dict(load_file(CAFFE_FILE), strict=False)
    for layer in (net.layer2, net.layer3, net.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    settings = BackboneSettings("resnet50", stride_in_1x1=True, frozen_stages=2)
    backbone = make_backbone(settings, CAFFE_FILE)
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 60
    with torch.no_grad():
        for found, wanted in zip(backbone(x), maps(net.eval(), x), strict=True):
            assert (found - wanted).norm() < 1e-4 * wanted.norm()
    frozen = {name.split(".")[0] for name, p in backbone.named_parameters() if not p.requires_grad}
    assert frozen == {"conv1", "layer1"}


def test_make_backbone_loads_a_file_of_torchvision_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = make_backbone(BackboneSettings("resnet18"))
    net = TorchvisionResNet(_block(), [2, 2, 2, 2])
    torch.save(net.state_dict(), tmp_path / "net.pth")
    backbone = make_backbone(BackboneSettings("resnet18"), str(tmp_path / "net.pth"))
    assert torch.equal(backbone.layer3[1].conv2.weight, net.layer3[1].conv2.weight)
    assert not torch.equal(source.layer3[1].conv2.weight, net.layer3[1].conv2.weight)


def _block() -> type:
    from torchvision.models.resnet import BasicBlock

    return BasicBlock


def test_make_backbone_with_group_norm_trains_from_random_weights() -> None:
    backbone = make_backbone(BackboneSettings("resnet18", norm="group"))
    norms = [m for m in backbone.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 20
    assert all(p.requires_grad for p in backbone.parameters())
    assert not any(isinstance(m, nn.BatchNorm2d) for m in backbone.modules())
    assert [tuple(m.shape[1:]) for m in backbone(torch.rand(1, 3, 64, 96))] == [
        (64, 16, 24),
        (128, 8, 12),
        (256, 4, 6),
        (512, 2, 3),
    ]


@pytest.mark.parametrize(
    ("stages", "frozen"), [(0, []), (1, ["conv1"]), (3, ["conv1", "layer1", "layer2"])]
)
def test_make_backbone_freezes_the_first_stages(stages: int, frozen: list[str]) -> None:
    backbone = make_backbone(BackboneSettings("resnet18", frozen_stages=stages))
    assert isinstance(backbone, ResNet)
    names = [n.split(".")[0] for n, p in backbone.named_parameters() if not p.requires_grad]
    assert list(dict.fromkeys(names)) == frozen


class TestTimm:
    timm = pytest.importorskip("timm")

    def test_make_backbone_has_the_strides_and_frozen_stages(self) -> None:
        backbone = make_backbone(BackboneSettings("mobilenetv3_small_050", frozen_stages=2))
        out = backbone(torch.rand(1, 3, 64, 96))
        assert [tuple(m.shape[2:]) for m in out] == [(16, 24), (8, 12), (4, 6), (2, 3)]
        assert [m.shape[1] for m in out] == backbone.channels
        names = [n.split(".")[1:3] for n, p in backbone.named_parameters() if not p.requires_grad]
        assert {n[0] for n in names} == {"conv_stem", "blocks"}
        assert {n[1] for n in names if n[0] == "blocks"} == {"0"}
        assert not any(type(m) is nn.BatchNorm2d for m in backbone.modules())

    def test_make_backbone_loads_a_file_of_timm_weights(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        net = self.timm.create_model("resnet10t").eval()
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.uniform_(-0.1, 0.1)
        torch.save(net.state_dict(), tmp_path / "net.pth")
        backbone = make_backbone(BackboneSettings("resnet10t"), tmp_path / "net.pth")
        x = torch.rand(1, 3, 64, 64)
        torch.testing.assert_close(backbone(x)[-1], net.forward_features(x))

    def test_default_normalisation_is_that_of_the_library(self) -> None:
        assert default_normalisation("vit_tiny_patch16_224").mean == (0.5, 0.5, 0.5)
        assert default_normalisation("resnet50").std == (0.229, 0.224, 0.225)

    @pytest.mark.parametrize(
        ("name", "words"), [("vit_tiny_patch16_224", "strides"), ("resnet_51", "resnet_51")]
    )
    def test_make_backbone_rejects_unusable_timm_models(self, name: str, words: str) -> None:
        with pytest.raises(UserError, match=words):
            make_backbone(BackboneSettings(name))


@pytest.mark.parametrize(
    ("settings", "weights", "words"),
    [
        (BackboneSettings("resnet18", norm="group"), "DEFAULT", "training from random weights"),
        (BackboneSettings("resnet18", norm="group", frozen_stages=1), None, "random weights"),
        (BackboneSettings("resnet18", frozen_stages=6), None, "frozen_stages is 6"),
        (BackboneSettings("resnet18", stride_in_1x1=True), None, "no 1x1"),
        (BackboneSettings("resnet18"), "IMAGENET", "IMAGENET"),
        (BackboneSettings("resnet18"), "nowhere.pth", "nowhere.pth"),
    ],
)
def test_make_backbone_rejects_impossible_settings(
    settings: BackboneSettings, weights: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        make_backbone(settings, weights)


@pytest.mark.parametrize(
    ("change", "words"), [("missing", r"missing tensors .*conv1"), ("shape", "do not fit")]
)
def test_make_backbone_rejects_a_file_that_does_not_fit(
    tmp_path: Path, change: str, words: str
) -> None:
    weight = torch.zeros(64, 3, 7, 7 if change == "missing" else 5)
    torch.save({"conv1.weight" if change == "shape" else "stem": weight}, tmp_path / "net.pth")
    with pytest.raises(UserError, match=words):
        make_backbone(BackboneSettings("resnet18"), tmp_path / "net.pth")


def test_make_backbone_rejects_the_file_of_a_detector(tmp_path: Path) -> None:
    net = TorchvisionResNet(_block(), [2, 2, 2, 2])
    state = {f"backbone.{name}": value for name, value in net.state_dict().items()}
    torch.save(state, tmp_path / "detector.pth")
    with pytest.raises(UserError, match="a detector, not the weights of a backbone"):
        make_backbone(BackboneSettings("resnet18"), tmp_path / "detector.pth")


def test_check_backbone_tells_a_typo_as_such() -> None:
    with pytest.raises(UserError, match=r"detector\.backbone: .*Did you mean") as wrong:
        check_backbone("resnet5O")
    assert "resnet18, 34, 50" in wrong.value.fix
    for name in ("resnet50", "resnet18-narrow"):
        check_backbone(name)
