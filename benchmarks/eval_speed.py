"""Seconds to score 5,000 images with 100 detections each, ours and pycocotools on the same data.

    python benchmarks/eval_speed.py [--images 5000] [--detections 100] [--classes 20]

Both run in this process, one after the other. pycocotools takes minutes: `--no-peer` leaves it out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.eval.detections import DatasetDetections, read_detections
from mini_fsod.eval.score import Metric, score
from mini_fsod.labels import LabelMap

METRICS: tuple[Metric, ...] = ("voc07", "voc", "coco")


def make(images: int, per_image: int, classes: int) -> tuple[Dataset, DatasetDetections]:
    """7 boxes an image, as in COCO. A third of the detections lie near a box of their class."""
    rng = np.random.default_rng(0)
    n = 7 * images
    xywh = np.round(np.concatenate([rng.random((n, 2)) * 400, rng.random((n, 2)) * 200 + 4], 1), 2)
    boxes = Boxes.of(np.repeat(np.arange(images), 7), xywh, rng.integers(0, classes, n))
    image = np.repeat(np.arange(images), per_image)
    d = len(image)
    near = rng.random(d) < 0.33
    source = 7 * image + rng.integers(0, 7, d)
    wild = np.concatenate([rng.random((d, 2)) * 400, rng.random((d, 2)) * 200 + 4], 1)
    found = np.where(near[:, None], xywh[source] + rng.normal(0, 8, (d, 4)), wild)
    found[:, 2:] = np.maximum(found[:, 2:], 1)
    label = np.where(near, boxes.label[source], rng.integers(0, classes, d))
    dataset = Dataset(
        kind="coco",
        root=Path(),
        classes=tuple(f"class{c}" for c in range(classes)),
        category_ids=tuple(range(1, classes + 1)),
        ids=tuple(range(1, images + 1)),
        files=tuple(f"{i}.jpg" for i in range(images)),
        sizes=np.full((images, 2), 640, dtype=np.int64),
        boxes=boxes,
        sources=("truth.json",) * images,
    )
    return dataset, DatasetDetections.of(
        image, label, np.round(found, 2), rng.random(d) * (0.3 + near)
    )


def results(dataset: Dataset, detections: DatasetDetections) -> list[dict[str, object]]:
    columns = zip(
        detections.image.tolist(),
        detections.label.tolist(),
        detections.xywh.tolist(),
        detections.score.tolist(),
        strict=True,
    )
    return [
        {"image_id": i + 1, "category_id": c + 1, "bbox": b, "score": s} for i, c, b, s in columns
    ]


def pycocotools_ap(dataset: Dataset, found: list[dict[str, object]]) -> float:
    """AP by pycocotools, as its users call it: a ground-truth dict and a list of results."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    boxes = dataset.boxes
    truth = COCO()
    truth.dataset = {
        "images": [{"id": i} for i in dataset.ids],
        "categories": [{"id": c} for c in dataset.category_ids],
        "annotations": [
            {"id": n + 1, "image_id": i + 1, "category_id": c + 1, "bbox": b, "area": a}
            | {"iscrowd": 0}
            for n, (i, c, b, a) in enumerate(
                zip(
                    boxes.image.tolist(),
                    boxes.label.tolist(),
                    boxes.xywh.tolist(),
                    boxes.area.tolist(),
                    strict=True,
                )
            )
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return 100 * float(evaluation.stats[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--detections", type=int, default=100, help="per image")
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--no-peer", action="store_true", help="leave pycocotools out")
    args = parser.parse_args()

    dataset, detections = make(args.images, args.detections, args.classes)
    novel = dataset.classes[-max(1, args.classes // 4) :]
    labels = LabelMap(tuple(c for c in dataset.classes if c not in novel), novel)
    found = results(dataset, detections)
    print(f"{len(dataset):,} images, {len(found):,} detections, {args.classes} classes")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dets.json"
        path.write_text(json.dumps(found))
        start = time.perf_counter()
        detections = read_detections(path, dataset)
        print(f"read the file   {time.perf_counter() - start:8.2f} s")
    seconds: dict[str, float] = {}
    ap = 0.0
    for metric in METRICS:
        start = time.perf_counter()
        result = score(dataset, detections, labels, metric)
        seconds[metric] = time.perf_counter() - start
        ap = result.get("AP", 0.0)
        print(f"mini {metric:<10} {seconds[metric]:8.2f} s   AP50 {result['AP50']:.3f}")
    if not args.no_peer:
        start = time.perf_counter()
        peer = pycocotools_ap(dataset, found)
        took = time.perf_counter() - start
        print(f"pycocotools     {took:8.2f} s   AP differs by {abs(peer - ap):.1e}")
        for metric in METRICS:
            print(f"pycocotools / mini {metric}: {took / seconds[metric]:.1f}")


if __name__ == "__main__":
    main()
