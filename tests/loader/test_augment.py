"""The strong view, operation by operation, against torchvision on single images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from mini_fsod.loader.augment import (
    ERASINGS,
    RADIUS,
    StrongDraw,
    blur_matrix,
    draw_strong,
    noise,
    strong_view,
)
from mini_fsod.loader.schedule import Plan

SIZES = [(40, 50), (64, 33), (20, 64), (48, 48)]
CANVAS = (64, 64)
NEAR = 2  # of 255


def plan_of(sizes: list[tuple[int, int]], step: int = 0) -> Plan:
    count, seen = len(sizes), np.array(sizes)
    return Plan(
        step, 0, CANVAS, 0, np.arange(count), seen, seen, np.zeros_like(seen),
        np.zeros(count, dtype=np.bool_), 0, count, count,
    )  # fmt: skip


def weak_view() -> tuple[Tensor, Tensor]:
    """Smooth colours and some noise, and a loud canvas around the images that must not leak in."""
    random = np.random.RandomState(0)
    coarse = torch.from_numpy(random.uniform(0, 255, (len(SIZES), 3, 6, 6)))
    images = torch.nn.functional.interpolate(coarse, CANVAS, mode="bilinear")
    images += torch.from_numpy(random.uniform(-20, 20, images.shape))
    images = images.clamp(0, 255).to(torch.uint8)
    for image, (height, width) in zip(images, SIZES, strict=True):
        image[:, height:] = 255
        image[:, :, width:] = 255
    return images, torch.tensor(SIZES)


def neutral(count: int = len(SIZES)) -> StrongDraw:
    return StrongDraw(
        order=(0, 1, 2, 3),
        colour=np.tile([1.0, 1.0, 1.0, 0.0], (count, 1)),
        grey=np.zeros(count),
        sigma=np.zeros(count),
        erase=np.zeros((count, 3, 4), dtype=np.int64),
        noise=np.zeros(count, dtype=np.int64),
    )


def crop(images: Tensor, n: int) -> Tensor:
    return images[n, :, : SIZES[n][0], : SIZES[n][1]]


def assert_around_is_untouched(images: Tensor, view: Tensor) -> None:
    for n, (height, width) in enumerate(SIZES):
        assert (view[n, :, height:] == images[n, :, height:]).all()
        assert (view[n, :, :, width:] == images[n, :, :, width:]).all()


def test_strong_view_of_a_neutral_draw_changes_nothing() -> None:
    images, sizes = weak_view()
    view = strong_view(images, sizes, neutral())
    assert (view == images).all()
    assert view.is_contiguous(memory_format=torch.channels_last)


STRENGTHS = {
    0: [0.6, 1.4, 1.1, 1.0],
    1: [0.6, 1.4, 0.9, 1.0],
    2: [0.6, 1.4, 1.2, 0.0],
    3: [-0.1, 0.1, 0.05, 0.0],
}
OPERATIONS = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]


@pytest.mark.parametrize("operation", [0, 1, 2, 3])
def test_recoloured_matches_torchvision(operation: int) -> None:
    images, sizes = weak_view()
    draw = neutral()
    draw.colour[:, operation] = STRENGTHS[operation]
    view = strong_view(images, sizes, draw)
    for n, strength in enumerate(STRENGTHS[operation]):
        wanted = OPERATIONS[operation](crop(images, n), strength)
        assert (crop(view, n).int() - wanted.int()).abs().max() <= NEAR
    assert_around_is_untouched(images, view)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_recoloured_applies_the_drawn_order(order: tuple[int, ...]) -> None:
    images, sizes = weak_view()
    draw = replace(neutral(), order=order)
    draw.colour[:] = np.array([STRENGTHS[k] for k in range(4)]).T
    view = strong_view(images, sizes, draw)
    for n in range(len(SIZES)):
        wanted = crop(images, n) / 255
        for k in order:
            wanted = OPERATIONS[k](wanted, STRENGTHS[k][n])
        assert (crop(view, n) - 255 * wanted).abs().max() <= NEAR


def test_hue_of_pure_colours() -> None:
    """A turn by a third takes red to green, green to blue, blue to red; grey stays."""
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [90, 90, 90], [200, 100, 50]])
    images = colours.to(torch.uint8).T[None, :, :, None]  # (1, 3, 5, 1)
    draw = neutral(1)
    draw.colour[:, 3] = 1 / 3
    view = strong_view(images, torch.tensor([[5, 1]]), draw)
    wanted = [[0, 255, 0], [0, 0, 255], [255, 0, 0], [90, 90, 90], [50, 200, 100]]
    assert view[0, :, :, 0].T.tolist() == wanted


def test_grey_matches_torchvision() -> None:
    images, sizes = weak_view()
    draw = neutral()
    draw.grey[::2] = 1
    view = strong_view(images, sizes, draw)
    for n in (0, 2):
        wanted = tv.rgb_to_grayscale(crop(images, n), num_output_channels=3)
        assert (crop(view, n).int() - wanted.int()).abs().max() <= NEAR
    assert (view[1::2] == images[1::2]).all()
    assert_around_is_untouched(images, view)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.3, 2.0])
def test_blur_matches_torchvision_and_mirrors_at_the_edge(sigma: float) -> None:
    images, sizes = weak_view()
    draw = neutral()
    draw.sigma[:3] = sigma
    view = strong_view(images, sizes, draw)
    for n in range(3):
        wanted = tv.gaussian_blur(crop(images, n), [2 * RADIUS + 1] * 2, [sigma] * 2)
        assert (crop(view, n).int() - wanted.int()).abs().max() <= NEAR
    assert (view[3] == images[3]).all()
    assert_around_is_untouched(images, view)


def test_blur_keeps_constant_images_constant() -> None:
    lengths = torch.arange(1, 20)
    matrix = blur_matrix(torch.full((19,), 2.0), lengths, 24)
    for n, length in enumerate(lengths.tolist()):
        assert torch.allclose(matrix[n, :length].sum(1), torch.ones(length))
        assert (matrix[n, :, length:] == 0).all()
    assert matrix.isfinite().all()


def test_strong_view_fills_erased_rectangles_with_noise() -> None:
    images, sizes = weak_view()
    draw = neutral()
    draw.erase[0, 1] = 10, 20, 5, 7
    draw.erase[2, 0] = 0, 0, 19, 3
    draw.noise[:] = 5, 6, 7, 8
    view = strong_view(images, sizes, draw)
    inside = torch.zeros(len(SIZES), *CANVAS, dtype=torch.bool)
    inside[0, 10:15, 20:27] = True
    inside[2, :19, :3] = True
    changed = (view != images).any(1)
    assert not changed[~inside].any()
    assert changed[inside].float().mean() > 0.95
    assert_around_is_untouched(images, view)


def test_noise_is_uniform_and_deterministic() -> None:
    drawn = noise(torch.tensor([1, 2]), 64, 64)  # (2, 64, 3, 64)
    counts = torch.bincount(drawn.flatten().long(), minlength=256)
    assert abs(drawn.float().mean() - 127.5) < 2
    assert counts.min() > 96 / 2  # 96 expected of each byte
    assert counts.max() < 96 * 2
    channels = drawn.float().permute(2, 0, 1, 3).flatten(1)
    assert (torch.corrcoef(channels) - torch.eye(3)).abs().max() < 0.05
    assert (drawn[0] != drawn[1]).float().mean() > 0.98
    # worked out with Python's integers: the bytes of hash(256 x key + place)
    assert drawn[0, 0, :, 0].tolist() == [142, 219, 86]
    assert noise(torch.tensor([2**24 - 1]), 64, 64)[0, 63, :, 63].tolist() == [88, 47, 153]


def test_draw_strong_matches_unbiased_teacher() -> None:
    draws = [draw_strong(0, plan_of(SIZES * 16, step)) for step in range(60)]

    def share(mask: np.ndarray) -> float:
        return float(mask.mean())

    colour = np.concatenate([d.colour for d in draws])
    assert abs(share(colour[:, 0] != 1) - 0.8) < 0.02
    on = colour[colour[:, 0] != 1]
    for k, (low, high) in enumerate([(0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)]):
        assert low <= on[:, k].min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < on[:, k].max() <= high
    assert abs(share(np.concatenate([d.grey for d in draws])) - 0.2) < 0.02
    sigma = np.concatenate([d.sigma for d in draws])
    assert abs(share(sigma > 0) - 0.5) < 0.03
    assert 0.1 <= sigma[sigma > 0].min() < 0.12
    assert 1.98 < sigma.max() <= 2
    assert len({d.order for d in draws}) > 15  # of 24
    erase = np.concatenate([d.erase for d in draws])  # (3840, 3, 4)
    sizes = np.tile(np.array(SIZES), (16 * 60, 1))
    for k, (chance, small, large, flat, tall) in enumerate(ERASINGS):
        top, left, height, width = erase[erase[:, k, 2] > 0, k].T
        own = sizes[erase[:, k, 2] > 0]
        assert abs(len(top) / len(erase) - chance) < 0.03
        assert (top >= 0).all()
        assert (left >= 0).all()
        assert (top + height <= own[:, 0]).all()
        assert (left + width <= own[:, 1]).all()
        area = height * width / own.prod(1)
        assert small * 0.6 < area.min()  # whole pixels: a side of 1.4 is rounded to 1
        assert area.max() < large * 1.2
        assert flat * 0.6 < (height / width).min()
        assert (height / width).max() < tall * 1.6


def test_draw_strong_depends_on_seed_and_step_alone() -> None:
    images, sizes = weak_view()

    def view(seed: int, step: int) -> Tensor:
        return strong_view(images, sizes, draw_strong(seed, plan_of(SIZES, step)))

    assert torch.equal(view(1, 7), view(1, 7))
    assert not torch.equal(view(1, 7), view(1, 8))
    assert not torch.equal(view(1, 7), view(2, 7))


def test_draw_strong_is_the_same_for_any_number_of_ranks() -> None:
    images, sizes = weak_view()
    plan = plan_of(SIZES, 3)
    whole = strong_view(images, sizes, draw_strong(0, plan))
    parts = [
        strong_view(images[n : n + 2], sizes[n : n + 2], draw_strong(0, plan.part(rank, 2)))
        for rank, n in enumerate((0, 2))
    ]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_strong_view_on_cuda_is_equal_and_does_not_wait() -> None:
    images, sizes = weak_view()
    draw = draw_strong(0, plan_of(SIZES))
    there, sizes_there = images.cuda(), sizes.cuda()
    strong_view(there, sizes_there, draw)
    torch.cuda.set_sync_debug_mode("error")
    try:
        view = strong_view(there, sizes_there, draw)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (view.cpu().int() - strong_view(images, sizes, draw).int()).abs().max() <= 1
