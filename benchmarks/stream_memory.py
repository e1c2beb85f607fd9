"""Memory over an epoch of streaming: 117,264 made pictures, as many as COCO's trainval.

    python benchmarks/stream_memory.py [--pictures 117264] [--out memory.json]

The pictures share a few JPEG files, so that they take no disk. Prints the resident memory of
this process and of its workers together, after each tenth of the epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.loader.resident import Annotations
from mini_fsod.loader.schedule import each_once
from mini_fsod.loader.stream import Stream

KINDS = 64  # different files
BATCH = 16
SHORT, LONG = 64, 112


def made(folder: Path, pictures: int) -> Dataset:
    random = np.random.default_rng(0)
    sizes = [(112, 64), (96, 64), (64, 96), (80, 64)]
    for n in range(KINDS):
        width, height = sizes[n % len(sizes)]
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{n}.jpg")
    kind = np.arange(pictures) % KINDS
    boxes = np.repeat(np.arange(pictures), 7)  # COCO has seven a picture
    return Dataset(
        kind="coco",
        root=folder,
        classes=("a",),
        category_ids=(1,),
        ids=tuple(range(pictures)),
        files=tuple(f"{n}.jpg" for n in kind.tolist()),
        sizes=np.array(sizes, dtype=np.int64)[kind % len(sizes)],
        boxes=Boxes.of(boxes, np.tile([[1.0, 2, 30, 20]], (len(boxes), 1)), np.zeros(len(boxes))),
        sources=("made",) * pictures,
    )


def resident_memory() -> float:
    """MB of this process and all below it."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended
            continue
    return round(total / 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pictures", type=int, default=117_264)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = made(Path(folder), arguments.pictures)
        sizes = data.sizes[:, ::-1].copy()
        plans = each_once(sizes, BATCH, SHORT, LONG)
        targets = Annotations.of(data.boxes, len(data))
        workers = arguments.workers
        stream = Stream(data, sizes, targets, torch.device("cpu"), SHORT, LONG, workers)
        every, found, began = max(len(plans) // 10, 1), [], time.monotonic()
        for n, batch in enumerate(stream.batches(plans), start=1):
            if n % every == 0 or n == 20:
                seconds = round(time.monotonic() - began, 1)
                found.append({"pictures": n * BATCH, "MB": resident_memory(), "seconds": seconds})
                print(json.dumps(found[-1]), flush=True)
            del batch
    after = [point["MB"] for point in found if point["pictures"] > arguments.pictures // 10]
    print(f"after the first tenth: {min(after):,.0f} to {max(after):,.0f} MB")
    if arguments.out:
        arguments.out.write_text(json.dumps({"pictures": arguments.pictures, "memory": found}))


if __name__ == "__main__":
    main()
