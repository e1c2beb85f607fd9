"""The data of a run: read once, and only what a stage asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mini_fsod import console
from mini_fsod.config.load import Config
from mini_fsod.data.dataset import Boxes, Dataset, Floats, Ints
from mini_fsod.data.layout import is_sample
from mini_fsod.data.official_shots import choose, lists_from_file, voc_lists
from mini_fsod.data.read import read
from mini_fsod.data.shots import balanced_set, draw, hard_to_see, seen_sizes
from mini_fsod.data.split import among, arranged, base_set, is_of, is_target, united
from mini_fsod.data.subsets import shared, testing_part, training_part
from mini_fsod.detector.matching import draw_number
from mini_fsod.detector.model import Detector
from mini_fsod.errors import UserError, nearest
from mini_fsod.eval.inference import detect_all
from mini_fsod.eval.score import score
from mini_fsod.files import is_file
from mini_fsod.labels import LabelMap, split_by_name, split_by_novel
from mini_fsod.loader import device_cache
from mini_fsod.loader.cache import own_sizes
from mini_fsod.loader.resident import Annotations, Batch
from mini_fsod.loader.schedule import Plan, Schedule, each_once, reduced
from mini_fsod.loader.stream import Stream
from mini_fsod.train.distributed import Team
from mini_fsod.train.loop import Feed
from mini_fsod.train.step import Inputs, inputs_of

Batches = Callable[[Iterable[Plan]], Iterator[Batch]]
InputsOf = Callable[[Iterable[Plan]], Iterator[Inputs]]

AT_TEST = {"cuda": 32}  # images a batch
AT_TEST_ELSEWHERE = 4
# A shot is tiny below so many times the smallest anchor. With the usual one, 32 pixels, hardly an
# object below 64 is mined (docs/on-the-way.md), and of three shots of 55 to 61 two taught their
# class nothing (docs/results.md). Where all is small, as in the demo, a shot may be too: tiny is at
# most half as large as a base box usually is.
SEEN = 2


class Material:
    """Data sets, pictures and figures of one run."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self._config = config
        self._device = device

    def check(self, stages: Sequence[str]) -> None:
        """Say what the data lacks for these stages now, not after hours of the first one."""
        trains = "base" in stages and self._config.base.checkpoint is None
        if trains and not is_target(self.base).any():
            raise UserError(
                "There is not a single box of a base class to train on.",
                f"`mini check {self._config.data.root}` counts them; see data.train, data.novel.",
            )
        tunes = "tune" in stages and self._config.tune.data != "none"
        learns = "online" in stages and self._config.online.shots
        if {"transfer", "mine"} & {*stages} or tunes or learns:
            _refuse_missing(self._config.shots.file, self.shots)  # too few are told by `shots`
        if "transfer" in stages and self._config.transfer.checkpoint is None:
            self._tell_of_tiny_shots()
        if stages and self.test is None:
            console.note(
                "the data has no image set for tests (data.test): nothing will be scored; a folder "
                "or an annotation file called test or val is one"
            )

    def _tell_of_tiny_shots(self) -> None:
        sides = (self._config.views.test, self._config.views.long)
        usual = seen_sizes(self.base.with_boxes(self.base.boxes.take(is_target(self.base))), *sides)
        least = SEEN * min(self._config.detector.anchors)
        if np.isfinite(usual).any():
            least = min(least, float(np.nanmedian(usual)) / 2)
        for line in hard_to_see(self.shots, self.labels.novel, *sides, least):
            console.note(line)

    # Data sets

    @cached_property
    def data(self) -> Dataset:
        assert self._config.data.root is not None  # `Config.ready` asked for it
        data = _read(self._config.data.root)
        for line in data.notes:
            console.note(line)
        return data

    @cached_property
    def labels(self) -> LabelMap:
        own, there = self._config.data, self.data.classes
        # a new class may be known in a file of shots alone
        if {*own.novel} - {*there} and self._config.shots.file is not None:
            there = tuple(dict.fromkeys((*there, *self._file_of_shots.classes)))
        named = split_by_name(own.split, there) if own.split else split_by_novel(own.novel, there)
        return _without_empty(named, self.data)

    @cached_property
    def test(self) -> Dataset | None:
        """The images to score on; None where the data has no part for it."""
        name = self._config.data.test or testing_part(self.data)
        return None if name is None else self.data.subset(name)

    @cached_property
    def _part(self) -> str | None:
        """The image set to train on; None for all images."""
        return self._config.data.train or training_part(self.data)

    @cached_property
    def train(self) -> Dataset:
        """The images to train on, with all of their boxes."""
        wish, name = self._config.data.train, self._part
        data = self.data if name is None else self.data.subset(name)
        both = shared(data, self.test)
        if wish and both.any():
            images = console.count(int(both.sum()), "image")
            console.note(f"{wish} shares {images} with the test set: figures will flatter")
        data = data.select(np.flatnonzero(~both)) if both.any() and not wish else data
        unusable = ~(is_target(data) | data.boxes.crowd | data.boxes.ignore)
        if unusable.any():
            boxes = console.count(int(unusable.sum()), "box")
            console.note(f"{boxes} without area or outside of the picture left out: mini check")
        return data

    @cached_property
    def base(self) -> Dataset:
        """The base set D^b: images with a base box, and base boxes alone."""
        return arranged(base_set(self.train, self.labels), LabelMap(self.labels.base, ()))

    @cached_property
    def mined(self) -> Dataset:
        """The images to mine, with all of their boxes; those of novel classes are for audits."""
        data = arranged(self.train, self.labels)
        if self._config.mine.images == "all":
            return data
        return data.select(np.unique(data.boxes.image[is_of(data, self.labels.base)]))

    @cached_property
    def shots(self) -> Dataset:
        """The balanced K-shot set, its classes in the order of the label map."""
        own = self._config.shots
        if own.file is not None:
            return self._with_base_shots(among(self._file_of_shots, self.data))
        if own.official is None:
            data = self.train if own.subset is None else self.data.subset(own.subset)
            part = own.subset or self._part
            chosen = draw(data, self.labels, own.k, own.seed, part, self.data)
        else:
            lists, whole = (
                (voc_lists(own.seed), False)
                if own.official == "voc"
                else lists_from_file(Path(own.official), own.seed)
            )
            data = self.data if whole else self.train
            chosen = choose(data, self.labels, lists, own.k, own.seed)
        for line in chosen.notes:
            console.note(line)
        return arranged(balanced_set(data, chosen), self.labels)

    @cached_property
    def _file_of_shots(self) -> Dataset:
        """What `mini sample` wrote names pictures below the data's folder; others, beside it."""
        path = self._config.shots.file
        assert path is not None  # who asks has looked
        return read(path, root=self.data.root if is_sample(path) else None)

    def _with_base_shots(self, given: Dataset) -> Dataset:
        """The shots of a file, and drawn ones of base classes that it leaves out."""
        own, labels = self._config.shots, self.labels
        shots = arranged(given, labels)
        number = np.bincount(shots.boxes.label[is_target(shots)], minlength=len(labels.classes))
        missing = [name for name, n in zip(labels.classes, number, strict=True) if not n]
        new = [name for name in labels.novel if name in missing]
        if new:
            there = ", ".join(given.classes) or "no class"
            raise UserError(
                f"{own.file}: there is no shot of {', '.join(new)}; it knows {there}."
                f"{nearest(new[0], given.classes)}",
                "Call classes by the same names in data.novel and in the file, or sample again.",
            )
        if not missing:
            return shots
        k = int(number[len(labels.base) :].min())
        console.note(
            f"{own.file}: has no {', '.join(missing)}; {k} of each are drawn from the data"
        )
        base = LabelMap(tuple(missing), ())
        drawn = draw(self.train, base, k, own.seed, self._part, self.data)
        return united(shots, arranged(balanced_set(self.train, drawn), labels))

    @cached_property
    def shots_of_a_class(self) -> int:
        """K: as configured, or as a file of shots has it, the least of its novel classes."""
        own = self._config.shots
        if own.file is None:
            return own.k
        boxes = self.shots.boxes.label[is_target(self.shots)]
        number = np.bincount(boxes, minlength=len(self.labels.classes))[len(self.labels.base) :]
        if number.min() != own.k:
            console.note(
                f"{own.file} has {number.min()} boxes of a class: shots.k, {own.k}, is idle"
            )
        return int(number.min())

    # Pictures

    def batches(
        self, data: Dataset, also: Sequence[tuple[Boxes, Floats | None]] = ()
    ) -> tuple[Batches, Ints]:
        """The way from plans to batches of a data set, and the pictures' sizes (I, 2).

        `also` are further boxes of its images with their scores, such as mined ones.
        """
        targets = Annotations.of(data.boxes, len(data), is_target(data))
        more = [Annotations.of(boxes, len(data), scores=scores) for boxes, scores in also]
        # shots of a file, and pictures to mine as well, may lie elsewhere
        ours = data.root == self.data.root and set(data.files) <= set(self.data.files)
        everything = self.data if ours else data
        if device_cache.too_many(everything, self._config, self._device):
            own, sides = own_sizes(data), device_cache.largest_sides(self._config)
            return Stream(data, own, targets, self._device, *sides, extra=more).batches, own
        pictures, resident = device_cache.hold(everything, self._config, self._device)
        pictures = pictures.take(data.files)
        return resident.sharing(pictures, targets, more).batches, pictures.own

    def feed(
        self,
        data: Dataset,
        schedule: Schedule,
        inputs: InputsOf,
        team: Team,
        accumulate: int,
        also: Sequence[Boxes] = (),
    ) -> Feed:
        """Training batches of a data set, for the loop; `also` are further boxes it learns from."""
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
        # larger ones are reduced twice, and how far at first depends on keys of other stages
        kept = reduced(schedule.sizes, *device_cache.largest_sides(self._config))
        identity.update(np.ascontiguousarray(kept).tobytes())
        for boxes in (data.boxes, *also):
            identity.update(boxes.content)
        return Feed(batches, names, identity.hexdigest()[:16])

    # Figures

    def score(self, detector: Detector, labels: LabelMap, bf16: bool) -> dict[str, Any]:
        """What `eval.score.score` says of the detector's answers to the test images."""
        metric, views = self._config.data.metric, self._config.views
        if self.test is None:
            nothing = dict.fromkeys(("nAP50", "bAP50", "AP50", "test_set"))
            return {"metric": metric, **nothing, "per_class": {}, "images": 0, "detections": 0}
        data = arranged(self.test, labels)
        batches, own = self.batches(data)
        size = AT_TEST.get(self._device.type, AT_TEST_ELSEWHERE)
        plans = each_once(own, size, views.test, views.long)
        with console.progress("testing", len(plans)) as told:
            found = detect_all(detector, counted(batches, told), plans, self._device, bf16)
        return score(data, found, labels, metric) | {"test_set": self.test.digest}


