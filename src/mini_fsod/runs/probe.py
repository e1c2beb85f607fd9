"""A run of a few iterations on a few pictures, to measure speed and memory (`estimate`).

It is a `Run` for the stages' own code. Pictures are decoded as a batch asks for them, in this
process; the disk cache is not touched, and a training saves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from mini_fsod.config.schema import Config, Online, Training
from mini_fsod.data.dataset import Boxes, Dataset, Ints
from mini_fsod.detector.model import Detector
from mini_fsod.device import peak_memory, reset_peak_memory
from mini_fsod.labels import LabelMap
from mini_fsod.loader import device_cache
from mini_fsod.loader.cache import byte_offsets, image_sizes
from mini_fsod.loader.decode import Bytes, decode
from mini_fsod.loader.resident import Annotations, Batch, make_batch
from mini_fsod.loader.schedule import Plan, Schedule, reduced
from mini_fsod.runs.data import Batches, InputsOf, RunData
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import Team
from mini_fsod.train.ema import Average
from mini_fsod.train.loop import Feed, LossMonitor
from mini_fsod.train.step import Losses, Step, make_optimiser

LOOKED_AT = 200  # iterations whose canvases are averaged
MOST_CALLS = 30  # of a step that are timed
GRAPH_CALLS = 3  # of a step on CUDA until its graph is recorded (`cuda_graph`)

clock = perf_counter


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a training."""

    start: float  # seconds until all graphs are recorded; 0 off CUDA
    iteration: float  # seconds of an iteration
    memory: int  # bytes at the peak


class FewPictures(RunData):
    """The data of a run, whose pictures are decoded one by one."""

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        self.decoded: dict[Path, Bytes] = {}
        self.seconds = 0.0  # spent on decoding

    def source(
        self, data: Dataset, targets: Annotations, more: Sequence[Annotations]
    ) -> tuple[Batches, Ints]:
        sizes, sides = image_sizes(data), device_cache.largest_sides(self.config)
        stored = reduced(sizes, *sides)
        targets, more = targets.to(self._device), [boxes.to(self._device) for boxes in more]

        def batches(plans: Iterable[Plan]) -> Iterator[Batch]:
            for plan in plans:
                i = plan.images
                pixels = [self._pixels(data.path(n), sides, sizes[n]) for n in i.tolist()]
                flat = torch.from_numpy(np.concatenate([p.reshape(-1, 3) for p in pixels]))
                start = byte_offsets(stored[i])[:-1] // 3
                flat = flat.to(self._device)
                yield make_batch(plan, flat, start, stored[i], sizes[i], targets, more)

        return batches, sizes

    def _pixels(self, path: Path, sides: tuple[int, int], size: Ints) -> Bytes:
        if path not in self.decoded:
            began = clock()
            self.decoded[path] = decode(path, *sides, (int(size[0]), int(size[1])))
            self.seconds += clock() - began
        return self.decoded[path]

    def feed(
        self,
        data: Dataset,
        schedule: Schedule,
        inputs: InputsOf,
        team: Team,
        accumulate: int,
        also: Sequence[Boxes] = (),
    ) -> Feed:
        whole = super().feed(data, schedule, inputs, team, accumulate, also)
        return PartFeed(whole.batches, whole.images, whole.identity, schedule, inputs)


@dataclass(frozen=True, slots=True)
class PartFeed(Feed):
    """A feed that can return part of a batch."""

    schedule: Schedule
    inputs: InputsOf


