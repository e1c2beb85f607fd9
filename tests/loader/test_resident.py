"""Batches from resident pictures: pixels and boxes move together."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from helpers.schedules import plans_of
from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset, Ints
from mini_fsod.loader.cache import Pictures, cached_pictures
from mini_fsod.loader.decode import decode
from mini_fsod.loader.resident import (
    FILL,
    Annotations,
    Resident,
    images_on_canvas,
    pad_rows,
    pixels_on_device,
    to_canvas,
    to_picture,
)
from mini_fsod.loader.schedule import Plan, Schedule, each_once

CPU = torch.device("cpu")
SHARD = Path(__file__).resolve().parents[3] / "shared" / "voc" / "images-1-voc07-trainval.tar"


def pictures_in_memory(images: list[np.ndarray], own: Ints | None = None) -> Pictures:
    """Pictures in memory, without files."""
    kept = np.array([i.shape[:2] for i in images], dtype=np.int64)
    ends = np.cumsum(3 * kept.prod(1))
    return Pictures(
        files=tuple(f"{n}.png" for n in range(len(images))),
        pixels=np.concatenate([i.reshape(-1) for i in images]),
        offset=np.concatenate([[0], ends[:-1]]),
        stored=kept,
        sizes=kept if own is None else own,
    )


def random_images(*sizes: tuple[int, int]) -> list[np.ndarray]:
    random = np.random.RandomState(0)
    return [random.randint(0, 256, (*s, 3)).astype(np.uint8) for s in sizes]


def plan_of(
    sizes: list[tuple[int, int]], canvas: tuple[int, int], flip: list[bool] | None = None
) -> Plan:
    count = len(sizes)
    flips = np.array(flip or [False] * count)
    seen, whole = np.array(sizes), np.zeros((count, 2), dtype=np.int64)
    return Plan(0, 0, canvas, 0, np.arange(count), seen, seen, whole, flips, 0, count, count)


def no_targets(images: int) -> Annotations:
    return Annotations.of(NO_BOXES, images)


def test_batch_copies_pixels_at_the_stored_scale() -> None:
    a, b = random_images((2, 3), (4, 2))
    plan = plan_of([(2, 3), (4, 2)], (4, 5), [True, False])
    shown = (
        Resident(pictures_in_memory([a, b]), no_targets(2), CPU)
        .batch(plan)
        .images.permute(0, 2, 3, 1)
    )
    wanted = np.tile(np.array(FILL, dtype=np.uint8), (2, 4, 5, 1))
    wanted[0, :2, :3] = a[:, ::-1]
    wanted[1, :4, :2] = b
    assert (shown.numpy() == wanted).all()


@pytest.mark.parametrize("size", [(9, 13), (20, 31), (5, 4), (1, 1), (40, 7)])
@pytest.mark.parametrize("flip", [False, True])
def test_batch_resizes_bilinearly(size: tuple[int, int], flip: bool) -> None:
    image, other = random_images((11, 17), (11, 17))
    plan = plan_of([size, (11, 17)], (40, 32), [flip, False])
    batch = Resident(pictures_in_memory([image, other]), no_targets(2), CPU).batch(plan)
    wanted = interpolate(
        torch.from_numpy(image).permute(2, 0, 1)[None].float(), size, mode="bilinear"
    )[0]
    wanted = wanted.flip(-1) if flip else wanted
    shown = batch.images[0, :, : size[0], : size[1]].float()
    assert (shown - wanted).abs().max() < 0.51  # rounded to bytes
    fill = torch.tensor(FILL, dtype=torch.uint8)[:, None]
    assert (batch.images[0, :, size[0] :].flatten(1) == fill).all()
    assert (batch.images[0, :, :, size[1] :].flatten(1) == fill).all()
    # an image at its own scale is not changed by the company of others
    assert (batch.images[1, :, :11, :17].permute(1, 2, 0).numpy() == other).all()


def test_images_on_canvas_agrees_with_and_without_exact() -> None:
    pictures = pictures_in_memory(random_images((6, 9), (8, 3)))
    pixels, start = torch.from_numpy(pictures.pixels).view(-1, 3), torch.tensor([0, 54])
    sizes, flip = torch.from_numpy(pictures.stored), torch.tensor([True, False])
    whole = torch.zeros_like(sizes)
    one = images_on_canvas(pixels, start, sizes, sizes, whole, sizes, flip, (32, 32), exact=True)
    two = images_on_canvas(pixels, start, sizes, sizes, whole, sizes, flip, (32, 32), exact=False)
    assert (one == two).all()
    assert one.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("image", "images", "rows"),
    [
        ([0, 0, 2], 3, [[0, 1], [-1, -1], [2, -1]]),
        ([2, 0, 0], 3, [[1, 2], [-1, -1], [0, -1]]),  # any order of images
        ([], 2, [[-1], [-1]]),  # no boxes at all: one empty place each
    ],
)
def test_pad_rows(image: list[int], images: int, rows: list[list[int]]) -> None:
    assert pad_rows(np.array(image, dtype=np.int64), images).tolist() == rows


def test_annotations_drop_boxes_and_keep_their_indices() -> None:
    boxes = Boxes.of([0, 0, 1], [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 2, 2]], [4, 5, 6])
    targets = Annotations.of(boxes, 2, keep=np.array([False, True, True]))
    assert targets.box_index.tolist() == [[1], [2]]
    assert targets.labels.tolist() == [[5], [6]]
    assert targets.boxes.tolist() == [[[5, 6, 12, 14]], [[0, 0, 2, 2]]]


def test_to_canvas_scales_and_flips_boxes() -> None:
    boxes = torch.tensor([[[10.0, 20.0, 30.0, 60.0]], [[10.0, 20.0, 30.0, 60.0]]])
    scale = torch.tensor([[2.0, 0.5], [2.0, 0.5]])
    sizes = torch.tensor([[50, 200], [50, 200]])
    moved, seen = to_canvas(boxes, scale, torch.zeros(2, 2), torch.tensor([False, True]), sizes)
    assert moved.tolist() == [[[20, 10, 60, 30]], [[140, 10, 180, 30]]]
    assert seen.tolist() == [[1], [1]]


def test_to_canvas_clips_boxes_to_the_window() -> None:
    # at twice the size the box is 20 40 60 80; the window of 30 x 50 begins at x = 30, y = 50
    boxes = torch.tensor([[[10.0, 20.0, 30.0, 40.0], [0.0, 0.0, 15.0, 40.0], [0, 0, 0, 0]]])
    scale, shift = torch.full((1, 2), 2.0), torch.tensor([[30.0, 50.0]])
    sizes = torch.tensor([[20, 50]])
    moved, seen = to_canvas(boxes, scale, shift, torch.tensor([False]), sizes)
    assert moved[0, 0].tolist() == [0, 0, 30, 20]
    assert seen.tolist() == [[600 / 1600, 0, 0]]  # the second only touches the window
    mirrored, _ = to_canvas(boxes, scale, shift, torch.tensor([True]), sizes)
    assert mirrored[0, 0].tolist() == [20, 0, 50, 20]


@pytest.mark.parametrize("flip", [False, True])
def test_batch_crops_an_enlarged_picture(flip: bool) -> None:
    (image,) = random_images((11, 17))
    one = plan_of([(16, 20)], (16, 32), [flip])
    plan = replace(one, scaled=np.array([[22, 34]]), shift=np.array([[5, 9]]))
    boxes = Boxes.of([0, 0], [[5, 3, 6, 5], [0, 0, 5, 3]], [1, 2])
    batch = Resident(pictures_in_memory([image]), Annotations.of(boxes, 1), CPU).batch(plan)
    whole = interpolate(
        torch.from_numpy(image).permute(2, 0, 1)[None].float(), (22, 34), mode="bilinear"
    )[0]
    wanted = whole[:, 5:21, 9:29]
    wanted = wanted.flip(-1) if flip else wanted
    assert (batch.images[0, :, :, :20].float() - wanted).abs().max() < 0.51
    assert batch.targets.valid.tolist() == [[True, False]]  # of the second a fortieth is seen
    assert batch.targets.ignore is not None
    assert batch.targets.ignore.tolist() == [[False, True]]
    back = to_picture(batch.targets.boxes, batch)
    assert back[0, 0].tolist() == pytest.approx([5, 3, 11, 8])


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("size", [(60, 80), (90, 120), (45, 61)])
def test_batch_moves_boxes_with_their_pixels(flip: bool, size: tuple[int, int]) -> None:
    """A white rectangle in a picture of 60 x 80, kept at 120 x 160 or smaller."""
    image = np.zeros((60, 80, 3), dtype=np.uint8)
    image[12:36, 40:72] = 255
    boxes = Boxes.of([0], [[2 * 40, 2 * 12, 2 * 32, 2 * 24]], [3])  # in a picture twice as large
    pictures = pictures_in_memory([image], own=np.array([[120, 160]]))
    batch = Resident(pictures, Annotations.of(boxes, 1), CPU).batch(
        plan_of([size], (96, 128), [flip])
    )
    white = batch.images[0, 0, : size[0], : size[1]] > 127
    rows, columns = white.any(1).nonzero().flatten(), white.any(0).nonzero().flatten()
    found = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    assert (batch.targets.boxes[0, 0] - torch.tensor(found)).abs().max() < 1
    assert batch.targets.labels.tolist() == [[3]]
    assert batch.targets.valid.tolist() == [[True]]
    back = to_picture(batch.targets.boxes, batch)
    assert torch.allclose(back[0, 0], torch.tensor([80.0, 24.0, 144.0, 72.0]), atol=1e-4)


def test_batch_has_no_valid_target_for_images_without_boxes() -> None:
    boxes = Boxes.of([1, 1], [[0, 0, 1, 1], [1, 1, 1, 1]], [0, 1])
    images = random_images((3, 3), (3, 3))
    batch = Resident(pictures_in_memory(images), Annotations.of(boxes, 2), CPU).batch(
        plan_of([(3, 3)] * 2, (32, 32))
    )
    assert batch.targets.valid.tolist() == [[False, False], [True, True]]
    assert batch.targets.ignore is not None
    assert not batch.targets.ignore.any()
    assert batch.box_index.tolist() == [[-1, -1], [0, 1]]


def test_batches_are_the_same_after_a_resume() -> None:
    pictures = pictures_in_memory(random_images(*[(30 + n, 40) for n in range(12)]))
    source = Resident(pictures, no_targets(12), CPU)

    def schedule() -> Schedule:
        return Schedule(pictures.sizes, 2, (32, 48), 96, seed=5)

    through = list(source.batches(plans_of(schedule(), 0, 9)))
    rest = source.batches(plans_of(schedule(), 4, 9))
    for a, b in zip(through[4:], rest, strict=True):
        assert (a.images == b.images).all()
        assert (a.image_index == b.image_index).all()


def real_pictures(folder: Path, count: int) -> Dataset:
    """A few dozens of the small VOC's pictures, of varied shapes."""
    if not SHARD.exists():
        pytest.skip(f"{SHARD.name} is not beside the checkout")
    names = []
    with tarfile.open(SHARD) as archive:
        for member in archive:
            if member.name.endswith(".avif"):
                archive.extract(member, folder, filter="data")
                names.append(member.name)
                if len(names) == count:
                    break
    return Dataset(
        "voc", folder, ("a",), (1,), tuple(names), tuple(names),
        np.zeros((count, 2), dtype=np.int64), NO_BOXES, tuple(names),
    )  # fmt: skip


