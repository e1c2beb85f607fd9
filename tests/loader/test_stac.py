"""STAC's view: colours against torchvision, the map inside a box against PIL's arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from mini_fsod.loader.schedule import Plan
from mini_fsod.loader.stac import (
    BEHIND,
    COLOURS,
    CUT,
    StacDraw,
    choose_box,
    draw_stac,
    move_inside,
    stac_view,
)

SIZES = np.array([(40, 50), (64, 33), (20, 64)])
CANVAS = (64, 64)
NAMES = [*COLOURS]


def plan_of(count: int, step: int = 0) -> Plan:
    sizes = np.tile(SIZES, (count, 1))[:count]
    return Plan(
        step, 0, CANVAS, 0, np.arange(count), sizes, sizes, np.zeros_like(sizes),
        np.zeros(count, dtype=np.bool_), 0, count, count,
    )  # fmt: skip


def weak_view() -> Tensor:
    random = np.random.RandomState(0)
    coarse = torch.from_numpy(random.uniform(0, 255, (len(SIZES), 3, 6, 6)))
    images = torch.nn.functional.interpolate(coarse, CANVAS, mode="bilinear")
    return images.round().to(torch.uint8)


def neutral(count: int = len(SIZES)) -> StacDraw:
    """The identity, no shift, no cutout."""
    zeros = np.zeros(count, dtype=np.int64)
    cutouts = np.zeros((count, 5, 4), dtype=np.int64)
    return StacDraw(zeros, zeros + 5, np.zeros(count), zeros, np.zeros(count), cutouts)


def boxes(*rows: list[float]) -> tuple[Tensor, Tensor]:
    """One box of each image, the same for all."""
    found = torch.tensor(rows or [[5.0, 5.0, 25.0, 15.0]]).expand(len(SIZES), -1, 4)
    return found, torch.ones(found.shape[:2], dtype=torch.bool)


def test_stac_view_of_a_neutral_draw_changes_nothing() -> None:
    images = weak_view()
    view = stac_view(images, SIZES, *boxes(), neutral())
    assert torch.equal(view, images)
    assert view.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("autocontrast", tv.autocontrast),
        ("equalize", tv.equalize),
        ("solarize", lambda image: tv.solarize(image, 128)),
        ("colour", lambda image: tv.adjust_saturation(image, 1.0)),
        ("contrast", lambda image: tv.adjust_contrast(image, 1.0)),
        ("brightness", lambda image: tv.adjust_brightness(image, 1.0)),
        ("sharpness", lambda image: tv.adjust_sharpness(image, 1.0)),
        ("posterize", lambda image: tv.posterize(image, 2)),
    ],
)
def test_stac_view_applies_one_colour_operation_inside_the_image(name: str, wanted: object) -> None:
    images = weak_view()
    draw = replace(neutral(), colour=np.array([NAMES.index(name), 0, 0]))
    view = stac_view(images, SIZES, *boxes(), draw)
    height, width = SIZES[0]
    part = images[0, :, :height, :width]
    assert torch.equal(view[0, :, :height, :width], wanted(part))  # type: ignore[operator]
    assert torch.equal(view[1:], images[1:])
    around = torch.ones(CANVAS, dtype=torch.bool)
    around[:height, :width] = False
    assert torch.equal(view[0][:, around], images[0][:, around])


def test_stac_view_enhances_by_its_magnitude() -> None:
    """Magnitudes 1 to 9 are factors 0.28 to 1.72."""
    images = weak_view()
    draw = replace(
        neutral(), colour=np.full(3, NAMES.index("brightness")), level=np.array([1, 5, 9])
    )
    view = stac_view(images, SIZES, *boxes(), draw)
    for n, factor in enumerate((0.28, 1.0, 1.72)):
        height, width = SIZES[n]
        part = images[n, :, :height, :width]
        assert torch.equal(view[n, :, :height, :width], tv.adjust_brightness(part, factor))


def test_choose_box_takes_one_of_the_valid_boxes() -> None:
    rows = torch.arange(12.0).view(1, 3, 4).expand(4, 3, 4) + 0.5
    valid = torch.tensor([[True, False, True]] * 3 + [[False] * 3])
    chosen, has_box = choose_box(rows, valid, torch.tensor([0.0, 0.49, 0.5, 0.9]))
    assert chosen[:3, 0].tolist() == [0, 0, 8]  # whole pixels of the first, the first, the third
    assert has_box.tolist() == [True, True, True, False]


def test_choose_box_without_any_box() -> None:
    chosen, has_box = choose_box(
        torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool), torch.rand(2)
    )
    assert chosen.shape == (2, 4)
    assert not has_box.any()


def column_image() -> Tensor:
    """(1, 3, 20, 40): a pixel's value is its column times 5."""
    return (torch.arange(40) * 5).to(torch.uint8).expand(1, 3, 20, 40).clone()