class Probe(Run):
    """A run whose trainings are timed for so many seconds each, instead of trained."""

    def __init__(
        self, config: Config, data: FewPictures, device: torch.device, seconds: float
    ) -> None:
        nowhere = Path()
        super().__init__(config, data, device, Team(), _no_folder, nowhere, nowhere)
        self.seconds = seconds
        self.pace = Pace(0.0, 0.0, 0)  # of the training
        self.took = 0.0  # seconds that it took to find out

    def train(
        self,
        stage: str,
        folder: Path,
        detector: Detector,
        labels: LabelMap,
        losses: Losses,
        feed: Feed,
        section: Training,
        weights: str | float | None,
        average: Average[Detector] | None = None,
        watch: LossMonitor | None = None,
    ) -> dict[str, Any]:
        assert isinstance(feed, PartFeed)
        began = clock()
        if average is None and isinstance(section, Online) and section.ema is not None:
            average = Average(detector, self.device)
        optimiser = make_optimiser(detector, self.device, section.weight_decay)  # its rate is 0
        step = Step(losses, optimiser, self.device, self.bf16(section), section.clip, average)
        detector.train()
        part = section.batch // section.accumulate
        time = _time_on_cuda if self.device.type == "cuda" else _time_on_cpu
        learnt = sum(p.numel() * p.element_size() for p in detector.parameters() if p.requires_grad)
        pace = time(step, feed, part, 2 * learnt, self.seconds, self.device)
        iteration = pace.iteration * section.accumulate
        self.pace = Pace(pace.start, iteration, pace.memory)
        self.took = clock() - began
        return {}


def _no_folder(stage: str) -> Path:
    raise LookupError(f"no result of {stage}: an estimate has none")


def _time_on_cpu(
    step: Step, feed: PartFeed, batch: int, kept: int, seconds: float, device: torch.device
) -> Pace:
    """One image first, then as many as the time allows; time grows with pixels and images.

    `kept` are the bytes that the first step allocates for good: gradients and momentum.
    """
    plans = _plans(feed)
    mean = fmean(canvas_pixels(plan) for plan in plans)
    began = clock()
    took, memory = _time(step, feed, min(plans, key=canvas_pixels), batch, 1, kept, device)
    cold = took * mean / canvas_pixels(min(plans, key=canvas_pixels))
    plan = min(plans, key=lambda plan: abs(canvas_pixels(plan) - mean))
    left = seconds - (clock() - began)
    images = max(k for k in range(1, batch + 1) if batch % k == 0 and (k == 1 or k * cold <= left))
    times = [cold] if cold > left else []
    while len(times) < MOST_CALLS and (not times or clock() - began + times[-1] * images < seconds):
        took, used = _time(step, feed, plan, batch, images, 0, device)
        memory = max(memory, used)  # freed memory stays with the process: later calls need less
        times.append(took * mean / canvas_pixels(plan) / images)
    return Pace(0.0, batch * median(times), memory)


def _time(
    step: Step,
    feed: PartFeed,
    plan: Plan,
    batch: int,
    images: int,
    kept: int,
    device: torch.device,
) -> tuple[float, int]:
    """Seconds of a step on some images of a plan, and the memory that the whole batch will take."""
    part = plan.part(0, plan.batch // images)
    next(iter(feed.inputs([part])))  # decodes its pictures
    reset_peak_memory(device)
    before, began = peak_memory(device), clock()
    step([next(iter(feed.inputs([part])))])
    took, used = clock() - began, peak_memory(device) - before
    return took, before + kept + max(used - kept, 0) * batch // images


def _time_on_cuda(
    step: Step, feed: PartFeed, batch: int, kept: int, seconds: float, device: torch.device
) -> Pace:
    """Whole batches on one canvas; a graph is recorded for each canvas."""
    plans = [plan.part(0, plan.batch // batch) for plan in _plans(feed)]
    mean = fmean(canvas_pixels(plan) for plan in plans)
    plan = min(plans, key=lambda plan: abs(canvas_pixels(plan) - mean))
    reset_peak_memory(device)

    def call() -> float:
        began = clock()
        step([next(iter(feed.inputs([plan])))])
        torch.cuda.synchronize(device)
        return clock() - began

    call()  # decodes its pictures, and loads libraries
    began = clock()
    recording = sum(call() for _ in range(GRAPH_CALLS - 1))
    times = [call()]
    while len(times) < MOST_CALLS and clock() - began < seconds:
        times.append(call())
    each = median(times) * mean / canvas_pixels(plan)
    return Pace(recording * len(feed.schedule.canvases), each, peak_memory(device))


def _plans(feed: PartFeed) -> list[Plan]:
    return [feed.schedule.plan(n) for n in range(LOOKED_AT)]


def canvas_pixels(plan: Plan) -> int:
    """Pixels of an image's canvas."""
    return plan.canvas[0] * plan.canvas[1]
