"""Resizing in the graph gives what decoding and the loader's canvas give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from mini_fsod.export.resize import canvas_size, fitted, resized_canvas
from mini_fsod.loader import schedule
from mini_fsod.loader.resident import images_on_canvas

SIZES = [(64, 96), (480, 640), (333, 500), (50, 31), (1000, 20), (1, 1), (97, 97), (96, 64)]


@pytest.mark.parametrize("size", SIZES)
def test_fitted_equals_the_loaders_fit(size: tuple[int, int]) -> None:
    for short, long in ((64, 96), (416, 832), (33, 34)):
        found = fitted(torch.tensor(size), short, long)
        assert found.tolist() == schedule.fit(np.array(size), short, long).tolist()
        assert canvas_size(found, 32).tolist() == schedule.up_to_stride(found.numpy()).tolist()


def canvas_of(pixels: np.ndarray, scaled: tuple[int, int], canvas: tuple[int, int]) -> np.ndarray:
    found = resized_canvas(torch.from_numpy(pixels), torch.tensor(scaled), torch.tensor(canvas))
    return found.permute(0, 2, 3, 1).numpy()


def noise(height: int, width: int, images: int = 1) -> np.ndarray:
    random = np.random.RandomState(height)
    return random.randint(0, 256, (images, height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("size", "scaled"), [((90, 130), (45, 65)), ((97, 131), (31, 64)), ((64, 80), (64, 80))]
)
def test_resized_canvas_reduces_as_pillow(size: tuple[int, int], scaled: tuple[int, int]) -> None:
    pixels = noise(*size, images=2)
    found = canvas_of(pixels, scaled, (64, 96))
    for n in range(2):
        wanted = Image.fromarray(pixels[n]).resize(scaled[::-1], Image.Resampling.BILINEAR)
        difference = np.abs(found[n, : scaled[0], : scaled[1]].astype(int) - np.asarray(wanted))
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.01  # Pillow counts in whole numbers
    assert (found[:, scaled[0] :] == 0).all()
    assert (found[:, :, scaled[1] :] == 0).all()


@pytest.mark.parametrize(("size", "scaled"), [((20, 33), (40, 66)), ((31, 50), (61, 96))])
def test_resized_canvas_enlarges_as_the_loader(
    size: tuple[int, int], scaled: tuple[int, int]
) -> None:
    pixels = noise(*size)
    one = torch.zeros(1, dtype=torch.int64)
    sides = torch.tensor([scaled])
    wanted = images_on_canvas(
        torch.from_numpy(pixels.reshape(-1, 3)), one, torch.tensor([size]), sides,
        torch.zeros_like(sides), sides, one.bool(), (64, 96), exact=False,
    )  # fmt: skip
    found = canvas_of(pixels, scaled, (64, 96))
    inside = np.s_[:, : scaled[0], : scaled[1]]
    difference = np.abs(found[inside].astype(int) - wanted.permute(0, 2, 3, 1).numpy()[inside])
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.001
