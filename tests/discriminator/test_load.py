from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models import resnet18, resnet50

from mini_fsod.detector.backbone import make_backbone
from mini_fsod.detector.settings import CAFFE, IMAGENET, BackboneSettings
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.discriminator.load import (
    DiscriminatorHeader,
    LastMap,
    load_discriminator,
    parse_source,
    resnet_name,
    save_discriminator,
)
from mini_fsod.errors import UserError

CPU = torch.device("cpu")
SHARED = Path(__file__).resolve().parents[2].parent / "shared"
CAFFE_FILE = SHARED / "weights" / "resnet50_imagenet_caffe.safetensors"

Inputs = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def inputs() -> Inputs:
    rng = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (1, 3, 64, 96), generator=rng, dtype=torch.uint8)
    boxes = torch.tensor([[[10.0, 10, 80, 60], [0, 0, 96, 64]]])
    return images, torch.tensor([[64, 96]]), boxes, torch.ones(1, 2, dtype=torch.bool)


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return resnet18(weights=None).eval()


def moco_layout(net: nn.Module) -> dict[str, Any]:
    """As facebookresearch/moco publishes: both encoders, a head in place of fc, the optimiser."""
    state = {f"module.encoder_q.{n}": v for n, v in net.state_dict().items() if n[:2] != "fc"}
    state |= {n.replace("encoder_q", "encoder_k"): v + 1 for n, v in state.items()}
    for n, shape in (("fc.0", (512, 512)), ("fc.2", (128, 512))):
        state[f"module.encoder_q.{n}.weight"] = torch.zeros(shape)
    state["module.queue"] = torch.zeros(128, 8)
    return {"epoch": 800, "arch": "resnet18", "state_dict": state, "optimizer": {"state": {}}}


def dino_layout(net: nn.Module) -> dict[str, Any]:
    """A whole checkpoint of DINO's training, with its arguments in it."""
    inner = {f"module.backbone.{n}": v for n, v in net.state_dict().items() if n[:2] != "fc"}
    teacher = {n.removeprefix("module."): v for n, v in inner.items()}
    teacher["head.mlp.0.weight"] = torch.zeros(3, 3)
    student = {n: v + 1 for n, v in inner.items()}
    return {"student": student, "teacher": teacher, "args": argparse.Namespace(arch="resnet18")}


@pytest.mark.parametrize("layout", [moco_layout, dino_layout])
@pytest.mark.parametrize("spelling", ["{}", pytest.param("resnet18:{}", marks=pytest.mark.slow)])
def test_load_discriminator_unwraps_training_checkpoints(
    tmp_path: Path, inputs: Inputs, layout: Any, spelling: str
) -> None:
    net = small()
    plain, wrapped = tmp_path / "plain.pth", tmp_path / "published.pth.tar"
    torch.save(net.state_dict(), plain)
    torch.save(layout(net), wrapped)
    one, other = load_discriminator(plain, CPU), load_discriminator(spelling.format(wrapped), CPU)
    found = other.features(*inputs)
    assert torch.equal(found, one.features(*inputs))
    assert found.shape == (1, 2, other.dimension) == (1, 2, 512)
    assert other.stride == 32
    assert other.normalisation == IMAGENET


def test_load_discriminator_keeps_the_random_state(tmp_path: Path) -> None:
    torch.save(small().state_dict(), tmp_path / "net.pth")
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    load_discriminator(tmp_path / "net.pth", CPU)
    assert torch.rand(1) == wanted


@pytest.mark.parametrize("make", [resnet18, resnet50])
def test_resnet_name_of_tensors(make: Any) -> None:
    with torch.device("meta"):
        state = make(weights=None).state_dict()
    assert resnet_name(state) == make.__name__
    assert resnet_name({n: v for n, v in state.items() if not n.startswith("layer3.1")}) is None
    assert resnet_name({"stem.weight": torch.zeros(1)}) is None


