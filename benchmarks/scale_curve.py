"""What base training, the scan and re-training cost with 2, 4, 8 and 16 thousand pictures.

    python benchmarks/scale_curve.py DEVKIT -o OUT [--sizes 2000 4000 8000 16000] [--set KEY=VALUE]

Each size is a run of voc-320 (K = 1, split 1) on so many pictures of VOC07+12 trainval, drawn at
random, each larger set with the smaller ones; every picture is shown --epochs times. A line through
the seconds of each stage is fitted: what it costs for nothing, for 1,000 pictures, and how far each
size lies off it. The pictures are decoded before the first run. Finished runs are not repeated.
OUT/curve.json has all figures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod import console
from mini_fsod.config.load import resolve
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read
from mini_fsod.data.subsets import arranged
from mini_fsod.data.write import write_coco
from mini_fsod.device import torch_device
from mini_fsod.files import write_json
from mini_fsod.labels import SPLITS
from mini_fsod.loader.device_cache import pictures_on_device
from mini_fsod.runs import stages

STAGES = ("base", "scan", "online")
BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("devkit", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 4_000, 8_000, 16_000])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--test", type=int, default=500, help="pictures to score on")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    devkit = read(options.devkit)
    train, test = devkit.subset("trainval"), devkit.subset("test")
    order = np.random.default_rng(0).permutation(len(train))
    points = []
    for size in sorted({min(size, len(train)) for size in options.sizes}):
        home = options.out / f"{size}"
        write_part(home, "trainval", train.select(np.sort(order[:size])))
        write_part(home, "test", test.select(np.arange(min(options.test, len(test)))))
        points.append(measured(home, size, options))
        console.note(json.dumps(points[-1]))
    fits = {stage: fitted(points, stage) for stage in STAGES}
    write_json(options.out / "curve.json", {"points": points, "lines": fits})
    for stage, line in fits.items():
        off = ", ".join(f"{value:+.1%}" for value in line["off"])
        print(f"{stage}: {line['start']:.1f} s + {line['per_thousand']:.2f} s per 1,000; off {off}")


def write_part(home: Path, name: str, data: Dataset) -> None:
    path = home / "data" / "annotations" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = SPLITS["voc-split1"]
    write_coco(path, arranged(data, labels), labels, {})


def measured(home: Path, size: int, options: argparse.Namespace) -> dict[str, Any]:
    iterations = max(options.epochs * size // BATCH, 1)
    keys = {
        "data.root": home / "data",
        "data.pictures": options.devkit,
        "shots.official": "null",  # drawn from the part: the official ones may not be in it
        "base.minutes": "null",
        "base.iterations": iterations,
        "online.iterations": iterations,
    }
    sets = [f"{key}={value}" for key, value in keys.items()]
    config = resolve("voc-320", [*options.set, *sets], None, 1, 0)
    device = torch_device(config.device)
    whole = read(home / "data", root=options.devkit)
    pictures_on_device(whole, config, device)  # decoding is not what is measured
    found = stages.run(config, home / "run", last="online", anyway=True)["stages"]
    keys_kept = ("seconds", "training_seconds", "test_seconds", "images_per_second")
    return {"pictures": size, "iterations": iterations} | {
        stage: {key: found[stage][key] for key in keys_kept if key in found[stage]}
        for stage in STAGES
    }


def fitted(points: list[dict[str, Any]], stage: str) -> dict[str, Any]:
    """A line through the seconds, without those of scoring, which depend on the test set alone."""
    size = np.array([point["pictures"] for point in points], dtype=float)
    seconds = np.array([point[stage]["seconds"] for point in points])
    seconds -= np.array([point[stage].get("test_seconds") or 0 for point in points])
    slope, start = np.polyfit(size, seconds, 1) if len(points) > 1 else (0.0, seconds[0])
    line = start + slope * size
    return {
        "start": round(float(start), 2),
        "per_thousand": round(1000 * float(slope), 3),
        "seconds": [round(value, 2) for value in seconds.tolist()],
        "off": [round(value, 4) for value in ((seconds - line) / line).tolist()],
    }


if __name__ == "__main__":
    main()
