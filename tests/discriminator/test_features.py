from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18
from torchvision.ops import roi_align

from mini_fsod.detector.backbone import ResNet
from mini_fsod.detector.settings import CAFFE, IMAGENET, Normalisation
from mini_fsod.discriminator import features
from mini_fsod.discriminator.features import Discriminator, axis_weights, mean_aligned
from mini_fsod.discriminator.load import LastMap


def lively(net: nn.Module) -> nn.Module:
    """Statistics that differ from layer to layer, as after training."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net.eval()


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three images of different sizes on one canvas, with 2, 1 and 0 boxes; the rest is noise."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 3, 96, 128), generator=rng, dtype=torch.uint8)
    sizes = torch.tensor([[96, 128], [64, 100], [90, 33]])
    boxes = torch.tensor(
        [
            [[3.5, 10, 120, 90], [40, 20, 60.25, 33]],
            [[0, 0, 100, 64], [torch.nan, 5, 1e30, -7]],
            [[9, 9, 2, 2], [0, 0, 0, 0]],
        ]
    )
    return images, sizes, boxes, torch.tensor([[True, True], [True, False], [False, False]])


def by_hand(net: nn.Module, image: Tensor, size: Tensor, box: Tensor, how: Normalisation) -> Tensor:
    """One image, one box, with torchvision alone."""
    height, width = size.tolist()
    pixels = image.float() / 255 * how.scale
    pixels = pixels.flip(0) if how.order == "BGR" else pixels
    pixels = (pixels - torch.tensor(how.mean)[:, None, None]) / torch.tensor(how.std)[:, None, None]
    canvas = torch.zeros(1, *image.shape)
    canvas[0, :, :height, :width] = pixels[:, :height, :width]
    x = net.maxpool(net.relu(net.bn1(net.conv1(canvas))))
    last = net.layer4(net.layer3(net.layer2(net.layer1(x))))
    return roi_align(last, [box[None]], 7, 1 / 32, sampling_ratio=2, aligned=True).mean((0, 2, 3))


@pytest.mark.parametrize("how", [IMAGENET, CAFFE], ids=["imagenet", "caffe"])
def test_features_of_a_padded_batch_equal_torchvision_image_by_image(how: Normalisation) -> None:
    torch.manual_seed(0)
    net = lively(resnet18(weights=None))
    model = Discriminator(LastMap(ResNet(net, 0)), 512, 32, how)
    images, sizes, boxes, valid = batch()
    found = model.features(images, sizes, boxes, valid)
    assert found.shape == (3, 2, 512)
    assert found.dtype == torch.float32
    with torch.no_grad():
        for i, r in valid.nonzero().tolist():
            wanted = by_hand(net, images[i], sizes[i], boxes[i, r], how)
            assert wanted.norm() > 0.1
            assert (found[i, r] - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert not found[~valid].any()


class Pixels(nn.Module):
    """A body of stride 1 that returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x


PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize("crop", [None, 16])
def test_features_ignore_the_padding(crop: int | None) -> None:
    torch.manual_seed(0)
    body = nn.Conv2d(3, 4, 5, padding=2, stride=4)
    model = Discriminator(body, 4, 4, IMAGENET, crop)
    images, sizes, boxes, valid = batch()
    other = images.clone()
    other[1, :, 64:], other[1, :, :, 100:], other[2, :, :, 33:] = 0, 255, 7
    found = model.features(images, sizes, boxes, valid)
    assert torch.equal(found, model.features(other, sizes, boxes, valid))
    other[1, :, 10:20, 10:20] = 0
    assert not torch.equal(found, model.features(other, sizes, boxes, valid))


@pytest.mark.parametrize("crop", [None, 8])
@pytest.mark.parametrize("boxes", [0, 3])
def test_features_of_no_valid_box(crop: int | None, boxes: int) -> None:
    model = Discriminator(Pixels(), 3, 1, PLAIN, crop)
    images, sizes, *_ = batch()
    none = torch.zeros(3, boxes, dtype=torch.bool)
    found = model.features(images, sizes, torch.zeros(3, boxes, 4), none)
    assert found.shape == (3, boxes, 3)
    assert not found.any()


def test_features_of_crops_see_the_box_alone() -> None:
    """The image is red on the left, green on the right: a feature is the share of each."""
    images = torch.zeros(1, 3, 32, 64, dtype=torch.uint8)
    images[:, 0, :, :32], images[:, 1, :, 32:] = 255, 255
    boxes = torch.tensor([[[0.0, 0, 32, 32], [24, 0, 40, 30], [0, 0, 64, 32], [26, 4, 34, 6]]])
    model = Discriminator(Pixels(), 3, 1, PLAIN, crop=16)
    found = model.features(images, torch.tensor([[32, 64]]), boxes, torch.ones(1, 4).bool())
    wanted = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0], [0.75, 0.25, 0]])
    torch.testing.assert_close(found[0], wanted)


def test_features_do_not_depend_on_crops_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Discriminator(LastMap(ResNet(lively(resnet18(weights=None)), 0)), 512, 32, CAFFE, 32)
    images, sizes, boxes, _ = batch()
    many = boxes[:1].repeat(1, 10, 1) + torch.arange(20).view(1, 20, 1) / 10
    args = (images[:1], sizes[:1], many, torch.ones(1, 20, dtype=torch.bool))
    found = model.features(*args)  # 8, 8 and 4
    monkeypatch.setattr(features, "CROPS_PER_PASS_ELSEWHERE", 256)
    torch.testing.assert_close(found, model.features(*args), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[0, 0], found[0, 2], rtol=1e-4, atol=1e-5)  # each has its own


def test_axis_weights_of_hand_computed_samples() -> None:
    """Over two whole cells of four, and beyond the edges."""
    low = torch.tensor([[0.5, -9.0, 0.0]])
    high = torch.tensor([[2.5, -8.0, 0.0]])
    found = axis_weights(low, high, 4)
    # samples at 0.5 + (j + 0.5) / 7: cell 0 has those below 1, cell 3 those above 2
    below = [1 - (0.5 + (j + 0.5) / 7) for j in range(4) if 0.5 + (j + 0.5) / 7 < 1]
    outer = sum(below) / 14
    wanted = torch.tensor([outer, 0.5 - outer, 0.5 - outer, outer])
    torch.testing.assert_close(found[0, 0], wanted)
    assert not found[0, 1].any()  # far outside: nothing
    assert found[0, 2].tolist() == [1, 0, 0, 0]  # a point


def test_mean_aligned_equals_torchvision_beyond_the_map() -> None:
    rng = torch.Generator().manual_seed(0)
    cells = torch.randn(2, 5, 6, 9, generator=rng)
    corner = torch.rand(2, 40, 2, generator=rng) * 120 - 40
    boxes = torch.cat([corner, corner + torch.rand(2, 40, 2, generator=rng) * 150], -1)
    found = mean_aligned(cells, boxes, 16)
    wanted = roi_align(cells, list(boxes), 7, 1 / 16, 2, True).mean((2, 3)).view(2, 40, 5)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