def test_load_discriminator_reads_what_save_discriminator_wrote(
    tmp_path: Path, inputs: Inputs
) -> None:
    torch.manual_seed(0)
    net = make_backbone(BackboneSettings("resnet18-narrow", "group"))
    save_discriminator(
        tmp_path / "own.safetensors",
        net,
        DiscriminatorHeader("resnet18-narrow", "group", None, {"seed": 0}),
    )
    save_discriminator(
        tmp_path / "crop.safetensors", net, DiscriminatorHeader("resnet18-narrow", "group", 32, {})
    )
    found = load_discriminator(tmp_path / "own.safetensors", CPU)
    wanted = Discriminator(LastMap(net), 128, 32, IMAGENET)
    wanted.to(memory_format=torch.channels_last)
    assert torch.equal(found.features(*inputs), wanted.features(*inputs))
    cropping = tmp_path / "crop.safetensors"
    assert load_discriminator(cropping, CPU).crop == 32
    assert [load_discriminator(cropping, CPU, crop=crop).crop for crop in (None, 48)] == [None, 48]


def test_load_discriminator_with_caffe_weights(inputs: Inputs) -> None:
    if not CAFFE_FILE.is_file():
        pytest.skip(f"{CAFFE_FILE.name} is not beside the checkout in ../shared/weights")
    found = load_discriminator(CAFFE_FILE, CPU, CAFFE, stride_in_1x1=True)
    settings = BackboneSettings("resnet50", stride_in_1x1=True)
    wanted = Discriminator(LastMap(make_backbone(settings, CAFFE_FILE)), 2048, 32, CAFFE)
    wanted.to(memory_format=torch.channels_last)
    assert torch.equal(found.features(*inputs), wanted.features(*inputs))
    assert found.dimension == 2048


class TestTimm:
    timm = pytest.importorskip("timm")

    @pytest.mark.parametrize(
        ("name", "dimension", "stride"),
        [
            ("test_vit", 64, 16),
            pytest.param("vit_small_patch14_dinov2", 384, 14, marks=pytest.mark.slow),
            pytest.param("vit_small_patch16_dinov3", 384, 16, marks=pytest.mark.slow),
        ],
    )
    def test_load_discriminator_pools_patch_tokens_of_a_transformer(
        self, tmp_path: Path, inputs: Inputs, name: str, dimension: int, stride: int
    ) -> None:
        torch.manual_seed(0)
        net = self.timm.create_model(name, num_classes=0, dynamic_img_size=True).eval()
        torch.save({"teacher": {f"backbone.{n}": v for n, v in net.state_dict().items()}}, "v.pth")
        model = load_discriminator(f"{name}:v.pth", CPU)
        images, sizes, _, valid = inputs
        assert (model.dimension, model.stride) == (dimension, stride)
        boxes = torch.tensor([[[1.0, 1, 3, 3]]]) * stride
        found = model.features(images, sizes, boxes, valid[:, :1])
        height, width = -(-64 // stride), -(-96 // stride)
        canvas = torch.zeros(1, 3, height * stride, width * stride)
        canvas[:, :, :64, :96] = (images / 255 - model.mean) / model.std
        with torch.no_grad():
            tokens = net.forward_features(canvas)[0, net.num_prefix_tokens :]
        wanted = mean_of_samples(tokens.view(height, width, dimension))
        torch.testing.assert_close(found[0, 0], wanted, atol=1e-4, rtol=1e-3)

    def test_load_discriminator_pools_the_last_map_of_a_convolutional_net(
        self, tmp_path: Path, inputs: Inputs
    ) -> None:
        torch.manual_seed(0)
        net = self.timm.create_model("resnet10t").eval()
        torch.save({"state_dict": {f"module.{n}": v for n, v in net.state_dict().items()}}, "c.pth")
        model = load_discriminator("resnet10t:c.pth", CPU)
        images = inputs[0][..., :64]
        with torch.no_grad():
            last = net.forward_features((images / 255 - model.mean) / model.std)
        box, one = torch.tensor([[[0.0, 0, 64, 64]]]), torch.ones(1, 1, dtype=torch.bool)
        found = model.features(images, torch.tensor([[64, 64]]), box, one)
        torch.testing.assert_close(found[0, 0], last.mean((0, 2, 3)), atol=1e-4, rtol=1e-3)

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("resnet_51", 'no model "resnet_51"'),
            ("test_vit:nowhere.pth", "nowhere.pth: there is no such weights file"),
            ("test_vit:IMAGENET1K_V2", 'no weights file "IMAGENET1K_V2"'),
            ("test_vit:net.pth", "do not fit test_vit"),
            ("resnet10t:net.pth", "resnet10t"),
        ],
    )
    def test_load_discriminator_refuses_unknown_models_and_weights(
        self, source: str, words: str
    ) -> None:
        torch.save(small().state_dict(), "net.pth")
        with pytest.raises(UserError, match=words):
            load_discriminator(source, CPU)


