"""Files of weights, masks of boxes in batches of images, and the real MobileSAM where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.tiny_segmenter import TINY, tiny_segmenter, write_segmenter
from mini_fsod.errors import UserError
from mini_fsod.segmenter import load
from mini_fsod.segmenter.bounds import mask_bounds
from mini_fsod.segmenter.decoder import WHOLE
from mini_fsod.segmenter.load import load_segmenter

CPU = torch.device("cpu")
REAL = Path(__file__).parents[3] / "shared" / "weights" / "mobile_sam.pt"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MOBILE_SAM", TINY)
    monkeypatch.setattr(load, "fast_bf16", lambda device: False)


def some_images() -> tuple[torch.Tensor, torch.Tensor]:
    """Two images (2, 3, 96, 128), the second a smaller one."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 96, 128), generator=generator, dtype=torch.uint8)
    return images, torch.tensor([[96, 128], [70, 80]])


@pytest.mark.usefixtures("tiny")
def test_load_segmenter_of_both_kinds_of_files(tmp_path: Path) -> None:
    images, sizes = some_images()
    wanted = tiny_segmenter().encode(images, sizes)
    pickled = write_segmenter(tmp_path / "a.pt")
    save_file(torch.load(pickled), tmp_path / "a.safetensors")
    for path in (pickled, tmp_path / "a.safetensors"):
        torch.testing.assert_close(load_segmenter(path, CPU).encode(images, sizes), wanted)


@pytest.mark.usefixtures("tiny")
def test_load_segmenter_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    path = write_segmenter(tmp_path / "a.pt")
    state = torch.get_rng_state()
    load_segmenter(path, CPU)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("tiny")
def test_load_segmenter_refuses_other_files(tmp_path: Path) -> None:
    path = write_segmenter(tmp_path / "a.pt")
    state = torch.load(path)
    torch.save({n: v for n, v in state.items() if "mask_tokens" not in n}, tmp_path / "less.pt")
    with pytest.raises(UserError, match=r"less\.pt: these weights do not fit MobileSAM: missing"):
        load_segmenter(tmp_path / "less.pt", CPU)
    torch.save({"conv1.weight": torch.zeros(2)}, tmp_path / "resnet.pt")
    with pytest.raises(UserError, match=r"resnet\.pt: these are not the weights of MobileSAM"):
        load_segmenter(tmp_path / "resnet.pt", CPU)
    with pytest.raises(UserError, match=r"nowhere\.pt: there is no such weights file"):
        load_segmenter(tmp_path / "nowhere.pt", CPU)


def test_load_segmenter_refuses_other_sizes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"do not fit MobileSAM: missing .*other shapes"):
        load_segmenter(write_segmenter(tmp_path / "a.pt"), CPU)


@pytest.mark.usefixtures("tiny")
def test_segmenter_masks_in_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many boxes a pass takes changes nothing; nor does what lies beyond an image."""
    net, (images, sizes) = tiny_segmenter(), some_images()
    cells = net.encode(images, sizes)
    image = torch.tensor([0, 1, 0, 1, 1])
    boxes = torch.tensor([[10.0, 10, 50, 40]]).repeat(5, 1) + torch.arange(5)[:, None]
    masks, scores = net.masks(cells, image, boxes, 128)
    assert (masks.shape, scores.shape) == ((5, 4, 24, 32), (5, 4))
    monkeypatch.setattr(load, "BOXES_PER_PASS_ELSEWHERE", 2)
    for found, wanted in zip(net.masks(cells, image, boxes, 128), (masks, scores), strict=True):
        torch.testing.assert_close(found, wanted)
    images[1, :, 70:] = 255
    torch.testing.assert_close(net.encode(images, sizes), cells)
    none = net.masks(cells, image[:0], boxes[:0], 128)
    assert [found.shape for found in none] == [(0, 4, 24, 32), (0, 4)]


@pytest.mark.skipif(not REAL.exists(), reason=f"there is no {REAL}")
def test_load_segmenter_of_mobile_sam_finds_a_disc() -> None:
    """A bright disc on a dark ground, from a box that is off by a tenth of its width."""
    net = load_segmenter(REAL, CPU)
    y, x = torch.meshgrid(torch.arange(512), torch.arange(512), indexing="ij")
    inside = (y - 256) ** 2 + (x - 256) ** 2 < 100**2
    images = torch.where(inside, 220, 40).to(torch.uint8).expand(1, 3, -1, -1)
    sizes = torch.tensor([[512, 512]])
    cells = net.encode(images, sizes)
    masks, scores = net.masks(cells, torch.tensor([0]), torch.tensor([[176.0, 150, 370, 340]]), 512)
    assert scores[0, WHOLE] > 0.8
    wanted = torch.tensor([[156.0, 156, 356, 356]])
    assert (mask_bounds(masks[:, WHOLE], sizes) - wanted).abs().max() < 8
