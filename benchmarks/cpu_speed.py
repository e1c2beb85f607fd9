"""Ours against torchvision's Faster R-CNN on a CPU: same network, pictures, numbers of samples.

    OMP_WAIT_POLICY=passive python benchmarks/cpu_speed.py [DEVKIT] [--out speed.json]

One process, batches of 4 pictures of a VOC devkit at 480 x 640 (noise without a devkit),
ResNet-50-FPN with random weights whose last layers are scaled up so that boxes pass the score cut.
The ways take turns, one batch each, so that other work on the machine hits all of them. Ratios are
medians over the rounds, to torchvision's float32, of elapsed and of processor seconds. Both profit
from malloc as `mini` sets it. `photos-cpu`: ours with the proposals and samples of that preset.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d

from mini_fsod import cli
from mini_fsod.config.load import resolve
from mini_fsod.data.read import read
from mini_fsod.detector.backbone import make_backbone
from mini_fsod.detector.batch import Targets, pad_targets
from mini_fsod.detector.convert import from_torchvision
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import IMAGENET, BackboneSettings
from mini_fsod.device import fast_bf16
from mini_fsod.discriminator import features
from mini_fsod.discriminator.load import LastMap
from mini_fsod.loader.decode import decode
from mini_fsod.train.step import DetectorInputs, Step, losses_of, make_optimiser

CPU = torch.device("cpu")
HEIGHT, WIDTH, BATCH, CLASSES = 480, 640, 4, 20
FIRST = "torchvision float32"  # what the others are compared with
CROPS = 32

Calls = Mapping[str, Callable[[int], Any]]  # name of a way: call with the number of the round


class Pictures(NamedTuple):
    images: Tensor  # (B, 3, H, W) uint8
    sizes: Tensor  # (B, 2)
    targets: Targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devkit", type=Path, nargs="?")
    parser.add_argument("--infer", type=int, default=5, help="rounds of inference")
    parser.add_argument("--train", type=int, default=3, help="rounds of training")
    parser.add_argument("--crops", type=int, default=3, help="rounds of the discriminator's crops")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cli.reuse_freed_memory()
    torch.set_num_threads(options.threads)
    pictures = noise() if options.devkit is None else real(options.devkit)
    kinds: dict[str, tuple[int, Callable[[list[Pictures]], Calls]]] = {
        "inference": (options.infer, inference),
        "training": (options.train, training),
        "crops": (options.crops, crops),
    }
    result: dict[str, Any] = {
        "pictures": "noise" if options.devkit is None else "VOC",
        "threads": options.threads,
        "torch": torch.__version__,
        "units for bfloat16": fast_bf16(CPU),
        "load at the start": os.getloadavg(),
    }
    for kind, (rounds, ways) in kinds.items():
        if rounds:
            result[kind] = measured(ways(pictures), rounds)
            print(json.dumps({kind: result[kind]}, indent=1), flush=True)
    result["load at the end"] = os.getloadavg()
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def measured(calls: Calls, rounds: int) -> dict[str, Any]:
    """Medians of the seconds of a call, and of the ratios of its rounds to those of the first."""
    elapsed: dict[str, list[float]] = {name: [] for name in calls}
    processor: dict[str, list[float]] = {name: [] for name in calls}
    said = {name: call(0) for name, call in calls.items()}  # warms up
    for n in range(rounds):
        for name, call in calls.items():
            begun = time.perf_counter(), time.process_time()
            call(n)
            elapsed[name].append(time.perf_counter() - begun[0])
            processor[name].append(time.process_time() - begun[1])
    first = next(iter(calls))

    def about(name: str) -> dict[str, Any]:
        def ratio(seconds: Mapping[str, list[float]]) -> float:
            pairs = zip(seconds[first], seconds[name], strict=True)
            return round(median(a / b for a, b in pairs), 2)

        return {
            "ratio": ratio(elapsed),
            "ratio of processor seconds": ratio(processor),
            "seconds": [round(t, 2) for t in elapsed[name]],
            "processor seconds": [round(t, 2) for t in processor[name]],
            "of the first batch": said[name],
        }

    return {name: about(name) for name in calls}


def noise() -> list[Pictures]:
    torch.manual_seed(1)
    boxes = [torch.tensor([[50.0, 60, 200, 300], [300, 100, 500, 400]])] * BATCH
    sizes = torch.tensor([[HEIGHT, WIDTH]] * BATCH)
    images = torch.randint(0, 256, (2, BATCH, 3, HEIGHT, WIDTH), dtype=torch.uint8)
    targets = pad_targets(boxes, [torch.tensor([3, 5])] * BATCH)
    return [Pictures(part, sizes, targets) for part in images]


def real(devkit: Path, batches: int = 4) -> list[Pictures]:
    """The first landscape pictures of VOC07 trainval that fill 9 tenths of the canvas, enlarged."""
    data = read(devkit, "trainval")
    taken: list[tuple[Tensor, Tensor, Tensor]] = []
    for i, file in enumerate(data.files):
        if len(taken) == batches * BATCH:
            break
        width, height = data.sizes[i].tolist()
        rows = data.boxes.image == i
        scale = min(HEIGHT / height, WIDTH / width)
        if height > width or height * width * scale**2 < 0.9 * HEIGHT * WIDTH or not rows.any():
            continue
        small = torch.from_numpy(decode(data.root / file, HEIGHT, WIDTH).copy()).permute(2, 0, 1)
        size = (int(height * scale), int(width * scale))
        pixels = torch.nn.functional.interpolate(small[None].float(), size=size, mode="bilinear")
        xywh = torch.from_numpy(data.boxes.xywh[rows]).float() * scale
        boxes = torch.cat([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1)
        taken.append((pixels[0].byte(), boxes, torch.from_numpy(data.boxes.label[rows])))
    found = []
    for start in range(0, len(taken), BATCH):
        part = taken[start : start + BATCH]
        images = torch.zeros(BATCH, 3, HEIGHT, WIDTH, dtype=torch.uint8)
        for image, (pixels, _, _) in zip(images, part, strict=True):
            image[:, : pixels.shape[1], : pixels.shape[2]] = pixels
        sizes = torch.tensor([pixels.shape[1:] for pixels, _, _ in part])
        targets = pad_targets([boxes for _, boxes, _ in part], [label for _, _, label in part])
        found.append(Pictures(images, sizes, targets))
    return found


def torchvisions() -> FasterRCNN:
    torch.manual_seed(0)
    backbone = resnet_fpn_backbone(
        backbone_name="resnet50", weights=None, norm_layer=FrozenBatchNorm2d, trainable_layers=3
    )
    model = FasterRCNN(
        backbone, CLASSES + 1, min_size=HEIGHT, max_size=WIDTH, rpn_post_nms_top_n_train=1000
    )
    with torch.no_grad():
        model.roi_heads.box_predictor.cls_score.weight.mul_(8)
        model.rpn.head.cls_logits.weight.mul_(20)
    return model


def ours(theirs: FasterRCNN, light: bool = False) -> Detector:
    """The same network; `light` with the numbers of proposals and samples of `photos-cpu`."""
    detector = from_torchvision(theirs).to(memory_format=torch.channels_last)
    if light:
        keys = resolve("photos-cpu").detector
        proposals, before = keys.rpn_post_nms, min(keys.rpn_pre_nms, 1000)
        rpn = replace(
            detector.settings.rpn,
            before_nms_train=keys.rpn_pre_nms,
            before_nms_test=before,
            after_nms_train=proposals,
            after_nms_test=proposals,
        )
        roi = replace(detector.settings.roi, samples=keys.roi_samples)
        detector.settings = replace(detector.settings, rpn=rpn, roi=roi)
    return detector


def as_lists(batch: Pictures) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The batch as torchvision takes it: float pictures of their own size, labels from 1."""
    images = [
        batch.images[i, :, :h, :w].float().contiguous() / 255
        for i, (h, w) in enumerate(batch.sizes.tolist())
    ]
    targets = [
        {"boxes": batch.targets.boxes[i][keep], "labels": batch.targets.labels[i][keep] + 1}
        for i, keep in enumerate(batch.targets.valid)
    ]
    return images, targets


