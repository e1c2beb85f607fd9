"""What a run will cost on this machine: minutes and memory of its stages, measured in seconds.

The stages' own code does a few iterations on a few pictures (`probe`). Nothing is written, and
random numbers go on afterwards as if nothing had happened.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from mini_fsod import console
from mini_fsod.config.schema import STAGES, Config, Training, Transfer, Tune
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.subsets import is_of, spread
from mini_fsod.detector.model import Detector
from mini_fsod.device import peak_memory, reset_peak_memory
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.files import default_cache_folder
from mini_fsod.loader import device_cache
from mini_fsod.loader.cache import image_sizes, is_cached
from mini_fsod.loader.decode import cores
from mini_fsod.loader.schedule import Plan, reduced
from mini_fsod.mining.base_objects import base_object_plans, find_base_objects
from mini_fsod.mining.box_correction import CORRECTIONS
from mini_fsod.mining.crops import BASE_IMAGES, CORRECTED, features_of
from mini_fsod.mining.find_pairs import PrototypeComparison
from mini_fsod.mining.scan import detected_pairs, discriminator_of, scan_plans
from mini_fsod.mining.tighten import longest_side, pictures_at_once
from mini_fsod.online.retrain import online
from mini_fsod.runs import probe
from mini_fsod.runs.base import base
from mini_fsod.runs.data import RunData
from mini_fsod.runs.detectors import new_detector, to_device
from mini_fsod.runs.identity import stages_of
from mini_fsod.runs.published_files import all_files_named
from mini_fsod.runs.scoring import scoring_seconds
from mini_fsod.segmenter.load import load_segmenter
from mini_fsod.tfa.cached_features import bytes_of_views, why_not_cached
from mini_fsod.tfa.fine_tune import few_shot_schedule, fine_tune
from mini_fsod.tfa.transfer import few_shot_detector
from mini_fsod.tfa.tune import freeze_all_but
from mini_fsod.train.distributed import ALONE
from mini_fsod.train.loop import LEAST_SHARE

SECONDS = 20.0  # that an estimate may take on two cores, beside reading data and weights
SHARES = {"base": 0.3, "transfer": 0.1, "scan": 0.1, "online": 0.35, "tune": 0.05, "scoring": 0.1}
PICTURES = 2  # that are scanned, scored, or looked at in the few-shot stages
CROPPED = 4  # pictures whose boxes are cropped for the discriminator
CANDIDATES = 2.0  # crops of an image in mining: a guess, they depend on the trained detector
MINE_SECONDS = 2.0  # to choose boxes, and to draw the contact sheets


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """What a stage will cost, its start and the scoring of its detector included."""

    stage: str
    minutes: float
    scoring: float  # minutes of these that the test set takes
    iterations: int | None  # of a training; None where nothing is trained
    images_per_second: float | None  # trained on, or scanned
    memory: int  # bytes at the peak: of the GPU, else of this process


@dataclass(frozen=True, slots=True)
class RunEstimate:
    stages: tuple[StageEstimate, ...]
    decoding: float  # minutes until all pictures are decoded; 0 where they are already

    @property
    def minutes(self) -> float:
        return self.decoding + sum(stage.minutes for stage in self.stages)

    @property
    def memory(self) -> int:
        return max((stage.memory for stage in self.stages), default=0)


def estimate_run(
    config: Config,
    device: torch.device,
    stages: Collection[str] | None = None,
    data: RunData | None = None,
    seconds: float = SECONDS,
) -> RunEstimate:
    """Minutes and memory of these stages of a run; None: of all that it has.

    Give the data of a run where they are read already. Takes about so many seconds on top of
    reading data and weights: at least two iterations of one image for each training.
    """
    config.ready()
    wanted = stages_of(config, STAGES[-1]) if stages is None else stages
    few = probe.FewPictures(config, device)
    if data is not None:
        vars(few).update(vars(data))  # the parts that it has read
    with torch.random.fork_rng(), _quiet(), all_files_named(config, wanted):
        estimator = _Estimator(config, device, few, wanted, seconds)
        stages_found = [estimator.stage(name) for name in STAGES if name in wanted]
        pictures = estimator.pictures_on_gpu()
        found = tuple(replace(stage, memory=stage.memory + pictures) for stage in stages_found)
        result = RunEstimate(found, estimator.decoding() / 60)
    del estimator
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return result


@contextmanager
def _quiet() -> Iterator[None]:
    """The run itself says again what the stages have to say."""
    before, console.err.quiet = console.err.quiet, True
    try:
        yield
    finally:
        console.err.quiet = before


def _without_weights(config: Config) -> Config:
    """A run that starts from a given detector reads no weights, so neither does its estimate."""
    section = config.detector
    if config.base.checkpoint is None or section.weights is None:
        return config
    if config.online.start == "weights":
        return config
    frozen = 2 if section.frozen_stages is None else section.frozen_stages  # as with weights
    changed = section.model_copy(update={"weights": None, "frozen_stages": frozen})
    return config.model_copy(update={"detector": changed})


class _Estimator:
    """Measures each kind of work once."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        data: probe.FewPictures,
        wanted: Collection[str],
        seconds: float,
    ) -> None:
        self._config, self._device, self._data = _without_weights(config), device, data
        measured = [*wanted, *(["scoring"] if data.test is not None else [])]
        shares = {name: share for name, share in SHARES.items() if name in measured}
        self._seconds = {n: seconds * share / sum(shares.values()) for n, share in shares.items()}
        self._of_score: float | None = None
        if data.is_open and data.found is None:
            data.found = data.to_label  # as if the given detector found nothing
        self._detector: Detector | None = None

    def stage(self, name: str) -> StageEstimate:
        if name == "scan":
            return self._scan()
        if name == "mine":
            minutes = (MINE_SECONDS + self._tightening()) / 60
            return StageEstimate("mine", minutes, 0.0, None, None, self._resting())
        section = getattr(self._config, name)
        scoring = self._scoring()
        if getattr(section, "checkpoint", None) is not None:
            looking = self._looking(self._data.to_label) if name == "base" else 0.0
            minutes = (scoring + looking) / 60
            return StageEstimate(name, minutes, scoring / 60, None, None, self._resting())
        if name == "tune" and self._config.tune.data == "none":  # its score is online's
            return StageEstimate(name, 0.0, 0.0, None, None, self._resting())
        pace = self._fine_tuning(name) if name in ("transfer", "tune") else self._training(name)
        estimate = _of_training(name, section, pace, scoring)
        if name == "transfer" and self._config.transfer.mined_shots:  # twice, a scan between
            more = estimate.minutes - estimate.scoring + self._scan().minutes
            return replace(estimate, minutes=estimate.minutes + more)
        return estimate

    def _training(self, name: str) -> probe.Pace:
        """The pace of a stage that trains the whole detector."""
        config = self._config
        if name == "online":  # it needs neither the pool nor the few-shot detector
            changed = config.online.model_copy(update={"oracle": True, "start": "weights"})
            config = config.model_copy(update={"online": changed})
        run = self._probe(config, name)
        began = probe.clock()
        {"base": base, "online": online}[name](run, Path(name))
        start = probe.clock() - began - run.took
        return probe.Pace(start + run.pace.start, run.pace.iteration, run.pace.memory)

    def _fine_tuning(self, name: str) -> probe.Pace:
        """The pace of a stage that trains a few layers, with or without features of all views."""
        section: Transfer | Tune = getattr(self._config, name)
        shots, detector = self._data.shots, self._few_shot()
        if name == "tune":
            freeze_all_but(detector, self._config.tune.part)
        run = self._probe(self._config, name)
        bf16 = run.bf16(section)
        whole = few_shot_schedule(run, section, image_sizes(shots))
        most = int(np.diff(shots.offsets).max())
        cached = not why_not_cached(detector, whole, most, self._device, bf16)
        plans = whole.every_view(1)
        run.config = self._with_one_view(plans)
        few = spread(shots, PICTURES)
        began, decoding = probe.clock(), self._data.seconds
        fine_tune(run, name, Path(name), detector, few, section, None, may_cache=cached)
        if not cached:
            return run.pace
        views = probe.clock() - began - run.took - (self._data.seconds - decoding)
        one = few_shot_schedule(run, section, image_sizes(few)).every_view(1)
        start = views * sum(map(probe.canvas_pixels, plans)) / sum(map(probe.canvas_pixels, one))
        kept = bytes_of_views(detector, len(plans), most, bf16)
        return probe.Pace(start, run.pace.iteration, run.pace.memory + kept)

    def _with_one_view(self, plans: Sequence[Plan]) -> Config:
        """Each picture at one usual size, not flipped."""
        shorts = sorted(plan.short for plan in plans)
        changes = {"few_shot": (shorts[len(shorts) // 2],), "flip": False}
        return self._config.model_copy(
            update={"views": self._config.views.model_copy(update=changes)}
        )

    def _scan(self) -> StageEstimate:
        config, data = self._config, self._data
        section, images = config.mine, data.mined
        discriminator = discriminator_of(config, self._device)
        run = self._probe(config, "scan")
        reset_peak_memory(self._device)
        seconds, speed = 0.0, None
        if section.detections is None:
            detector, few = self._few_shot(), spread(images, PICTURES)
            comparison = None
            if discriminator is not None and discriminator.crop is None:
                prototypes = torch.zeros(
                    len(data.labels.novel), discriminator.dimension, device=self._device
                )
                comparison = PrototypeComparison(discriminator, prototypes)
            each = self._timed(lambda: detected_pairs(run, few, detector, comparison), "scan")
            plans, measured = (scan_plans(run, image_sizes(d)) for d in (images, few))
            seconds = (
                each
                * sum(map(probe.canvas_pixels, plans))
                / sum(map(probe.canvas_pixels, measured))
            )
            speed = len(images) / seconds
            seconds += self._looking(images)
        if discriminator is not None and discriminator.crop is not None:
            seconds += self._crops(run, discriminator)
        memory = peak_memory(self._device)
        return StageEstimate("scan", seconds / 60, 0.0, None, speed, memory)

    def _looking(self, images: Dataset) -> float:
        """Seconds to look for base objects, where labels of them are missing."""
        if not self._data.is_open:
            return 0.0
        run, few = self._probe(self._config, "scan"), spread(images, PICTURES)
        detector = self._few_shot()
        each = self._timed(lambda: find_base_objects(run, few, detector, ALONE), "scan")
        plans, measured = (base_object_plans(run, image_sizes(d)) for d in (images, few))
        return each * sum(map(probe.canvas_pixels, plans)) / sum(map(probe.canvas_pixels, measured))

    def _crops(self, run: probe.Probe, discriminator: Discriminator) -> float:
        """Seconds for all crops: of shots, base boxes, candidates, and corrected boxes."""
        data, labels = self._data, self._data.labels
        source = data.base if len(data.base) else data.shots
        few = spread(source, CROPPED)
        each = self._timed(lambda: features_of(run, discriminator, few), "scan") / len(few.boxes)
        base_boxes = len(data.base.boxes) * min(1.0, BASE_IMAGES / max(len(data.base), 1))
        candidates = CANDIDATES * len(data.mined)
        crops = base_boxes + candidates + int(is_of(data.shots, labels.novel).sum())
        if self._config.mine.box_correction:
            crops += min(CORRECTED * len(labels.novel), candidates) * len(CORRECTIONS)
        return each * crops

    def _tightening(self) -> float:
        """Seconds of the segmenter, if each mined box has a picture of its own."""
        section, data, device = self._config.mine, self._data, self._device
        if section.segmenter is None or section.pool is not None:
            return 0.0
        segmenter, count = load_segmenter(section.segmenter, device), pictures_at_once(device)
        side = longest_side(image_sizes(data.mined))
        images = torch.zeros(count, 3, side, side, dtype=torch.uint8, device=device)
        sizes = torch.full((count, 2), side, device=device)
        boxes = torch.tensor([[0.0, 0.0, side / 2, side / 2]], device=device).repeat(count, 1)

        def work() -> None:
            image = torch.arange(count, device=device)
            segmenter.masks(segmenter.encode(images, sizes), image, boxes, side)

        pictures = min(section.per_class * len(data.labels.novel), len(data.mined))
        return self._timed(work, "scan") / count * pictures

    def _scoring(self) -> float:
        """Seconds for the whole test set."""
        if self._of_score is None:
            run = self._probe(self._config, "scoring")
            bf16, labels = run.bf16(self._config.transfer), self._data.labels
            self._of_score = 0.0
            if self._data.test is not None:
                self._of_score = scoring_seconds(
                    self._config, self._data, self._few_shot(), labels, bf16
                )
        return self._of_score

    def _few_shot(self) -> Detector:
        """A detector of all classes, on the device."""
        if self._detector is None:
            labels, transfer = self._data.labels, self._config.transfer
            detector = to_device(new_detector(self._config, len(labels.base)), self._device)
            seed, mean = self._config.seed, transfer.boxes != "new"
            self._detector = few_shot_detector(detector, labels, seed, mean)
        return self._detector

    def _timed(self, work: Callable[[], object], share: str) -> float:
        """Seconds of some work without decoding; of the second time, where there is time for it."""
        took = 0.0
        began = probe.clock()
        for _ in range(2):
            start, decoding = probe.clock(), self._data.seconds
            work()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            took = probe.clock() - start - (self._data.seconds - decoding)
            if probe.clock() - began + took > self._seconds.get(share, 0.0):
                break
        return took

    def _probe(self, config: Config, name: str) -> probe.Probe:
        return probe.Probe(config, self._data, self._device, self._seconds.get(name, 0.0))

    def _resting(self) -> int:
        reset_peak_memory(self._device)
        return peak_memory(self._device)

    def pictures_on_gpu(self) -> int:
        """Bytes of all pictures in the GPU's memory; 0 where they are not there."""
        data, config = self._data.whole, self._config
        if self._device.type != "cuda" or device_cache.is_streamed(data, config, self._device):
            return 0
        stored = reduced(image_sizes(data), *device_cache.largest_sides(config))
        return 3 * int(stored.prod(axis=1).sum())

    def decoding(self) -> float:
        """Seconds until all pictures are decoded into the cache; 0 where they are, or need not."""
        data, config, decoded = self._data.whole, self._config, self._data.decoded
        folder, sides = (
            config.data.cache or default_cache_folder(),
            device_cache.largest_sides(config),
        )
        if config.data.loading == "stream" or not decoded or is_cached(data, folder, *sides):
            return 0.0
        return self._data.seconds / len(decoded) * len(data) / cores()


def _of_training(name: str, section: Training, pace: probe.Pace, scoring: float) -> StageEstimate:
    limit, iterations = 60 * section.budget_minutes, section.iterations
    if iterations is None:  # as the loop has it
        training = max(limit - pace.start - scoring, LEAST_SHARE * limit)
        iterations = max(1, int(training / pace.iteration))
        seconds = pace.start + training + scoring
    else:
        seconds = pace.start + iterations * pace.iteration + scoring
    speed = section.batch / pace.iteration
    return StageEstimate(name, seconds / 60, scoring / 60, iterations, speed, pace.memory)