BOX = torch.tensor([[10.0, 0.0, 30.0, 20.0]])
HAS = torch.tensor([True])


@pytest.mark.parametrize(("amount", "columns"), [(1.0, 1), (-1.0, -1)])
def test_move_inside_shifts_the_content_of_the_box(amount: float, columns: int) -> None:
    """A twentieth of 20 pixels is one; grey comes in from behind, the rest of the image stays."""
    image = column_image()
    moved = move_inside(image, BOX, HAS, np.array([0]), np.array([amount]))
    wanted = torch.arange(40) - columns * ((torch.arange(40) >= 10) & (torch.arange(40) < 30))
    expected = (wanted * 5).to(torch.uint8)
    expected[10 if columns > 0 else 29] = BEHIND
    assert torch.equal(moved[0, 0, 7], expected)
    assert torch.equal(moved[0, 2, 0], moved[0, 0, 19])


def test_move_inside_rotates_around_the_centre_of_the_box() -> None:
    """Half of ten degrees: the source of a pixel is the pixel, turned back around (20, 10)."""
    image = column_image()
    moved = move_inside(image, BOX, HAS, np.array([2]), np.array([0.5]))
    angle = np.deg2rad(5)
    for y, x in ((3, 14), (10, 20), (16, 27)):
        source = np.cos(angle) * (x + 0.5 - 20) + np.sin(angle) * (y + 0.5 - 10) + 20 - 0.5
        assert moved[0, 0, y, x].item() == pytest.approx(5 * source, abs=0.6)
    assert torch.equal(moved[..., :10], image[..., :10])
    assert torch.equal(moved[..., 30:], image[..., 30:])


def test_move_inside_shears_rows() -> None:
    image = column_image()
    moved = move_inside(image, BOX, HAS, np.array([3]), np.array([1.0]))
    lean = np.tan(np.deg2rad(10))
    for y in (2, 9, 17):
        source = 20 + lean * (y + 0.5 - 10)
        assert moved[0, 0, y, 20].item() == pytest.approx(5 * source, abs=0.6)


def test_move_inside_leaves_images_without_a_box() -> None:
    image = column_image()
    for kind in range(4):
        moved = move_inside(image, BOX, ~HAS, np.array([kind]), np.array([1.0]))
        assert torch.equal(moved, image)


def test_stac_view_cuts_squares_out_of_the_image_alone() -> None:
    images = weak_view()
    images[images == CUT] = CUT + 1
    draw = neutral()
    draw.cutouts[0, 0] = 35, 45, 10, 10  # reaches beyond 40 x 50
    draw.cutouts[2, 4] = -3, 0, 6, 6
    view = stac_view(images, SIZES, *boxes(), draw)
    cut = (view == CUT).all(1)
    assert cut[0].nonzero().min(0)[0].tolist() == [35, 45]
    assert cut.sum((1, 2)).tolist() == [5 * 5, 0, 3 * 6]
    assert torch.equal(view.masked_fill(cut[:, None], 0), images.masked_fill(cut[:, None], 0))


def test_draw_stac_matches_stac() -> None:
    draw = draw_stac(0, plan_of(6_000))
    assert {*draw.colour.tolist()} == {*range(9)}
    assert np.bincount(draw.colour).min() > 6_000 / 9 * 0.85
    assert {*draw.level.tolist()} == {*range(1, 10)}
    assert np.bincount(draw.affine).min() > 6_000 / 4 * 0.9
    assert -1 <= draw.amount.min() < -0.99
    assert 0.99 < draw.amount.max() <= 1
    side = draw.cutouts[..., 2]
    short = np.tile(SIZES.min(1), 2_000)
    assert (side <= 0.2 * short[:, None]).all()
    assert (draw.cutouts[..., 3] == side).all()
    # one to five squares, of any size up to the largest
    assert (side[:, 4] > 0).mean() == pytest.approx(0.2 * (1 - 1 / 7), abs=0.04)
    centre = draw.cutouts[..., 0] + side / 2
    assert centre.min() >= -1
    assert (centre <= np.tile(SIZES[:, 0], 2_000)[:, None]).all()


def test_draw_stac_depends_on_seed_and_step_alone_for_any_number_of_ranks() -> None:
    plan = plan_of(4, step=7)
    whole, again, other = draw_stac(1, plan), draw_stac(1, plan), draw_stac(2, plan)
    assert (whole.cutouts == again.cutouts).all()
    assert (whole.amount != other.amount).all()
    parts = [draw_stac(1, plan.part(rank, 2)) for rank in (0, 1)]
    for name in ("colour", "level", "box", "affine", "amount", "cutouts"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert (joined == getattr(whole, name)).all(), name