def test_batches_of_photographs_are_not_resampled(tmp_path: Path) -> None:
    data = real_pictures(tmp_path, 36)
    pictures = cached_pictures(data, tmp_path / "cache", 320, 1333, 2)
    assert (pictures.sizes.min(1) == 320).all()
    source = Resident(pictures, no_targets(36), CPU)
    seen = 0
    for batch in source.batches(each_once(pictures.sizes, 8, 320, 1333)):
        assert (pictures.stored[batch.plan.images] == batch.plan.sizes).all()
        for n, i in enumerate(batch.plan.images[: batch.plan.count].tolist()):
            height, width = batch.plan.sizes[n].tolist()
            shown = batch.images[n, :, :height, :width].permute(1, 2, 0).numpy()
            assert (shown == decode(data.path(i), 320, 1333)).all()
            seen += 1
    assert seen == 36


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [(30, 40), (36, 48)])
def test_batch_on_cuda_is_equal_and_does_not_wait(size: tuple[int, int]) -> None:
    device = torch.device("cuda")
    pictures = pictures_in_memory(random_images((30, 40), (30, 40)))
    boxes = Boxes.of([0, 1], [[1, 2, 3, 4], [5, 6, 7, 8]], [0, 1])
    plan = plan_of([size] * 2, (64, 64), [True, False])
    source = Resident(pictures, Annotations.of(boxes, 2), device)
    source.batch(plan)
    torch.cuda.set_sync_debug_mode("error")
    try:
        there = source.batch(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    here = Resident(pictures, Annotations.of(boxes, 2), CPU).batch(plan)
    assert (there.images.cpu().int() - here.images.int()).abs().max() <= 1
    assert torch.allclose(there.targets.boxes.cpu(), here.targets.boxes)


def test_batch_of_some_pictures_uses_pixels_that_are_on_the_device() -> None:
    a, b = random_images((30, 40), (30, 40))
    pictures = pictures_in_memory([a, b])
    pixels = pixels_on_device(pictures, CPU)
    part = pictures.take(pictures.files[1:])
    source = Resident(part, no_targets(1), CPU, pixels=pixels)
    plan = plan_of([(30, 40)], (32, 64))
    assert torch.equal(source.batch(plan).images[0, :, :30, :40].permute(1, 2, 0), torch.tensor(b))
    assert pixels.data_ptr() == pictures.pixels.ctypes.data  # not copied


def test_batch_moves_extra_boxes_like_its_targets() -> None:
    (image,) = random_images((11, 17))
    plan = plan_of([(22, 34)], (32, 64), [True])
    boxes = Boxes.of([0], [[2, 3, 5, 4]], [1])
    mined = Boxes.of([0, 0], [[2, 3, 5, 4], [0, 0, 1, 1]], [4, 6])
    pool = Annotations.of(mined, 1, scores=np.array([0.5, 0.25]))
    batch = Resident(pictures_in_memory([image]), Annotations.of(boxes, 1), CPU, [pool]).batch(plan)
    (also,) = batch.extra
    assert also.boxes[0, 0].tolist() == batch.targets.boxes[0, 0].tolist()
    assert also.labels.tolist() == [[4, 6]]
    assert also.scores.tolist() == [[0.5, 0.25]]
    assert also.valid.all()