def mean_of_samples(tokens: torch.Tensor) -> torch.Tensor:
    """RoIAlign's 14 x 14 samples of the box over patches 1 and 2 of both axes, one by one."""
    total = torch.zeros(tokens.shape[-1])
    for i in range(14):
        for j in range(14):
            y, x = 0.5 + (i + 0.5) / 7, 0.5 + (j + 0.5) / 7
            top, left = int(y), int(x)
            for a in (0, 1):
                for b in (0, 1):
                    share = (1 - abs(y - top - a)) * (1 - abs(x - left - b))
                    total += share * tokens[top + a, left + b]
    return total / 196


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("resnet50", ("resnet50", "DEFAULT")),
        ("resnet50:IMAGENET1K_V1", ("resnet50", "IMAGENET1K_V1")),
        ("vit_small_patch16_224.dino", ("vit_small_patch16_224.dino", None)),
        ("a.pth", (None, Path("a.pth"))),
        (Path("a.pth"), (None, Path("a.pth"))),
        ("vit_tiny:a.pth", ("vit_tiny", Path("a.pth"))),
        ("odd:name", (None, Path("odd:name"))),  # a file that is there
    ],
)
def test_parse_source_spellings(source: str | Path, wanted: tuple[Any, Any]) -> None:
    for name in ("a.pth", "odd:name"):
        Path(name).touch()
    assert parse_source(source) == wanted


class Sly:
    def __reduce__(self) -> Any:
        return print, ("run by a file",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"stem": torch.zeros(1)}, "not the weights of a ResNet"),
        ([1, 2], "no named tensors"),
        (
            {"state_dict": {"conv1.weight": torch.zeros(64, 3, 7, 7)}, "sly": Sly()},
            "could run code",
        ),
    ],
)
def test_load_discriminator_refuses_files_without_weights(
    content: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(content, "odd.pth")
    with pytest.raises(UserError, match=words) as told:
        load_discriminator("odd.pth", CPU)
    assert "odd.pth" in told.value.what
    assert "run by a file" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["torn.pth", "torn.safetensors", "torn.pth.tar"])
def test_load_discriminator_refuses_damaged_files(name: str) -> None:
    Path(name).write_bytes(b"not weights at all")
    with pytest.raises(UserError, match=name):
        load_discriminator(name, CPU)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere.pth", "nowhere.pth: there is no such weights file"),
        ("", "there is no such weights file"),
        ("resnet50:", "there is no such weights file"),
        ("resnet18:IMAGENET", '"IMAGENET" is neither a file nor weights'),
        ("resnet18-narrow", "no weights of resnet18-narrow"),
        ("resnet50:net.pth", "weights of resnet18, not of resnet50"),
    ],
)
def test_load_discriminator_refuses_wrong_sources(source: str, words: str) -> None:
    torch.save(small().state_dict(), "net.pth")
    with pytest.raises(UserError, match=words):
        load_discriminator(source, CPU)


def test_load_discriminator_refuses_a_detector() -> None:
    save_file({"a": torch.zeros(1)}, "d.safetensors", {"mini": '{"format": 1, "settings": {}}'})
    with pytest.raises(UserError, match="this is a detector"):
        load_discriminator("d.safetensors", CPU)
