"""Strong views of a batch: torchvision image by image, our plain code, our kernels; one process.

python benchmarks/views_speed.py [--batch 16] [--canvas 416 640] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2

from mini_fsod.loader.augment import draw_strong, pack_draws, plain_view, strong_view
from mini_fsod.loader.schedule import Plan

STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--canvas", type=int, nargs=2, default=(416, 640))
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    images = torch.randint(0, 256, (words.batch, 3, *words.canvas), dtype=torch.uint8)
    images = images.to(device).contiguous(memory_format=torch.channels_last)
    whole = np.tile(words.canvas, (words.batch, 1))
    sizes = torch.from_numpy(whole).to(device)

    def planned(step: int) -> Plan:
        b, canvas = words.batch, tuple(words.canvas)
        none = np.zeros(b, dtype=np.bool_)
        return Plan(
            step, 0, canvas, 0, np.arange(b), whole, whole, np.zeros_like(whole), none, 0, b, b
        )

    def plain(step: int) -> Tensor:
        drawn = draw_strong(0, planned(step))
        draws = torch.from_numpy(pack_draws(drawn)).to(device)
        return plain_view(images, sizes, draws, drawn.order)

    theirs = v2.Compose(
        [
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], 0.5),
            v2.RandomErasing(0.7, (0.05, 0.2), (0.3, 3.3)),
            v2.RandomErasing(0.5, (0.02, 0.2), (0.1, 6.0)),
            v2.RandomErasing(0.3, (0.02, 0.2), (0.05, 8.0)),
        ]
    )
    ways: dict[str, Callable[[int], object]] = {
        "torchvision": lambda step: [theirs(image) for image in images],
        "plain": plain,
        "ours": lambda step: strong_view(images, sizes, draw_strong(0, planned(step))),
    }
    took = {name: milliseconds(way, device) for name, way in ways.items()}
    for name, ms in took.items():
        print(f"{name:12} {ms:8.2f} ms   {took['torchvision'] / ms:6.1f} x torchvision")
    if words.out:
        told = {"batch": words.batch, "canvas": words.canvas, "device": device.type, "ms": took}
        words.out.write_text(json.dumps(told, indent=1) + "\n")


def milliseconds(way: Callable[[int], object], device: torch.device) -> float:
    for step in range(3):
        way(step)
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for step in range(STEPS):
        way(step)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begun) / STEPS


if __name__ == "__main__":
    main()
