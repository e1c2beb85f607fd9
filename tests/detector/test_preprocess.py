from __future__ import annotations

import pytest
import torch
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from mini_fsod.detector.preprocess import batch_images, normalise
from mini_fsod.detector.settings import CAFFE, IMAGENET, Normalisation
from mini_fsod.errors import UserError


def apply(images: torch.Tensor, sizes: torch.Tensor, how: Normalisation) -> torch.Tensor:
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (how.mean, how.std))
    return normalise(images, sizes, mean, std, how)


def test_batch_images_equals_torchvision() -> None:
    torch.manual_seed(0)
    images = [torch.rand(3, h, w) for h, w in [(50, 75), (120, 60), (33, 200)]]
    transform = GeneralizedRCNNTransform(64, 100, IMAGENET.mean, IMAGENET.std).eval()
    wanted, _ = transform(images)
    canvas, sizes = batch_images(images, 64, 100, 32)
    assert [tuple(s) for s in sizes.tolist()] == [tuple(s) for s in wanted.image_sizes]
    torch.testing.assert_close(apply(canvas, sizes, IMAGENET), wanted.tensors, atol=1e-5, rtol=0)


def test_normalise_for_caffe_and_zero_padding() -> None:
    images = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1).repeat(1, 1, 2, 2)
    found = apply(images, torch.tensor([[1, 2]]), CAFFE)
    blue_green_red = torch.tensor([30 - 103.939, 20 - 116.779, 10 - 123.68])
    torch.testing.assert_close(found[0, :, 0, 0], blue_green_red)
    assert not found[0, :, 1].any()
    torch.testing.assert_close(apply(images / 255, torch.tensor([[1, 2]]), CAFFE), found)


def test_batch_images_of_bytes_and_floats_are_equal() -> None:
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    sizes = torch.tensor([[8, 8], [5, 8]])
    torch.testing.assert_close(apply(images, sizes, IMAGENET), apply(images / 255, sizes, IMAGENET))
    torch.testing.assert_close(
        batch_images(list(images), 8, 8, 32)[0], batch_images(list(images / 255), 8, 8, 32)[0]
    )


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4), (3, 0, 4)])
def test_batch_images_rejects_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="Image 1"):
        batch_images([torch.zeros(3, 4, 4), torch.zeros(shape)], 8, 8, 32)
