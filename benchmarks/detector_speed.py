"""Ours against torchvision's Faster R-CNN: same network, pictures, targets, numbers of samples.

python benchmarks/detector_speed.py DEVKIT [--out speed.json]

One process, ResNet-50-FPN, short side 320, one canvas, bf16 autocast for both. Training: forward,
backward and SGD; inference: up to the final boxes. Torchvision gets what people give it: lists of
pictures on the device, its own transform included. Weights are random; for inference the last
layers are scaled up so that boxes pass the score cut.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d

from mini_fsod.cuda_graph import Captured
from mini_fsod.data.read import read
from mini_fsod.detector.convert import from_torchvision
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.loader.resident import Annotations, Batch, Resident
from mini_fsod.loader.schedule import Schedule
from mini_fsod.train.step import Step, inputs_of, losses_of, make_optimiser

SHORT, LONG, CLASSES = 320, 640, 20
BATCHES = 8  # different ones, in turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devkit", type=Path)
    parser.add_argument("--train", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--infer", type=int, nargs="*", default=[32])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "mini")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = read(options.devkit, "trainval")
    pictures = cached_pictures(data, options.cache, SHORT, LONG)
    held = Resident(pictures, Annotations.of(data.boxes, len(data)), device)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    for size in options.train:
        batches = same_canvas(held, pictures.sizes, size)
        result[f"train {size}"] = training(batches, held, size, options.rounds, device)
        print(json.dumps({f"train {size}": result[f"train {size}"]}, indent=1), flush=True)
    for size in options.infer:
        batches = same_canvas(held, pictures.sizes, size)
        result[f"infer {size}"] = inference(batches, size, options.rounds, device)
        print(json.dumps({f"infer {size}": result[f"infer {size}"]}, indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def same_canvas(held: Resident, own: Any, size: int) -> list[Batch]:
    """Real batches of the canvas that most batches have."""
    plans = [Schedule(own, size, (SHORT,), LONG, seed=0).plan(n) for n in range(12 * BATCHES)]
    canvas = Counter(plan.canvas for plan in plans).most_common(1)[0][0]
    return [held.batch(plan) for plan in plans if plan.canvas == canvas][:BATCHES]


def torchvisions(device: torch.device) -> FasterRCNN:
    torch.manual_seed(0)
    backbone = resnet_fpn_backbone(
        backbone_name="resnet50", weights=None, norm_layer=FrozenBatchNorm2d, trainable_layers=3
    )
    return FasterRCNN(
        backbone,
        num_classes=CLASSES + 1,
        min_size=SHORT,
        max_size=LONG,
        rpn_post_nms_top_n_train=1000,
    ).to(device)


def as_lists(batch: Batch) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The same batch as torchvision wants it: float pictures of their own size, boxes from them."""
    images = [
        batch.images[i, :, :h, :w].float().contiguous() / 255
        for i, (h, w) in enumerate(batch.sizes.tolist())
    ]
    targets = [
        {"boxes": batch.targets.boxes[i][keep], "labels": batch.targets.labels[i][keep] + 1}
        for i, keep in enumerate(batch.targets.valid)
    ]
    return images, targets


