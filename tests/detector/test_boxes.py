from __future__ import annotations

import torch
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_iou, clip_boxes_to_image

from mini_fsod.detector.boxes import (
    clip,
    decode_boxes,
    encode_boxes,
    gather_rows,
    paired_iou,
    pairwise_iou,
)

WEIGHTS = (10.0, 10.0, 5.0, 5.0)


def random_boxes(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(*shape, 2, generator=generator) * 100
    side = torch.rand(*shape, 2, generator=generator) * 60 + 0.1
    return torch.cat((corner, corner + side), -1)


def test_encode_boxes_of_a_known_box() -> None:
    reference = torch.tensor([0.0, 0.0, 10.0, 20.0])
    box = torch.tensor([5.0, 10.0, 15.0, 30.0])  # moved by half a width and half a height
    assert encode_boxes(box, reference, WEIGHTS).tolist() == [5.0, 5.0, 0.0, 0.0]
    assert (
        decode_boxes(torch.tensor([5.0, 5.0, 0.0, 0.0]), reference, WEIGHTS).tolist()
        == box.tolist()
    )


def test_encode_and_decode_boxes_equal_torchvision() -> None:
    boxes, references = random_boxes(50), random_boxes(50, seed=1)
    coder = BoxCoder(WEIGHTS)
    deltas = coder.encode_single(boxes, references)
    assert torch.equal(encode_boxes(boxes, references, WEIGHTS), deltas)
    wild = deltas * torch.linspace(-9, 9, 50)[:, None]  # beyond the clamp of exp()
    assert torch.equal(
        decode_boxes(wild, references, WEIGHTS), coder.decode_single(wild, references)
    )


def test_decode_boxes_broadcasts_over_classes() -> None:
    references = random_boxes(3, 5)
    deltas = torch.randn(3, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    found = decode_boxes(deltas, references[:, :, None], WEIGHTS)
    assert torch.equal(found[1, 2, 3], decode_boxes(deltas[1, 2, 3], references[1, 2], WEIGHTS))


def test_clip_uses_the_size_of_each_image() -> None:
    boxes = random_boxes(2, 30) - 20
    sizes = torch.tensor([[60, 80], [90, 50]])
    found = clip(boxes, sizes)
    for i, (height, width) in enumerate(sizes.tolist()):
        assert torch.equal(found[i], clip_boxes_to_image(boxes[i], (height, width)))
    by_class = boxes.view(2, 10, 3, 4)
    assert torch.equal(clip(by_class, sizes), found.view(2, 10, 3, 4))


def test_iou_of_known_boxes_and_as_torchvision() -> None:
    a = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 1.0, 1.0], [5.0, 5.0, 6.0, 6.0]])
    b = torch.tensor([[1.0, 0.0, 3.0, 2.0]])
    torch.testing.assert_close(pairwise_iou(a, b).squeeze(1), torch.tensor([1 / 3, 0.0, 0.0]))
    x, y = random_boxes(20), random_boxes(30, seed=1)
    assert torch.equal(pairwise_iou(x, y), box_iou(x, y))
    assert torch.equal(paired_iou(x, y[:20]), box_iou(x, y[:20]).diagonal())
    assert pairwise_iou(x, torch.zeros(0, 4)).shape == (20, 0)


def test_gather_rows_selects_rows_of_each_image() -> None:
    values = torch.arange(2 * 3 * 4).view(2, 3, 4)
    index = torch.tensor([[2, 0], [1, 1]])
    assert torch.equal(gather_rows(values, index), values[torch.tensor([[0], [1]]), index])