def autocast(bf16: bool) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=bf16)


def inference(pictures: list[Pictures]) -> Calls:
    """Each call returns the number of boxes, and of proposals, of its batch."""
    theirs = torchvisions().eval()
    lists = [as_lists(batch)[0] for batch in pictures]

    def of_torchvision(bf16: bool) -> Callable[[int], str]:
        def call(n: int) -> str:
            with torch.no_grad(), autocast(bf16):
                found = theirs(lists[n % len(lists)])
            return f"{sum(len(image['boxes']) for image in found)} boxes"

        return call

    def of_ours(detector: Detector, bf16: bool) -> Callable[[int], str]:
        def call(n: int) -> str:
            batch = pictures[n % len(pictures)]
            with torch.no_grad(), autocast(bf16):
                candidates = detector.infer(batch.images, batch.sizes)
                found = detector.choose(candidates)
            proposals = candidates.proposals.valid.sum()
            return f"{found.valid.sum()} boxes of {proposals} proposals"

        return call

    whole, light = ours(theirs).eval(), ours(theirs, light=True).eval()
    return {
        FIRST: of_torchvision(False),
        "ours float32": of_ours(whole, False),
        "ours bfloat16": of_ours(whole, True),
        "photos-cpu float32": of_ours(light, False),
        "photos-cpu bfloat16": of_ours(light, True),
        "torchvision bfloat16": of_torchvision(True),
    }


