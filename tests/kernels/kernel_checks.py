"""Run by test_kernels.py: python kernel_checks.py cpu|cuda|compile"""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import torch
from torch import Tensor

from mini_fsod.detector.convolution import add_upsampled
from mini_fsod.detector.nms import nms_by_loop
from mini_fsod.detector.roi_align import flatten_pyramid, pool_bags
from mini_fsod.kernels import augment
from mini_fsod.kernels.epilogue import shift_add_relu
from mini_fsod.kernels.nms import nms_by_kernel
from mini_fsod.kernels.roi_align import pool_cells
from mini_fsod.loader import augment as plain
from mini_fsod.loader.schedule import Plan


def random_boxes(images: int, n: int, width: float, height: float, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    size = torch.tensor([width, height])
    side = size * torch.rand(images, n, 2, generator=rng) ** 2
    side[:, ::5, 0] *= 0.01  # slivers
    corner = (size - side) * torch.rand(images, n, 2, generator=rng)
    corner[:, ::4] = (size - side)[:, ::4]  # at the lower right edge
    return torch.cat((corner, corner + side), -1)


def check_suppress(device: str) -> None:
    for n in (0, 1, 65, 1500 if device == "cuda" else 100):
        for groups in (1, 3):
            boxes = random_boxes(2, n, 60.0, 50.0, seed=n).to(device)
            rng = torch.Generator().manual_seed(n)
            valid = (torch.rand(2, n, generator=rng) > 0.1).to(device)
            group = torch.randint(0, groups, (2, n), generator=rng).to(device)
            keep = nms_by_kernel(boxes, valid, group, 0.5)
            wanted = nms_by_loop(boxes.cpu(), valid.cpu(), 0.5, group.cpu())
            assert torch.equal(keep.cpu(), wanted), (n, groups)


def check_pool(device: str) -> None:
    canvas, channels, number = (96, 128), 6, 8
    size = 7 if device == "cuda" else 3  # the interpreter takes a millisecond a bin
    boxes = random_boxes(2, number, canvas[1], canvas[0], seed=1).to(device)
    boxes[:, -1] = 0  # padding
    torch.manual_seed(0)
    levels = [
        torch.randn(2, channels, canvas[0] // s, canvas[1] // s, device=device)
        for s in (4, 8, 16, 32)
    ]
    weight = torch.randn(2 * number, size, size, channels, device=device)
    results = []
    for way in (pool_cells, pool_bags):
        own = [level.clone().requires_grad_() for level in levels]
        pooled = way(*flatten_pyramid(own, boxes, size), size, 2)
        (pooled * weight).sum().backward()
        results.append([pooled.detach(), *(level.grad for level in own)])
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted, atol=1e-3, rtol=1e-4)
    none = pool_cells(*flatten_pyramid(levels, boxes[:, :0], 7), 7, 2)
    assert none.shape == (0, 7, 7, channels)


def check_shift_add_relu(device: str) -> None:
    """Shift, sum and ReLU, and the gradients of all; the second map fills more than a program."""
    for images, *shape in ((2, 12, 6, 8), (2, 40, 30, 34), (1, 300, 4, 2), (0, 8, 2, 4)):
        channels, height, width = shape
        torch.manual_seed(0)
        x, like, weight = torch.randn(3, images, *shape, device=device)
        like = like.contiguous(memory_format=torch.channels_last)
        halved = torch.randn(images, channels, height // 2, width // 2, device=device)
        shift = torch.randn(channels, device=device)
        for other, relu, learns in product((None, like, halved), (True, False), (True, False)):
            results = []
            for way in (shift_add_relu, plain_shift_add_relu):
                own = [v.clone() for v in (x, shift, other) if v is not None]
                for value in own[:: 1 if learns else 2]:
                    value.requires_grad_()
                out = way(own[0], own[1], own[2] if other is not None else None, relu)
                (out * weight).sum().backward()
                results.append([out.detach(), *(v.grad for v in own)])
            assert (results[0][2] is not None) == learns
            for ours, wanted in zip(*results, strict=True):
                torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-5)


def plain_shift_add_relu(x: Tensor, shift: Tensor, other: Tensor | None, relu: bool) -> Tensor:
    out = x + shift.view(1, -1, 1, 1)
    if other is not None:
        out = out + other if other.shape == out.shape else add_upsampled(out, other)
    return out.relu() if relu else out


def check_views(device: str) -> None:
    """Colours in every order a few steps draw, grey, blur, erasings; an image may be tiny."""
    sizes, canvas = np.array([(40, 50), (64, 33), (20, 64), (3, 2), (1, 1), (48, 48)]), (64, 64)
    if device == "cuda":
        sizes, canvas = np.tile(sizes * 6, (3, 1)), (384, 416)
    count = len(sizes)
    torch.manual_seed(0)
    coarse = torch.rand(count, 3, 6, 6)
    images = torch.nn.functional.interpolate(coarse, canvas, mode="bilinear") * 235
    images = (images + 20 * torch.rand(images.shape)).to(torch.uint8).to(device)
    own = torch.from_numpy(sizes).to(device)
    touched = False
    for step in range(5):
        plan = Plan(
            step, 0, canvas, 0, np.arange(count), sizes, sizes, np.zeros_like(sizes),
            np.zeros(count, dtype=np.bool_), 0, count, count,
        )  # fmt: skip
        draw = plain.draw_strong(0, plan)
        draws = torch.from_numpy(plain.pack_draws(draw)).to(device)
        ours = augment.fused_strong_view(images, own, draws, plain.RADIUS)
        wanted = plain.plain_view(images, own, draws, draw.order)
        away = (ours.int() - wanted.int()).abs()
        assert away.max() <= 1, (step, away.max())  # of 255: a sum in another order
        assert (away > 0).float().mean() < 1e-3
        assert ours.is_contiguous(memory_format=torch.channels_last)
        touched |= bool((wanted != images).float().mean() > 0.2)
    assert touched
    assert augment.fused_strong_view(images[:0], own[:0], draws[:, :0], plain.RADIUS).shape[0] == 0


def check_compiling() -> None:
    """For a Hopper GPU, on any Linux machine: the interpreter accepts what the compiler may not."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mini_fsod.kernels import augment, epilogue, nms, roi_align

    pooling = {
        "level_shapes": "*i64",
        "geometry": "*fp32",
        "out": "*bf16",
        "channels": "i32",
        "SIZE": 7,
        "RATIO": 2,
        "C": 256,
    }
    map_ = dict.fromkeys(("x", "other", "out", "grad", "relu_grad"), "*bf16")
    map_ |= dict.fromkeys(("shift", "sums"), "*fp32") | {"P": 8, "C": 256}
    map_ |= dict.fromkeys(("pixels", "width", "channels"), "i32")
    boxes = {"number": "i32", "words": "i32", "BLOCK": nms.BLOCK}
    seen = {"sizes": "*i64", "draws": "*fp32", "number": "i32", "height": "i32", "width": "i32"}
    seen |= {"images": "*u8", "view": "*fp32", "sums": "*fp32", "N": augment.BLOCK}
    for kernel, arguments in (
        (roi_align._pool_forward, {"cells": "*bf16"} | pooling),
        (roi_align._pool_backward, {"grad": "*fp32"} | pooling),
        *((epilogue._shift_add_relu, map_ | {"ADD": add, "RELU": True}) for add in range(3)),
        (
            epilogue._relu_backward,
            map_ | {"RELU": True, "BLOCKS_PER_PROGRAM": epilogue.BLOCKS_PER_PROGRAM},
        ),
        (
            nms._overlaps,
            {"boxes": "*fp32", "group": "*i32", "bits": "*i32", "threshold": "fp32"} | boxes,
        ),
        (
            nms._suppress,
            {"bits": "*i32", "valid": "*i8", "kept": "*i32", "keep": "*i8", "WORDS": 64} | boxes,
        ),
        *((augment._colours, seen | {"out": "*fp32", "SUM": asked}) for asked in (True, False)),
        (augment._blur_down, seen | {"out": "*fp32", "RADIUS": plain.RADIUS}),
        (augment._blur_along, seen | {"out": "*u8", "RADIUS": plain.RADIUS, "ERASINGS": 3}),
    ):
        types = {
            name: arguments[name] if isinstance(arguments[name], str) else "constexpr"
            for name in kernel.arg_names
        }
        fixed = {n: v for n, v in arguments.items() if n in types and not isinstance(v, str)}
        source = ASTSource(kernel, signature=types, constexprs=fixed)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert "entry" in built.asm["ptx"]


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        check_compiling()
    else:
        check_shift_add_relu(sys.argv[1])
        check_suppress(sys.argv[1])
        check_pool(sys.argv[1])
        check_views(sys.argv[1])
    print("all kernels agree with torch" if sys.argv[1] != "compile" else "all kernels compile")
