"""A short base training on VOC: how many steps, how fast, and what AP they bring.

python benchmarks/training_probe.py DEVKIT --weights FILE --seconds 430 --out probe.json
python benchmarks/training_probe.py DEVKIT --weights FILE --iterations 18000 --decay 12000 16000

By default torchvision's schedule: SGD, batch 16, learning rate 0.02, warm-up 100, a tenth of it at
2/3 and 8/9 (of the time, or of the iterations), flips only, short side 320. The clock starts with
the first step: choosing kernels and recording graphs counts, decoding the pictures does not. Other
views (--short, --zoom), averaged weights (--ema) and sizes at test (--test) tell what they bring.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch

from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read
from mini_fsod.data.subsets import arranged, base_set
from mini_fsod.detector.model import build
from mini_fsod.detector.settings import CAFFE
from mini_fsod.eval.inference import detect_all
from mini_fsod.eval.score import score
from mini_fsod.labels import SPLITS, LabelMap
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.loader.resident import Annotations, Resident, pixels_on_device
from mini_fsod.loader.schedule import Schedule, each_once
from mini_fsod.train.ema import Average, warmed_decay
from mini_fsod.train.step import Step, inputs_of, losses_of, make_optimiser

KEPT = (320, 640)  # short and long side at which pictures are held
WARM_UP = 100
LOOK = 50  # steps between looks at the losses, the only moments the host waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devkit", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--seconds", type=float, default=430.0)
    parser.add_argument("--iterations", type=int, help="a fixed number instead of a time")
    parser.add_argument("--decay", type=int, nargs=2, help="iterations of the two decays")
    parser.add_argument("--split", default="voc-split1", choices=sorted(SPLITS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--short", type=int, nargs="+", default=[320])
    parser.add_argument("--zoom", type=float, nargs=2)
    parser.add_argument("--ema", type=float)
    parser.add_argument("--test", type=int, nargs="+", default=[320], help="short sides at test")
    parser.add_argument("--canvases", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "mini")
    parser.add_argument("--images", type=int, help="only so many training images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    labels = SPLITS[options.split]
    data = read(options.devkit)
    start = time.perf_counter()
    pictures = cached_pictures(data, options.cache, *KEPT)
    decoding = time.perf_counter() - start
    print(f"{len(data):,} pictures ready in {decoding:.1f} s", flush=True)

    known = LabelMap(labels.base, ())
    train = arranged(base_set(data.subset("trainval"), labels), known)
    if options.images:
        train = train.select(range(options.images))
    test = arranged(data.subset("test"), known)
    torch.manual_seed(options.seed)
    detector = build(
        len(known.classes),
        "resnet50",
        options.weights,
        stride_in_1x1=True,
        frozen_stages=2,
        normalisation=CAFFE,
    ).to(device, memory_format=torch.channels_last)
    pixels = pixels_on_device(pictures, device)

    def resident(data: Dataset) -> Resident:
        targets = Annotations.of(data.boxes, len(data))
        return Resident(pictures.take(data.files), targets, device, pixels=pixels)

    average = None if options.ema is None else Average(detector, device)
    sizes = pictures.take(train.files).sizes
    result = run(options, detector, average, resident(train), sizes, device)

    start = time.perf_counter()
    shown = resident(test)
    models = {"": detector} | ({} if average is None else {"averaged ": average.model})
    figures = {}
    for short in options.test:
        plans = each_once(pictures.take(test.files).sizes, 32, short, 2 * short)
        for name, model in models.items():
            found = detect_all(model, shown.batches, plans, device, bf16=device.type == "cuda")
            figures[f"{name}{short}"] = score(test, found, known, "voc07")
            print(f"{name}{short}: bAP50 {figures[f'{name}{short}']['bAP50']:.2f}", flush=True)
    best = max(figures.values(), key=lambda f: f["bAP50"])
    result |= {
        "bAP50": {name: f["bAP50"] for name, f in figures.items()},
        "per_class": {name: row["AP50"] for name, row in best["per_class"].items()},
        "test_seconds": time.perf_counter() - start,
        "decoding_seconds": decoding,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "options": {k: str(v) for k, v in vars(options).items()},
    }
    print(json.dumps({k: v for k, v in result.items() if k != "losses"}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def run(options, detector, average, held, own, device) -> dict:
    optimiser = make_optimiser(detector, device, weight_decay=1e-4)
    bf16 = device.type == "cuda"
    step = Step(losses_of(detector), optimiser, device, bf16, average=average)
    schedule = Schedule(
        own,
        options.batch,
        tuple(options.short),
        2 * max(options.short),
        options.seed,
        zoom=options.zoom and tuple(options.zoom),
        most_canvases=options.canvases,
    )
    print("canvases", schedule.canvases, flush=True)
    rate = optimiser.param_groups[0]["lr"]
    draw = torch.zeros((), dtype=torch.int64, device=device)
    detector.train()
    losses, share, done = [], 0.0, 0
    start = time.perf_counter()
    while share < 1:
        values = options.rate * min(1.0, (done + 1) / WARM_UP) * decay(options, share, done)
        rate.fill_(values)
        draw.fill_(done)
        if average is not None:
            average.decay.fill_(warmed_decay(done, options.ema))
        got = step([inputs_of(held.batch(schedule.plan(done)), draw)])
        done += 1
        elapsed = time.perf_counter() - start
        if done % LOOK == 0 or done == 1:
            told = got.tolist()  # waits for the device: the clock is honest again
            elapsed = time.perf_counter() - start
            losses.append([done, elapsed, *told])
            if sum(told) != sum(told):
                raise SystemExit(f"the loss is not a number at step {done}")
        if done % (20 * LOOK) == 0:
            speed = options.batch * done / elapsed
            print(f"{done:6} {elapsed:6.0f} s {speed:5.0f} img/s {sum(told):.3f}", flush=True)
        share = done / options.iterations if options.iterations else elapsed / options.seconds
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    first = next((row for row in losses if row[0] >= 2 * LOOK), losses[-1])
    steady = options.batch * (done - first[0]) / max(elapsed - first[1], 1e-9)
    return {
        "iterations": done,
        "seconds": elapsed,
        "images_per_second": options.batch * done / elapsed,
        "images_per_second_after_start": steady,
        "epochs": options.batch * done / schedule.images,
        "loss_names": list(step.names),
        "losses": losses[:: max(1, len(losses) // 200)],
        "memory_GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
    }


def decay(options, share: float, done: int) -> float:
    if options.decay:
        return 0.1 ** sum(done >= point for point in options.decay)
    return 0.1 ** sum(share >= point for point in (2 / 3, 8 / 9))


if __name__ == "__main__":
    main()