def training(pictures: list[Pictures]) -> Calls:
    """Forward, backward and SGD; each call returns the sum of the losses."""
    lists = [as_lists(batch) for batch in pictures]

    def of_torchvision() -> Callable[[int], float]:
        model = torchvisions().train()
        parameters = [p for p in model.parameters() if p.requires_grad]
        sgd = torch.optim.SGD(parameters, 1e-4, 0.9, weight_decay=1e-4)

        def call(n: int) -> float:
            losses = model(*lists[n % len(lists)])
            total = torch.stack(list(losses.values())).sum()
            sgd.zero_grad(set_to_none=True)
            total.backward()  # type: ignore[no-untyped-call]
            sgd.step()
            return round(total.item(), 2)

        return call

    def of_ours(light: bool, bf16: bool) -> Callable[[int], float]:
        detector = ours(torchvisions(), light).train()
        optimiser = make_optimiser(detector, CPU, 1e-4)
        optimiser.param_groups[0]["lr"].fill_(1e-4)
        step = Step(losses_of(detector), optimiser, CPU, bf16)

        def call(n: int) -> float:
            batch = pictures[n % len(pictures)]
            return round(step([DetectorInputs(*batch, torch.tensor(n))]).sum().item(), 2)

        return call

    return {
        FIRST: of_torchvision(),
        "ours float32": of_ours(False, False),
        "ours bfloat16": of_ours(False, True),
        "photos-cpu float32": of_ours(True, False),
        "photos-cpu bfloat16": of_ours(True, True),
    }


def crops(pictures: list[Pictures]) -> Calls:
    """Features of crops, for mining; each call returns the mean of its features."""
    images = torch.nn.functional.interpolate(pictures[0].images[:1].float(), size=(640, 640)).byte()
    torch.manual_seed(0)
    corner = torch.rand(1, CROPS, 2) * 320
    boxes = torch.cat([corner, corner + 100 + torch.rand(1, CROPS, 2) * 200], -1)
    sizes, valid = torch.tensor([[640, 640]]), torch.ones(1, CROPS, dtype=torch.bool)
    body = LastMap(make_backbone(BackboneSettings("resnet50")))
    first = features.Discriminator(body, 2048, 32, IMAGENET, crop=224)
    last = deepcopy(first).to(memory_format=torch.channels_last)

    def way(discriminator: features.Discriminator, bf16: bool) -> Callable[[int], float]:
        def call(n: int) -> float:
            with patch.object(features, "fast_bf16", lambda _: bf16):
                found = discriminator.features(images, sizes, boxes, valid)
            return round(found.mean().item(), 4)

        return call

    return {
        "float32, channels first (before)": way(first, False),
        "float32": way(last, False),
        "bfloat16": way(last, True),
    }


if __name__ == "__main__":
    main()
