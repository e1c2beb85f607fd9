"""A COCO file as large as the real one: 120,000 images, 900,000 boxes with polygons, 80 classes.

python benchmarks/load_speed.py    prints seconds and peak memory of ours and of pycocotools
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

IMAGES, BOXES, CLASSES, POINTS = 120_000, 900_000, 80, 12


def write(path: Path) -> None:
    rng = random.Random(0)

    def number(most: float) -> float:
        return round(rng.uniform(1, most), 2)

    content = {
        "images": [
            {"id": 3 * i + 1, "file_name": f"{i:012d}.jpg", "width": 640, "height": 480}
            for i in range(IMAGES)
        ],
        "annotations": [
            {
                "id": i,
                "image_id": 3 * rng.randrange(IMAGES) + 1,
                "category_id": rng.randrange(1, CLASSES + 1),
                "bbox": [number(500), number(400), number(100), number(70)],
                "area": number(7000),
                "iscrowd": 0,
                "segmentation": [[number(500) for _ in range(2 * POINTS)]],
            }
            for i in range(1, BOXES + 1)
        ],
        "categories": [{"id": c, "name": f"class {c}"} for c in range(1, CLASSES + 1)],
    }
    path.write_text(json.dumps(content))


def ours(path: Path) -> int:
    from mini_fsod.data.read import read

    return len(read(path).boxes)


def pycocotools(path: Path) -> int:
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        return len(COCO(str(path)).anns)


def measure(name: str, path: Path, pipe: multiprocessing.connection.Connection) -> None:
    start = time.perf_counter()
    boxes = {"ours": ours, "pycocotools": pycocotools}[name](path)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send((boxes, seconds, peak * (1 if sys.platform == "darwin" else 1024)))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        spawn = multiprocessing.get_context("spawn")
        # a process each: a peak of memory is inherited by what is started behind it
        writer = spawn.Process(target=write, args=(path,))
        writer.start()
        writer.join()
        print(f"{IMAGES:,} images, {BOXES:,} boxes, {path.stat().st_size / 1e6:.0f} MB of JSON")
        seconds = {}
        for name in ("ours", "pycocotools"):
            here, there = spawn.Pipe()
            process = spawn.Process(target=measure, args=(name, path, there))
            process.start()
            boxes, seconds[name], peak = here.recv()
            process.join()
            print(f"{name:12} {boxes:,} boxes in {seconds[name]:5.1f} s, peak {peak / 1e9:.2f} GB")
        print(
            f"ratio of seconds, pycocotools / ours: {seconds['pycocotools'] / seconds['ours']:.2f}"
        )


if __name__ == "__main__":
    main()