@lru_cache(maxsize=1)  # the runs of a study, one after another, share it
def _read(root: Path) -> Dataset:
    return read(root)


def inputs_from(batches: Batches, device: torch.device) -> InputsOf:
    """The way from plans to what `train.step.losses_of` takes."""

    def inputs(plans: Iterable[Plan]) -> Iterator[Inputs]:
        for batch in batches(plans):
            number = draw_number(batch.plan.step, batch.plan.first)
            yield inputs_of(batch, torch.full((), number, dtype=torch.int64, device=device))

    return inputs


def counted(batches: Batches, told: Callable[..., None]) -> Batches:
    """The same, telling how many there were so far."""

    def source(plans: Iterable[Plan]) -> Iterator[Batch]:
        for n, batch in enumerate(batches(plans), start=1):
            told(n)
            yield batch

    return source


def _without_empty(labels: LabelMap, data: Dataset) -> LabelMap:
    """Without base classes of which there is no box at all: labelling sites export the name of the
    project as a class of its own.
    """
    empty = [name for name in labels.base if not is_of(data, (name,)).any()]
    if empty:
        console.note(f"classes without a single box, left out: {', '.join(empty)}")
    return LabelMap(tuple(name for name in labels.base if name not in empty), labels.novel)


def _refuse_missing(file: Path | None, shots: Dataset) -> None:
    """A sample of another data set names pictures that are not there."""
    missing = [path for i in range(len(shots)) if not is_file(path := shots.path(i))]
    if file is not None and missing:
        raise UserError(
            f"{file}: {console.count(len(missing), 'picture')} of it cannot be found, "
            f"{missing[0]} for example.",
            "Take a sample of this data set (`mini sample`), or put the pictures there.",
        )
