"""The data of a run: read once, and only what a stage needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import Boxes, Dataset, Floats, Ints
from mini_fsod.data.read import read
from mini_fsod.data.subsets import (
    arranged,
    base_set,
    is_of,
    is_target,
    shared_images,
    testing_part,
    training_part,
)
from mini_fsod.data.text import shown
from mini_fsod.detector.model import Detector
from mini_fsod.errors import UserError, nearest
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.inference import detect_all
from mini_fsod.eval.score import score
from mini_fsod.files import real
from mini_fsod.labels import LabelMap, split_by_name, split_by_novel
from mini_fsod.loader import device_cache
from mini_fsod.loader.cache import image_sizes
from mini_fsod.loader.resident import Annotations, Batch, Resident
from mini_fsod.loader.schedule import Plan, Schedule, each_once, reduced
from mini_fsod.loader.stream import Stream
from mini_fsod.runs.shots import (
    boxes_per_class,
    drawn_shots,
    note_tiny_shots,
    read_shot_file,
    refuse_missing_pictures,
    shots_from_file,
)
from mini_fsod.train.distributed import Team, gather
from mini_fsod.train.loop import Feed
from mini_fsod.train.step import Inputs, draw_of, inputs_of

Batches = Callable[[Iterable[Plan]], Iterator[Batch]]
InputsOf = Callable[[Iterable[Plan]], Iterator[Inputs]]

ALONE = Team()
TEST_BATCH = {"cuda": 32}  # images per batch at test
TEST_BATCH_ELSEWHERE = 4


class RunData:
    """Data sets, batches and scores of one run."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self._config = config
        self._device = device

    def check(self, stages: Sequence[str]) -> None:
        """Refuse data that lacks something these stages need, before the first one runs."""
        config = self._config
        trains_base = "base" in stages and config.base.checkpoint is None
        if trains_base and not is_target(self.base).any():
            raise UserError(
                "The training images have no boxes of base classes.",
                f"Check data.train and data.novel; `mini check {config.data.root}` counts boxes.",
            )
        with_shots = {"transfer", "scan", "mine"}
        with_shots |= {"tune"} if config.tune.data != "none" else set()
        with_shots |= {"online"} if config.online.shots else set()
        if with_shots & {*stages}:
            shots = self.shots  # refuses too few
            if config.shots.file is not None:
                refuse_missing_pictures(config.shots.file, shots)
        if "transfer" in stages and config.transfer.checkpoint is None:
            note_tiny_shots(self.shots, self.labels.novel, self.base, config)
        if stages and self.test is None:
            console.note(
                "no test set, so nothing will be scored: name one in data.test, or call a folder "
                "or annotation file test or val"
            )

    # Data sets

    @cached_property
    def whole(self) -> Dataset:
        """The data set as read, with all its image sets and classes."""
        assert self._config.data.root is not None  # `Config.ready` refuses it
        data = _read(self._config.data.root, self._config.data.pictures)
        for line in data.notes:
            console.note(line)
        return data

    @cached_property
    def labels(self) -> LabelMap:
        config, classes = self._config.data, self.whole.classes
        # a novel class may be in the file of shots alone
        if {*config.novel} - {*classes} and self._config.shots.file is not None:
            classes = tuple(dict.fromkeys((*classes, *self._shot_file.classes)))
        by_name = split_by_name(config.split, classes) if config.split else None
        return _without_empty(by_name or split_by_novel(config.novel, classes), self.whole)

    @cached_property
    def test(self) -> Dataset | None:
        """The images to score on; None where the data has no image set for it."""
        name = self._config.data.test or testing_part(self.whole)
        return None if name is None else self.whole.subset(name)

    @cached_property
    def _train_part(self) -> str | None:
        """The name of the image set to train on; None for all images."""
        return self._config.data.train or training_part(self.whole)

    @cached_property
    def train(self) -> Dataset:
        """The images to train on, with all their boxes; none that shows `data.leave_out`."""
        data, name = self._all_train, self._config.data.leave_out
        if name is None:
            return data
        if name not in self.labels.novel:
            raise UserError(
                f"data.leave_out: {shown(name)} is no novel class of this run."
                f"{nearest(name, self.labels.novel)}",
                f"Novel classes: {', '.join(self.labels.novel)}.",
            )
        without = np.setdiff1d(np.arange(len(data)), data.boxes.image[is_of(data, (name,))])
        images = console.count(len(data) - len(without), "image")
        console.note(f"{images} that show {name} left out (data.leave_out)")
        return data.select(without)

    @cached_property
    def _all_train(self) -> Dataset:
        """The images to train on and to take shots from.

        Test images are left out, unless `data.train` names the image set.
        """
        asked, name = self._config.data.train, self._train_part
        data = self.whole if name is None else self.whole.subset(name)
        in_test = shared_images(data, self.test)
        if asked and in_test.any():
            images = console.count(int(in_test.sum()), "image")
            console.note(f"{asked} shares {images} with the test set: scores will be too high")
        elif in_test.any():
            data = data.select(np.flatnonzero(~in_test))
        unusable = ~(is_target(data) | data.boxes.crowd | data.boxes.ignore)
        if unusable.any():
            boxes = console.count(int(unusable.sum()), "box")
            console.note(
                f"{boxes} with no area or outside the picture left out: `mini check` lists them"
            )
        return data

    @cached_property
    def base(self) -> Dataset:
        """The base set D^b: images with a base box, with their base boxes only."""
        return arranged(base_set(self.train, self.labels), LabelMap(self.labels.base, ()))

    @cached_property
    def mined(self) -> Dataset:
        """The images to mine, with all their boxes; novel ones are for audits only."""
        data = arranged(self.train, self.labels)
        if self._config.mine.images == "all":
            return data
        return data.select(np.unique(data.boxes.image[is_of(data, self.labels.base)]))

    @cached_property
    def shots(self) -> Dataset:
        """The balanced K-shot set, its classes in the order of the label map."""
        config = self._config.shots
        source = self.whole, self._all_train, self._train_part, self.labels
        if config.file is None:
            return drawn_shots(config, *source)
        return shots_from_file(config, self._shot_file, *source)

    @cached_property
    def _shot_file(self) -> Dataset:
        config = self._config.shots
        assert config.file is not None
        return read_shot_file(config.file, self.whole, config.root)

    @cached_property
    def shots_per_class(self) -> int:
        """K: `shots.k`, or the least number of shots that a file has of a novel class."""
        config = self._config.shots
        if config.file is None:
            return config.k
        k = int(boxes_per_class(self.shots)[len(self.labels.base) :].min())
        if k != config.k:
            console.note(f"{config.file} has {k} boxes per class: shots.k={config.k} has no effect")
        return k

    def digest_of(self, part: str) -> str | None:
        """SHA-256 of one of the data sets above; None without a test set.

        It depends on content alone: classes, image names, sizes, boxes. Where the folders lie and
        when files were written does not matter.
        """
        data: Dataset | None = getattr(self, part)
        if data is None or part != "shots" or self._config.shots.file is None:
            return None if data is None else data.digest
        # pictures outside the data's folder have absolute names
        outside = f"{real(self._shot_file.root)}/"
        files = tuple(name.removeprefix(outside) for name in data.files)
        return replace(data, files=files).digest

    # Batches

    def batches(
        self, data: Dataset, also: Sequence[tuple[Boxes, Floats | None]] = ()
    ) -> tuple[Batches, Ints]:
        """A function from plans to batches of a data set, and the sizes of its pictures (I, 2).

        `also` are further boxes of its images with their scores, such as mined ones.
        """
        targets = Annotations.of(data.boxes, len(data), is_target(data))
        more = [Annotations.of(boxes, len(data), scores=scores) for boxes, scores in also]
        return self.source(data, targets, more)

    def source(
        self, data: Dataset, targets: Annotations, more: Sequence[Annotations]
    ) -> tuple[Batches, Ints]:
        """`batches` from padded boxes: pictures from the device's memory, or decoded as needed."""
        # shots of a file, and extra pictures to mine, may lie outside the data's folder
        inside = data.root == self.whole.root and set(data.files) <= set(self.whole.files)
        everything = self.whole if inside else data
        config, device = self._config, self._device
        if device_cache.is_streamed(everything, config, device):
            sizes, sides = image_sizes(data), device_cache.largest_sides(config)
            return Stream(data, sizes, targets, device, *sides, extra=more).batches, sizes
        pictures, pixels = device_cache.pictures_on_device(everything, config, device)
        pictures = pictures.take(data.files)
        return Resident(pictures, targets, device, more, pixels).batches, pictures.sizes

    def feed(
        self,
        data: Dataset,
        schedule: Schedule,
        inputs: InputsOf,
        team: Team,
        accumulate: int,
        also: Sequence[Boxes] = (),
    ) -> Feed:
        """Training batches of a data set, for the loop; `also` are further boxes to train on."""
        parts = team.world * accumulate

        def batches(start: int) -> Generator[Sequence[Inputs]]:
            plans = (
                schedule.plan(n).part(team.rank * accumulate + i, parts)
                for n in count(start)
                for i in range(accumulate)
            )
            source = inputs(plans)
            while part := tuple(islice(source, accumulate)):
                yield part

        def names(n: int) -> list[str]:
            return [data.files[i] for i in schedule.plan(n).images.tolist()]

        identity = hashlib.sha256(schedule.identity.encode())
        # the cache resizes larger pictures first, to a size that depends on keys of other stages
        kept = reduced(schedule.sizes, *device_cache.largest_sides(self._config))
        identity.update(np.ascontiguousarray(kept).tobytes())
        for boxes in (data.boxes, *also):
            identity.update(boxes.content)
        return Feed(batches, names, identity.hexdigest()[:16])

    # Scores

    def score(
        self, detector: Detector, labels: LabelMap, bf16: bool, team: Team = ALONE
    ) -> dict[str, Any]:
        """The detector's scores on the test set, as `eval.score.score` gives them."""
        metric = self._config.data.metric
        if self.test is None:
            nothing = dict.fromkeys(("nAP50", "bAP50", "AP50", "test_set"))
            return {"metric": metric, **nothing, "per_class": {}, "images": 0, "detections": 0}
        data = arranged(self.test, labels)
        found = self.detections(detector, data, bf16, team)
        return score(data, found, labels, metric) | {"test_set": self.test.digest}

    def detections(
        self, detector: Detector, data: Dataset, bf16: bool, team: Team = ALONE
    ) -> DatasetDetections:
        """What the detector finds in a data set, at the size of tests; in every process all."""
        batches, sizes = self.batches(data)
        plans = team.part(self.test_plans(sizes))
        with console.progress("testing", len(plans)) as report:
            part = detect_all(detector, counted(batches, report), plans, self._device, bf16)
        return DatasetDetections.joined(gather(part, team))

    def test_plans(self, sizes: Ints) -> list[Plan]:
        """The batches of a test, for pictures of sizes (I, 2)."""
        size = TEST_BATCH.get(self._device.type, TEST_BATCH_ELSEWHERE)
        views = self._config.views
        return each_once(sizes, min(size, len(sizes)), views.test, views.long)


@lru_cache(maxsize=1)  # the runs of a study, one after another, share it
def _read(root: Path, pictures: Path | None) -> Dataset:
    return read(root, root=pictures)


def inputs_from(batches: Batches, device: torch.device) -> InputsOf:
    """A function from plans to the inputs of `train.step.losses_of`."""

    def inputs(plans: Iterable[Plan]) -> Iterator[Inputs]:
        for batch in batches(plans):
            yield inputs_of(batch, draw_of(batch.plan, device))

    return inputs


def counted(batches: Batches, report: Callable[..., None]) -> Batches:
    """The same batches, reporting their number as they pass."""

    def source(plans: Iterable[Plan]) -> Iterator[Batch]:
        for n, batch in enumerate(batches(plans), start=1):
            report(n)
            yield batch

    return source


def _without_empty(labels: LabelMap, data: Dataset) -> LabelMap:
    """Without base classes that have no boxes: labelling sites export the project's name as one."""
    empty = [name for name in labels.base if not is_of(data, (name,)).any()]
    if empty:
        console.note(f"classes without boxes left out: {', '.join(empty)}")
    return LabelMap(tuple(name for name in labels.base if name not in empty), labels.novel)
