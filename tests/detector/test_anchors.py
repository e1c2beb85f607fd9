from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList

from mini_fsod.detector.anchors import cached_anchors, canvas_anchors, grid_sizes, level_counts
from mini_fsod.errors import UserError


@pytest.mark.parametrize("canvas", [(320, 448), (352, 96), (32, 32)])
def test_canvas_anchors_equal_torchvision(canvas: tuple[int, int]) -> None:
    sizes = tuple((s, s * 1.26) for s in (32, 64, 128, 256, 512))
    ratios = (0.5, 1.0, 2.0)
    maps = [torch.zeros(1, 1, rows, columns) for rows, columns in grid_sizes(canvas)]
    images = ImageList(torch.zeros(1, 3, *canvas), [canvas])
    wanted = AnchorGenerator(sizes, (ratios,) * 5)(images, maps)[0]
    found = canvas_anchors(canvas, sizes, ratios, torch.device("cpu"))
    assert found.dtype == torch.float32
    assert torch.equal(found, wanted)
    assert sum(level_counts(canvas, 6)) == len(found)


def test_cached_anchors_are_never_freed() -> None:
    """A captured CUDA graph reads them at their address."""
    sizes, cpu = ((8.0,),) * 5, torch.device("cpu")
    first = weakref.ref(cached_anchors((32, 32), sizes, (1.0,), cpu))
    for n in range(2, 202):
        cached_anchors((32, 32 * n), sizes, (1.0,), cpu)
    gc.collect()
    assert first() is not None
    assert cached_anchors((32, 32), sizes, (1.0,), cpu) is first()


def test_level_counts_of_a_known_canvas() -> None:
    # 320 x 448: 80 x 112, 40 x 56, 20 x 28, 10 x 14 and 5 x 7 cells of three anchors
    assert level_counts((320, 448), 3) == [26880, 6720, 1680, 420, 105]


def test_grid_sizes_rejects_a_canvas_not_divisible_by_32() -> None:
    with pytest.raises(UserError, match="320 x 450"):
        grid_sizes((320, 450))