def training(
    batches: list[Batch], held: Resident, size: int, rounds: int, device: torch.device
) -> dict[str, Any]:
    bf16 = device.type == "cuda"
    theirs = torchvisions(device).train()
    ours = from_torchvision(theirs).to(device, memory_format=torch.channels_last).train()
    lists = [as_lists(batch) for batch in batches]
    sgd = torch.optim.SGD(
        [p for p in theirs.parameters() if p.requires_grad], 1e-4, 0.9, weight_decay=1e-4
    )

    def their_step(n: int) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            losses = theirs(*lists[n % len(lists)])
        sgd.zero_grad(set_to_none=True)
        sum(losses.values()).backward()
        sgd.step()

    their_ms, their_gib = measure(their_step, max(5, rounds // 3), device)
    optimiser = make_optimiser(ours, device, 1e-4)
    optimiser.param_groups[0]["lr"].fill_(1e-4)
    step = Step(losses_of(ours), optimiser, device, bf16)
    draw = torch.zeros((), dtype=torch.int64, device=device)

    def our_step(n: int) -> None:
        draw.fill_(n)
        step([inputs_of(batches[n % len(batches)], draw)])

    our_ms, our_gib = measure(our_step, rounds, device)
    return {
        "canvas": list(batches[0].images.shape[2:]),
        "torchvision img/s": 1000 * size / their_ms,
        "ours img/s": 1000 * size / our_ms,
        "ratio": their_ms / our_ms,
        "torchvision ms": their_ms,
        "ours ms": our_ms,
        "torchvision GiB": their_gib,
        "ours GiB": our_gib,
        "ours idle share": idle_share(our_step, device),
        "ours parts ms": parts(ours, batches, held, our_ms, rounds, device),
    }


def parts(
    detector: Any,
    batches: list[Batch],
    held: Resident,
    whole: float,
    rounds: int,
    device: torch.device,
) -> dict[str, float]:
    """Each part of the forward pass recorded and timed alone; the rest by subtraction."""
    batch = batches[0]
    targets = batch.targets
    draw = torch.zeros((), dtype=torch.int64, device=device)

    def under(function: Callable[[], Any], grad: bool = False) -> float:
        def run(_: Tensor) -> Any:
            with (
                torch.set_grad_enabled(grad),
                torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"),
            ):
                return function()

        captured = Captured(run, device)
        return measure(lambda n: captured(draw), rounds, device)[0]

    anchors, counts = detector.anchors(batch.images)
    with (
        torch.no_grad(),
        torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"),
    ):
        levels = detector.features(batch.images, batch.sizes)
        logits, deltas = detector.rpn_head(levels)
        proposals = detector.propose(logits, deltas, anchors, counts, batch.sizes, training=True)
        rois = proposals.boxes[:, : detector.settings.roi.samples]
        pooled = detector.pool(levels, rois)
    taken = {
        "backbone and FPN": under(lambda: detector.features(batch.images, batch.sizes)),
        "RPN head": under(lambda: detector.rpn_head(levels)),
        "proposals": under(
            lambda: detector.propose(logits, deltas, anchors, counts, batch.sizes, training=True)
        ),
        "RoIAlign": under(lambda: detector.pool(levels, rois)),
        "heads": under(lambda: detector.roi_outputs(pooled, len(batch.images))),
    }
    forward = under(lambda: detector.losses(batch.images, batch.sizes, targets, draw), grad=True)

    def both() -> Tensor:
        losses = detector.losses(batch.images, batch.sizes, targets, draw)
        detector.zero_grad(set_to_none=True)
        total = torch.stack(list(losses.values())).sum()
        total.backward()
        return total.detach()

    with_backward = under(both, grad=True)
    taken["matching, sampling, losses"] = forward - sum(taken.values())
    taken["backward"] = with_backward - forward
    taken["optimiser"] = whole - with_backward
    taken["data (beside the step)"] = measure(lambda n: held.batch(batch.plan), rounds, device)[0]
    return taken


def inference(batches: list[Batch], size: int, rounds: int, device: torch.device) -> dict[str, Any]:
    bf16 = device.type == "cuda"
    theirs = torchvisions(device).eval()
    with torch.no_grad():
        theirs.roi_heads.box_predictor.cls_score.weight.mul_(8)
        theirs.rpn.head.cls_logits.weight.mul_(20)
    ours = from_torchvision(theirs).to(device, memory_format=torch.channels_last).eval()
    lists = [as_lists(batch)[0] for batch in batches]
    found: list[Any] = [0, 0]

    @torch.no_grad()
    def theirs_once(n: int) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            found[0] = sum(len(d["boxes"]) for d in theirs(lists[n % len(lists)]))

    def detect(images: Tensor, sizes: Tensor) -> Any:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return ours.detect(images, sizes)

    captured = Captured(detect, device)

    def ours_once(n: int) -> None:
        batch = batches[n % len(batches)]
        found[1] = captured(batch.images, batch.sizes).valid

    their_ms, their_gib = measure(theirs_once, max(3, rounds // 3), device)
    our_ms, our_gib = measure(ours_once, rounds, device)
    return {
        "canvas": list(batches[0].images.shape[2:]),
        "torchvision img/s": 1000 * size / their_ms,
        "ours img/s": 1000 * size / our_ms,
        "ratio": their_ms / our_ms,
        "torchvision boxes in the last batch": found[0],
        "ours boxes in the last batch": int(found[1].sum()),
        "torchvision GiB": their_gib,
        "ours GiB": our_gib,
        "ours idle share": idle_share(ours_once, device),
    }


def measure(
    call: Callable[[int], object], rounds: int, device: torch.device
) -> tuple[float, float]:
    """(milliseconds a call, the best of three runs; peak memory in GiB) after a warm-up."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for n in range(2 * BATCHES if device.type == "cuda" else 1):
        call(n)
    best = float("inf")
    for _ in range(3 if device.type == "cuda" else 1):
        sync(device)
        start = time.perf_counter()
        for n in range(rounds):
            call(n)
        sync(device)
        best = min(best, 1000 * (time.perf_counter() - start) / rounds)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return best, peak


def idle_share(
    call: Callable[[int], object], device: torch.device, rounds: int = 5
) -> float | None:
    """The share of the time in which no kernel runs on the GPU."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    sync(device)
    start = time.perf_counter()
    for n in range(rounds):
        call(n)
    sync(device)
    wall = time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for n in range(rounds):
            call(n)
        sync(device)
    busy = sum(e.self_device_time_total for e in seen.key_averages()) / 1e6
    return max(0.0, 1 - busy / wall)


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
