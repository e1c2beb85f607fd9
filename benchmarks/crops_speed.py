"""Crops that the discriminator sees one by one, on a CPU: as `mini` does it, and as it did before.

    python benchmarks/crops_speed.py

Before: up to 256 crops in a pass, with the C library's own way of giving memory back. Each line is
a process of its own. A ResNet-50 with random weights, 96 crops of 224 x 224 pixels.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time

CROPS, SIDE, CANVAS = 96, 224, 640


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", choices=("before", "now"), help=argparse.SUPPRESS)
    one = parser.parse_args().one
    if one is not None:
        print(*measured(one))
        return
    print(f"{CROPS} crops, {os.cpu_count()} cores: seconds, seconds in the system, peak MB")
    seconds = {}
    for way in ("before", "now"):
        said = subprocess.check_output([sys.executable, __file__, "--one", way], text=True)
        seconds[way], system, peak = map(float, said.split())
        print(f"{way:8} {seconds[way]:6.2f} {system:6.2f} {peak:8,.0f}")
    print(f"ratio {seconds['before'] / seconds['now']:.1f}")


def measured(way: str) -> tuple[float, float, float]:
    from mini_fsod import cli

    if way == "now":
        cli.reuse_freed_memory()
    import torch
    from torch import nn
    from torchvision.models import resnet50

    from mini_fsod.detector.settings import IMAGENET
    from mini_fsod.discriminator import features

    if way == "before":
        features.CROPS_PER_PASS_ELSEWHERE = 256
    torch.manual_seed(0)
    body = nn.Sequential(*list(resnet50().children())[:-2])
    discriminator = features.Discriminator(body, 2048, 32, IMAGENET, crop=SIDE)
    images = torch.randint(0, 256, (1, 3, CANVAS, CANVAS), dtype=torch.uint8)
    corner = torch.rand(1, CROPS, 2) * CANVAS / 2
    boxes = torch.cat([corner, corner + 100 + torch.rand(1, CROPS, 2) * 200], -1)
    sizes, valid = torch.tensor([[CANVAS, CANVAS]]), torch.ones(1, CROPS, dtype=torch.bool)
    discriminator.features(images, sizes, boxes[:, :8], valid[:, :8])
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    discriminator.features(images, sizes, boxes, valid)
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    return took, after.ru_stime - before.ru_stime, after.ru_maxrss / 1024


if __name__ == "__main__":
    main()
