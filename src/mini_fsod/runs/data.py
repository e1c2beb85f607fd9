"""The data of a run: read once, and only what a stage needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import Bools, Boxes, Dataset, Floats, Ints
from mini_fsod.data.read import read
from mini_fsod.data.subsets import (
    arranged,
    base_set,
    is_of,
    is_target,
    missing_labels,
    shared_images,
    test_sample,
    testing_part,
    training_part,
    united,
    without_class,
    without_empty,
)
from mini_fsod.data.unlisted import unlisted_notes, with_unlisted
from mini_fsod.errors import UserError
from mini_fsod.files import real
from mini_fsod.labels import (
    LabelMap,
    refuse_other_spellings,
    split_by_name,
    split_by_novel,
)
from mini_fsod.loader import device_cache
from mini_fsod.loader.cache import image_sizes
from mini_fsod.loader.resident import Annotations, Batch, Resident
from mini_fsod.loader.schedule import Plan, Schedule, reduced
from mini_fsod.loader.stream import Stream
from mini_fsod.runs.given import check_without_labels, with_given_classes
from mini_fsod.runs.shots import (
    boxes_per_class,
    drawn_shots,
    pictures_to_label,
    read_shot_file,
    refuse_missing_pictures,
    shots_of_file,
    tiny_shot_notes,
    uses_shots,
    with_base_shots,
)
from mini_fsod.train.distributed import Team
from mini_fsod.train.loop import Feed
from mini_fsod.train.step import Inputs

Batches = Callable[[Iterable[Plan]], Iterator[Batch]]
InputsOf = Callable[[Iterable[Plan]], Iterator[Inputs]]


class RunData:
    """Data sets, batches and scores of one run."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self._config = config
        self._device = device
        # what the given base detector is sure of in the pictures of `to_label`
        self.found: Dataset | None = None

    def check(self, stages: Sequence[str]) -> None:
        """Refuse data that lacks something these stages need, before the first one runs."""
        config = self._config
        trains_base = "base" in stages and config.base.checkpoint is None
        if trains_base and not is_target(self.base).any():
            raise UserError(
                "The training images have no boxes of base classes.",
                f"Check data.train and data.novel; `mini check {config.data.root}` counts boxes.",
            )
        if self.is_open:
            check_without_labels(config, stages)
        if uses_shots(config, stages):
            shots = self.novel_shots  # refuses too few
            if config.shots.file is not None:
                refuse_missing_pictures(config.shots.file, shots)
            if not self.is_open:
                _ = self.shots  # refuses too few of a base class
        if "transfer" in stages and config.transfer.checkpoint is None:
            for line in self.tiny_shots():
                console.note(line)
        if stages and self.test is None:
            console.note(
                "no test set, so nothing will be scored: name one in data.test, or call a folder "
                "or annotation file test or val"
            )

    def tiny_shots(self) -> list[str]:
        """Warnings of novel classes whose shots are too small to learn from."""
        drawn = arranged(base_set(self.train, self.labels), LabelMap(self.labels.base, ()))
        return tiny_shot_notes(self.novel_shots, self.labels.novel, drawn, self._config)

    # Data sets

    @cached_property
    def whole(self) -> Dataset:
        """The data set as read, with all its image sets and classes."""
        config = self._config
        config.ready()
        assert config.data.root is not None  # refused above
        data = _read(config.data.root, config.data.pictures, config.shots.file)
        for line in data.notes:
            console.note(line)
        if config.data.unlisted:
            return self._with_unlisted(data)
        if config.mine.extra is None:
            for line in unlisted_notes(data, config.data.root):
                console.note(line)
        return data

    def _with_unlisted(self, data: Dataset) -> Dataset:
        if self._config.base.checkpoint is None:
            raise UserError(
                "data.unlisted needs base.checkpoint: without a given detector, pictures without "
                "labels would count as pictures that show nothing.",
                "Give a finished detector; or set data.unlisted to false, and mine.extra to the "
                "folder of the pictures.",
            )
        whole = with_unlisted(data, self._config.data.train or training_part(data))
        pictures = console.count(len(whole) - len(data), "picture")
        console.note(f"{pictures} without labels beside the annotated ones (data.unlisted)")
        return whole

    @cached_property
    def labels(self) -> LabelMap:
        config, classes = self._config.data, self.whole.classes
        # a novel class may be in the file of shots alone
        if {*config.novel} - {*classes} and self._config.shots.file is not None:
            classes = tuple(dict.fromkeys((*classes, *self._shot_file.classes)))
        by_name = split_by_name(config.split, classes) if config.split else None
        labels = by_name or split_by_novel(config.novel, classes, self._config.shots.file)
        if self._config.base.checkpoint is None:
            return without_empty(labels, self.whole)
        given = with_given_classes(labels, self._config.base)
        return given if by_name is None else by_name  # of a split, the detector must be of it too

    @cached_property
    def test_set(self) -> Dataset | None:
        """The image set to score on, which is not trained on; None where the data has none."""
        name = self._config.data.test or testing_part(self.whole)
        return None if name is None else self.whole.subset(name)

    @cached_property
    def test(self) -> Dataset | None:
        """The images to score on: all of the set, or a sample of it."""
        most = self._config.data.test_most
        return self.test_set and self.test_set.select(test_sample(self.test_set, most))

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
        part = without_class(data, name, self.labels)
        images = console.count(len(data) - len(part), "image")
        console.note(f"{images} that show {name} left out (data.leave_out)")
        return part

    @cached_property
    def _all_train(self) -> Dataset:
        """The images to train on and to take shots from.

        Test images are left out, unless `data.train` names the image set.
        """
        asked, name = self._config.data.train, self._train_part
        data = self.whole if name is None else self.whole.subset(name)
        in_test = shared_images(data, self.test_set)
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
        return arranged(base_set(self.known, self.labels), LabelMap(self.labels.base, ()))

    def missing(self, data: Dataset) -> Bools:
        """(I, B) whether boxes of each base class may be missing in each image.

        None is where the base detector is trained: the labels that it learns from are complete.
        """
        if self._config.base.checkpoint is None:
            return np.zeros((len(data), len(self.labels.base)), dtype=np.bool_)
        return missing_labels(data, self.train, self.labels)

    @cached_property
    def is_open(self) -> bool:
        """Whether base labels are missing, so that the given detector's finds stand in for them."""
        return bool(self.missing(self.train).any())

    @cached_property
    def to_label(self) -> Dataset:
        """The pictures in which the given detector looks for shots of base classes."""
        train = arranged(self.train, self.labels)
        novel = self.novel_shots
        novel = novel.with_boxes(novel.boxes.take(is_of(novel, self.labels.novel)))
        return pictures_to_label(train, self.missing(train), novel, self._config.shots.seed)

    @cached_property
    def known(self) -> Dataset:
        """All images, with the boxes that people drew and those that stand in for base labels."""
        if not self.is_open:
            return self.train
        assert self.found is not None, "the stage base comes first"
        return united(arranged(self.train, self.labels), self.found)

    @property
    def labelled(self) -> Dataset:
        """Where all base boxes of the shots' pictures are known, classes as in the label map."""
        return arranged(self.known if self.is_open else self.whole, self.labels)

    @cached_property
    def mined(self) -> Dataset:
        """The images to mine, with all their boxes; novel ones are for audits only."""
        data = arranged(self.train, self.labels)
        if self._config.mine.images == "all":
            return data
        has_base = np.isin(np.arange(len(data)), data.boxes.image[is_of(data, self.labels.base)])
        return data.select(np.flatnonzero(has_base | self.missing(data).all(axis=1)))

    @cached_property
    def shots(self) -> Dataset:
        """The balanced K-shot set, its classes in the order of the label map."""
        config, shots, part = self._config.shots, self.novel_shots, self._train_part
        if self.is_open:
            return with_base_shots(shots, config, self.known, part, self.labels, None)
        if config.file is None:
            return shots
        return with_base_shots(shots, config, self._all_train, part, self.labels, self.whole)

    @cached_property
    def novel_shots(self) -> Dataset:
        """The shots that need no detector: those of novel classes, and of base ones as labelled."""
        config, labels = self._config.shots, self.labels
        if config.file is not None:
            return shots_of_file(config, self._shot_file, self.whole, labels)
        wanted = LabelMap((), labels.novel) if self.is_open else labels
        drawn = drawn_shots(config, self.whole, self._all_train, self._train_part, wanted)
        return arranged(drawn, labels)

    @cached_property
    def _shot_file(self) -> Dataset:
        config = self._config.shots
        assert config.file is not None
        shots = read_shot_file(config.file, self.whole, config.root)
        refuse_other_spellings(config.file, shots.classes, self.whole.classes)
        return shots

    @cached_property
    def shots_per_class(self) -> int:
        """K: `shots.k`, or the least number of shots that a file has of a novel class."""
        config = self._config.shots
        if config.file is None:
            assert config.k is not None  # `Shots` refuses it
            return config.k
        k = int(boxes_per_class(self.novel_shots)[len(self.labels.base) :].min())
        if config.k is not None and k > config.k:
            console.note(
                f"{config.file} has {k} boxes of each class, and all are used: shots.k={config.k} "
                "has no effect"
            )
        return k

    def digest_of(self, part: str) -> str | None:
        """SHA-256 of one of the data sets above; None without a test set.

        It depends on content alone: classes, image names, sizes, boxes. Where the folders lie and
        when files were written does not matter.
        """
        data: Dataset | None = getattr(self, part)
        if data is None or part not in ("shots", "base") or self._config.shots.file is None:
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


@lru_cache(maxsize=1)  # the runs of a study, one after another, share it
def _read(root: Path, pictures: Path | None, shots: Path | None) -> Dataset:
    return read(root, root=pictures, without=shots)


def counted(batches: Batches, report: Callable[..., None]) -> Batches:
    """The same batches, reporting how many of them are done: used, and the next one asked for."""

    def source(plans: Iterable[Plan]) -> Iterator[Batch]:
        for n, batch in enumerate(batches(plans), start=1):
            yield batch
            report(n)

    return source
