from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as T

from mini_fsod.discriminator.moco_views import (
    WHOLE,
    WINDOWS,
    Crops,
    coloured,
    draw_colours,
    draw_crops,
    draw_part,
)
from mini_fsod.loader.augment import ColourDraw
from mini_fsod.loader.schedule import Plan, Schedule

HELD = np.array([[100, 200], [60, 60], [300, 80]])


def plan(step: int = 0) -> Plan:
    return Schedule(np.full((3, 2), 32), 3, (32,), 32, seed=0, flip=False).plan(step)


@given(st.integers(0, 50), st.sampled_from([WINDOWS, WHOLE]))
def test_draw_crops_stays_inside_the_image(step: int, crops: Crops) -> None:
    found = draw_crops(plan(step), HELD, 32, crops, True, seed=1)
    assert found.images.tolist() == plan(step).images.tolist() * 2
    assert found.canvas == (32, 32)
    assert (found.sizes == 32).all()
    assert (found.shift >= 0).all()
    assert (found.shift + 32 <= found.scaled).all()
    share = (32 / found.scaled).prod(1)  # of the picture's area
    assert (share <= 1).all()
    least = crops.view[0] * (1.0 if crops.window is None else crops.window[0])
    assert (share[found.images == 1] > 0.9 * least).all()  # of a long one a side may be cut


def test_draw_crops_takes_both_views_from_one_window() -> None:
    """A window of a quarter of the area, all of it in both views: the same place twice."""
    found = draw_crops(plan(), HELD, 32, Crops((0.25, 0.25), (1.0, 1.0)), False, seed=1)
    corner, side = found.shift / found.scaled, 32 / found.scaled
    shared = np.minimum(corner[:3] + side[:3], corner[3:] + side[3:])
    shared = np.clip(shared - np.maximum(corner[:3], corner[3:]), 0, None).prod(1)
    assert (shared / side[:3].prod(1) > 0.6).all()  # the ratio of the sides is drawn again
    assert not found.flip.any()


def test_draw_crops_depends_on_step_and_seed() -> None:
    made = [
        draw_crops(plan(step), HELD, 32, WINDOWS, True, seed).shift.tolist()
        for step, seed in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    assert made[0] == made[1]
    assert len({str(m) for m in made}) == 3


@pytest.mark.parametrize(
    ("chances", "corner", "sides"),
    [
        ((0.0, 0.5, 0.0, 0.0), (0, 0), (50, 50)),  # a quarter of 100 x 100, square
        ((0.0, 0.5, 0.5, 1.0), (25, 50), (50, 50)),
        ((1.0, 0.5, 0.3, 0.3), (0, 0), (100, 100)),  # all of it
        ((0.0, 1.0, 0.0, 0.0), (0, 0), (50 * 0.75**0.5, 50 / 0.75**0.5)),  # 4 to 3
        ((1.0, 1.0, 0.0, 0.5), (0, 0), (100 * 0.75**0.5, 100)),  # too wide: cut
    ],
)
def test_draw_part_of_hand_computed_chances(
    chances: tuple[float, ...], corner: tuple[float, float], sides: tuple[float, float]
) -> None:
    found = draw_part(np.array([[100.0, 100.0]]), (0.25, 1.0), np.array([chances]))
    np.testing.assert_allclose(found[0], [corner], atol=1e-9)
    np.testing.assert_allclose(found[1], [sides])


def neutral(n: int) -> ColourDraw:
    strength = np.tile([1.0, 1.0, 1.0, 0.0], (n, 1))
    return ColourDraw((0, 1, 2, 3), strength, np.zeros(n), np.zeros(n))


def test_coloured_equals_torchvision() -> None:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 3, 16, 16), generator=rng, dtype=torch.uint8)
    sizes = torch.full((3, 2), 16)
    assert torch.equal(coloured(images, sizes, neutral(3)), images)
    strength = np.tile([1.3, 0.7, 1.2, 0.05], (3, 1))
    drawn = ColourDraw((2, 0, 3, 1), strength, np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.5]))
    found = coloured(images, sizes, drawn).float() / 255
    wanted = images.float() / 255
    wanted = T.adjust_brightness(T.adjust_saturation(wanted, 1.2), 1.3)
    wanted = T.adjust_contrast(T.adjust_hue(wanted, 0.05), 0.7)
    wanted[1] = T.rgb_to_grayscale(wanted[1], 3)
    wanted[2] = T.gaussian_blur(wanted[2], [13, 13], [1.5, 1.5])
    torch.testing.assert_close(found, wanted, atol=0.01, rtol=0)


def test_draw_colours_has_mocos_probabilities() -> None:
    images = np.zeros(4000, dtype=np.int64)
    drawn = draw_colours(replace(plan(), images=images), seed=0)
    kept = (drawn.colour == [1, 1, 1, 0]).all(1)
    assert np.mean(kept) == pytest.approx(0.2, abs=0.03)
    assert np.mean(drawn.grey) == pytest.approx(0.2, abs=0.03)
    assert np.mean(drawn.sigma > 0) == pytest.approx(0.5, abs=0.03)
    assert drawn.sigma.max() <= 2
    spread = np.abs(drawn.colour - [1, 1, 1, 0]).max(0)
    np.testing.assert_allclose(spread, [0.4, 0.4, 0.4, 0.1], rtol=0.01)
