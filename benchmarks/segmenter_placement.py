"""What `mine.segmenter` does to boxes of VOC's objects that lie badly; needs no detector.

    python benchmarks/segmenter_placement.py DEVKIT mobile_sam.pt
    python benchmarks/segmenter_placement.py DEVKIT mobile_sam.pt --side 1024 --no-bf16

Objects of the novel classes of a split, one a picture, none of them difficult. Each has a box in
every range of IoU with it, its four sides moved at random. Rules are chosen on every second object
(A) and reported on the others (B). Prints for each rule and range the mean IoU before and after,
which share of the boxes becomes right (IoU 0.5 or more), and which share becomes wrong; then the
rule of `mini` by class; then seconds a picture in the network, by the clock and of all cores.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.overlap import iou
from mini_fsod.data.read import read
from mini_fsod.device import torch_device
from mini_fsod.labels import SPLITS
from mini_fsod.loader.cache import image_sizes
from mini_fsod.loader.resident import Annotations
from mini_fsod.loader.schedule import each_once
from mini_fsod.loader.stream import Stream
from mini_fsod.mining.tighten import SMALL_SIDE
from mini_fsod.segmenter import load
from mini_fsod.segmenter.bounds import EDGE, MIN_AGREEMENT, MIN_SCORE, mask_bounds
from mini_fsod.segmenter.decoder import WHOLE

RANGES = ((0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.0))
FIRST = 0  # the mask that is meant to fit at once
RIGHT = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devkit", type=Path)
    parser.add_argument("weights", type=Path, help="mobile_sam.pt")
    parser.add_argument("--split", default="voc-split1", choices=sorted(SPLITS))
    parser.add_argument("--objects", type=int, default=40, help="of each class")
    parser.add_argument("--side", type=int, default=SMALL_SIDE, help="longest side of the pictures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-bf16", action="store_true", help="float32, whatever the device is")
    options = parser.parse_args()
    if options.no_bf16:
        vars(load)["fast_bf16"] = lambda device: False
    rng = np.random.default_rng(options.seed)
    data = read(options.devkit).subset("trainval")
    objects = some_objects(data, SPLITS[options.split].novel, options.objects, rng)
    prompts = moved_boxes(objects, image_sizes(data)[objects.image], rng)
    device = torch_device(options.device)
    segmenter = load.load_segmenter(options.weights, device)
    found, wall, cores = looked_at(segmenter, data, prompts, options.side, device)
    truth = np.repeat(objects.xyxy[:, None], len(RANGES), 1).reshape(-1, 4)
    report(found, prompts.xyxy, truth, objects, data.classes)
    pictures = len(np.unique(objects.image))
    print(
        f"{pictures} pictures at {options.side} px with {len(RANGES)} boxes each on {device}, "
        f"{torch.get_num_threads()} threads: {wall / pictures:.2f} s a picture, "
        f"{cores / pictures:.2f} s of all cores"
    )


def some_objects(
    data: Dataset, novel: tuple[str, ...], each: int, rng: np.random.Generator
) -> Boxes:
    """So many objects of each class, none in the picture of another, classes in turn."""
    boxes, taken, rows = data.boxes, set[int](), []
    for name in novel:
        of_class = (boxes.label == data.classes.index(name)) & ~boxes.difficult
        chosen: list[int] = []
        for row in rng.permutation(np.flatnonzero(of_class)).tolist():
            if boxes.image[row] not in taken and len(chosen) < each:
                taken.add(int(boxes.image[row]))
                chosen.append(row)
        rows.append(chosen)
    return boxes.take(np.sort(np.concatenate(rows)))


def moved_boxes(objects: Boxes, sizes: np.ndarray, rng: np.random.Generator) -> Boxes:
    """A box in each of RANGES for each object, inside its picture of sizes (n, 2)."""
    moved = [
        moved_box(box, size[::-1], low, high, rng)
        for box, size in zip(objects.xyxy, sizes, strict=True)
        for low, high in RANGES
    ]
    image = np.repeat(objects.image, len(RANGES))
    return Boxes.of(image, xywh_of(np.array(moved)), np.repeat(objects.label, len(RANGES)))


def moved_box(
    box: np.ndarray, size: np.ndarray, low: float, high: float, rng: np.random.Generator
) -> np.ndarray:
    """The box with its sides moved at random, until its IoU with itself is from low to high."""
    extent = np.tile(box[2:] - box[:2], 2)
    while True:
        moved = box + rng.normal(0, rng.uniform(0.02, 0.6), 4) * extent
        moved = np.clip(moved, 0, np.tile(size, 2))
        if (moved[2:] - moved[:2] >= 2).all() and low <= overlap(moved, box)[0] < high:
            return np.asarray(moved)


@dataclass(frozen=True, slots=True)
class Found:
    """Of n prompts, for each of the four masks."""

    bounds: np.ndarray  # (n, 4, 4) where the logits are above 0, in pixels of the pictures
    loose: np.ndarray  # (n, 4, 4) where they are above EDGE
    scores: np.ndarray  # (n, 4)


def looked_at(
    segmenter: load.Segmenter, data: Dataset, prompts: Boxes, side: int, device: torch.device
) -> tuple[Found, float, float]:
    """What is found of all prompts, and the seconds in the network: by the clock, of all cores."""
    wall = cores = 0.0
    sizes = image_sizes(data)
    plans = each_once(sizes, 2, side, side, images=np.unique(prompts.image))
    source = Stream(data, sizes, Annotations.of(prompts, len(data)), device, side, side)
    found = Found(*(np.zeros((len(prompts), 4, *more)) for more in ((4,), (4,), ())))
    for batch in source.batches(plans):
        valid = batch.box_index >= 0
        valid[batch.plan.count :] = False
        image, slot = valid.nonzero().unbind(1)
        began, spent = time.perf_counter(), time.process_time()
        cells = segmenter.encode(batch.images, batch.sizes)
        logits, scores = segmenter.masks(cells, image, batch.targets.boxes[image, slot], side)
        scores = scores.cpu()  # waits for the device
        wall, cores = wall + time.perf_counter() - began, cores + time.process_time() - spent
        rows = batch.box_index[image, slot].cpu().numpy()
        scale = batch.scale[image].repeat(1, 2)
        for mask in range(4):
            for table, edge in ((found.bounds, 0.0), (found.loose, EDGE)):
                bounds = mask_bounds(logits[:, mask], batch.sizes[image], edge) / scale
                table[rows, mask] = bounds.cpu().numpy()
        found.scores[rows] = scores.numpy()
    return found, wall, cores


def report(
    found: Found, boxes: np.ndarray, truth: np.ndarray, objects: Boxes, names: tuple[str, ...]
) -> None:
    first, whole = found.bounds[:, FIRST], found.bounds[:, WHOLE]
    loose, sure = found.loose[:, WHOLE], found.scores[:, WHOLE]

    def rule(bounds: np.ndarray, scores: np.ndarray, least: float, agreement: float) -> np.ndarray:
        believed = (scores >= least) & (overlap(bounds, boxes) >= agreement)
        return np.where(believed[:, None], bounds, boxes)

    rules = {
        "first mask, always": rule(first, found.scores[:, FIRST], -np.inf, 0),
        "first mask, 0.8 and 0.4": rule(first, found.scores[:, FIRST], 0.8, 0.4),
        "whole, always": rule(whole, sure, -np.inf, 0),
        "whole, 0.7 and 0.35": rule(whole, sure, 0.7, 0.35),
        "loose whole, always": rule(loose, sure, -np.inf, 0),
        "loose whole, 0.8 and 0.35": rule(loose, sure, 0.8, 0.35),
        f"mini: loose whole, {MIN_SCORE:g} and {MIN_AGREEMENT:g}": rule(
            loose, sure, MIN_SCORE, MIN_AGREEMENT
        ),
    }
    rank = np.array([(objects.label[:n] == kind).sum() for n, kind in enumerate(objects.label)])
    half = np.repeat(rank % 2, len(RANGES))
    for part, name in enumerate("AB"):
        print(f"half {name}, {int((half == part).sum()) // len(RANGES)} objects")
        for words, new in rules.items():
            print_row(words, new, boxes, truth, half == part)
    print("by class, half B, the rule of mini")
    label = np.repeat(objects.label, len(RANGES))
    for index in np.unique(label):
        of_class = (half == 1) & (label == index)
        print_row(names[index], list(rules.values())[-1], boxes, truth, of_class)


def print_row(
    words: str, new: np.ndarray, boxes: np.ndarray, truth: np.ndarray, rows: np.ndarray
) -> None:
    before, after = (overlap(b, truth).reshape(-1, len(RANGES)) for b in (boxes, new))
    chosen = rows.reshape(-1, len(RANGES))[:, 0]
    cells = [
        f"{b.mean():.3f} {a.mean():.3f} {100 * ((a >= RIGHT) & (b < RIGHT)).mean():3.0f} % "
        f"{100 * ((a < RIGHT) & (b >= RIGHT)).mean():3.0f} %"
        for b, a in zip(before[chosen].T, after[chosen].T, strict=True)
    ]
    print(f"{words:32} | {' | '.join(cells)} | {chosen.sum()}")


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return iou(xywh_of(a.reshape(-1, 4)), xywh_of(b.reshape(-1, 4)))


def xywh_of(xyxy: np.ndarray) -> np.ndarray:
    return np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], 1)


if __name__ == "__main__":
    main()
