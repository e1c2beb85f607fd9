"""Features of real crops, to judge ways of mining by rankings without a trained detector.

    python benchmarks/crops_of_voc.py DEVKIT WEIGHTS -o crops.npz [--crop 160] [--objects 300]

DEVKIT holds VOC 2007 and 2012 at a short side of 320 pixels, WEIGHTS a Caffe ResNet-50. The crops:

- object: annotated boxes of training images, `--objects` of each class in MANY, a fifth of the rest
- moved: the same boxes shifted and scaled, with an IoU of 0.5 to 0.9
- part: boxes with an IoU of 0.1 to 0.4 with an object of a class in MANY
- background: boxes of the objects' shapes with an IoU below 0.1 with every object
- shot: the official shots at K = 1 of seeds 0 to 29; shot15, shot2: 1.5 and 2 times their sides
- shot5: the official shots at K = 5 of seeds 0 to 5

`benchmarks/rank_crops.py` reads the file.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torchvision.ops import roi_align

from mini_fsod.data.dataset import Dataset, Floats
from mini_fsod.data.official_shots import choose_shots, voc_lists
from mini_fsod.data.overlap import iou
from mini_fsod.data.read import read
from mini_fsod.data.subsets import arranged
from mini_fsod.detector.preprocess import normalise
from mini_fsod.detector.settings import CAFFE
from mini_fsod.discriminator.load import load_discriminator
from mini_fsod.labels import SPLITS, VOC_CLASSES, LabelMap
from mini_fsod.loader.decode import decode

MANY = ("bird", "bus", "cow", "motorbike", "sofa", "horse", "sheep", "train")
COLUMNS = ("kind", "image", "label", "seed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("devkit", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--crop", type=int, default=160)
    parser.add_argument("--objects", type=int, default=300)
    options = parser.parse_args()
    data = arranged(read(options.devkit, subset="trainval"), LabelMap(tuple(VOC_CLASSES), ()))
    rows = drawn(data, options.objects)
    name = f"resnet50:{options.weights}"
    net = load_discriminator(name, torch.device("cpu"), CAFFE, True, options.crop)
    begun = time.perf_counter()
    features = torch.zeros(len(rows), net.dimension, dtype=torch.float32)
    by_image = defaultdict(list)
    for i, row in enumerate(rows):
        by_image[row[1]].append(i)
    waiting: list[tuple[list[int], torch.Tensor]] = []
    for n, (image, indices) in enumerate(by_image.items()):
        pixels = torch.tensor(decode(data.path(image), 320, 640)).permute(2, 0, 1)[None]
        size = torch.tensor([pixels.shape[2:]])
        xywh = torch.from_numpy(np.stack([rows[i][4] for i in indices])).float()
        boxes = torch.cat([torch.zeros(len(xywh), 1), xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1)
        normal = normalise(pixels, size, net.mean, net.std, net.normalisation)
        crops = roi_align(normal, boxes, options.crop, sampling_ratio=-1, aligned=True)
        waiting.append((indices, crops))
        if sum(len(part) for part, _ in waiting) >= 32 or n + 1 == len(by_image):
            at = [i for part, _ in waiting for i in part]
            with torch.no_grad():
                features[at] = net._map(torch.cat([c for _, c in waiting])).mean((2, 3))
            waiting = []
    columns = {name: np.array([row[i] for row in rows]) for i, name in enumerate(COLUMNS)}
    columns["xywh"] = np.array([row[4] for row in rows])
    columns["features"] = features.numpy()
    with options.out.open("wb") as file:
        np.savez(file, allow_pickle=False, **columns)
    kinds = dict(zip(*np.unique(columns["kind"], return_counts=True), strict=True))
    print(f"{len(rows)} crops {kinds} in {time.perf_counter() - begun:.0f} s")


def drawn(data: Dataset, objects: int) -> list[tuple[str, int, int, int, Floats]]:
    """The crops: kind, image, class (-1: background), seed (-1: no shot), box."""
    draw = np.random.default_rng(0)
    boxes = data.boxes
    sizes = data.sizes.astype(np.float64)  # width and height that the boxes are in
    plain = boxes.sound & ~boxes.difficult & (boxes.xywh[:, 2:].min(axis=1) >= 8)
    rows: list[tuple[str, int, int, int, Floats]] = []
    for label, name in enumerate(VOC_CLASSES):
        of_class = np.flatnonzero(plain & (boxes.label == label))
        many = name in MANY
        for b in draw.permutation(of_class)[: objects if many else objects // 5].tolist():
            image, box = int(boxes.image[b]), boxes.xywh[b]
            rows.append(("object", image, label, -1, box))
            if many:
                rows.append(("moved", image, label, -1, near(draw, box, 0.5, 0.9, sizes[image])))
                if draw.random() < 0.4:
                    part = near(draw, box, 0.1, 0.4, sizes[image])
                    rows.append(("part", image, label, -1, part))
    offsets, shapes = data.offsets, boxes.xywh[plain]
    while sum(row[0] == "background" for row in rows) < 5 * objects:
        image = int(draw.integers(len(data)))
        shape = shapes[draw.integers(len(shapes)), 2:]
        space = sizes[image] - shape
        if (space < 0).any():
            continue
        box = np.concatenate([draw.random(2) * space, shape])
        there = boxes.xywh[offsets[image] : offsets[image + 1]]
        if iou(np.repeat(box[None], len(there), 0), there).max(initial=0) < 0.1:
            rows.append(("background", image, -1, -1, box))
    for seed in range(30):
        for shots, kind in ((1, "shot"), (5, "shot5")):
            if shots == 5 and seed > 5:
                continue
            chosen = choose_shots(data, SPLITS["voc-split1"], voc_lists(seed), shots, seed)
            for b in chosen.boxes.tolist():
                image, label, box = int(boxes.image[b]), int(boxes.label[b]), boxes.xywh[b]
                if VOC_CLASSES[label] in MANY:
                    rows.append((kind, image, label, seed, box))
                    if shots == 1:
                        for factor, also in ((1.5, "shot15"), (2.0, "shot2")):
                            larger = grown(box, factor, sizes[image])
                            rows.append((also, image, label, seed, larger))
    return sorted(rows, key=lambda row: row[1])


def grown(box: Floats, factor: float, size: Floats) -> Floats:
    """The box with `factor` times its sides, inside the picture."""
    centre, half = box[:2] + box[2:] / 2, box[2:] / 2 * factor
    low, high = np.maximum(centre - half, 0), np.minimum(centre + half, size)
    return np.concatenate([low, high - low])


def near(draw: np.random.Generator, box: Floats, low: float, high: float, size: Floats) -> Floats:
    """A box inside the picture whose IoU with `box` is between `low` and `high`."""
    for _ in range(1000):
        scale = np.exp(draw.normal(0, 0.4, 2))
        centre = box[:2] + box[2:] / 2 + draw.normal(0, 0.4, 2) * box[2:]
        other = grown(np.concatenate([centre - box[2:] * scale / 2, box[2:] * scale]), 1.0, size)
        if (other[2:] > 4).all() and low <= iou(box[None], other[None])[0] <= high:
            return other
    return box


if __name__ == "__main__":
    main()
