"""The data of a run: read once, and only what a stage asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import count, islice
from math import ceil
from pathlib import Path
from typing import Any

import torch

from mini_fsod import show
from mini_fsod.config import Config
from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.data.kshot import balanced_set, draw, training_part
from mini_fsod.data.official import choose, lists_from_file, voc_lists
from mini_fsod.data.read import read
from mini_fsod.data.split import arranged, base_set
from mini_fsod.detector.matching import draw_number
from mini_fsod.detector.model import Detector
from mini_fsod.errors import UserError
from mini_fsod.eval.score import score
from mini_fsod.feed.batches import Plan, Schedule, each_once, reduced
from mini_fsod.feed.cache import Pictures, cached_pictures, own_sizes
from mini_fsod.feed.resident import Batch, Resident, Targets
from mini_fsod.feed.stream import Stream
from mini_fsod.labels import LabelMap, label_map
from mini_fsod.train.detect import detect_all
from mini_fsod.train.distributed import Team
from mini_fsod.train.loop import Feed
from mini_fsod.train.step import Inputs, inputs_of

Batches = Callable[[Iterable[Plan]], Iterator[Batch]]

HELD_SHARE = 0.6  # of the device's free memory that pictures may take
AT_TEST = {"cuda": 32}  # images a batch
AT_TEST_ELSEWHERE = 4


class Material:
    """Data sets, pictures and figures of one run."""

    def __init__(self, config: Config, device: torch.device) -> None:
        config.ready()
        self._config = config
        self._device = device

    @cached_property
    def data(self) -> Dataset:
        assert self._config.data.root is not None  # `Config.ready` asked for it
        data = _read(self._config.data.root)
        for line in data.notes:
            show.note(line)
        return data

    @cached_property
    def labels(self) -> LabelMap:
        own = self._config.data
        return label_map(self.data.classes, own.split, ",".join(own.novel) or None)

    @cached_property
    def train(self) -> Dataset:
        """The images to train on, with all of their boxes."""
        name = self._config.data.train or training_part(self.data)
        return self.data if name is None else self.data.subset(name)

    @cached_property
    def base(self) -> Dataset:
        """The base set D^b: images with a base box, and base boxes alone."""
        return arranged(base_set(self.train, self.labels), LabelMap(self.labels.base, ()))

    @cached_property
    def test(self) -> Dataset | None:
        """The images to score on; None where the data has no part for it."""
        name = self._config.data.test or testing_part(self.data)
        if name is None:
            show.note("the data has no image set for tests (data.test): nothing will be scored")
        return None if name is None else self.data.subset(name)

    @cached_property
    def shots(self) -> Dataset:
        """The balanced K-shot set, its classes in the order of the label map."""
        own = self._config.shots
        if own.file is not None:
            return arranged(read(own.file, root=self.data.root), self.labels)
        data, lists = self.train, None
        if own.official is not None:
            lists, whole = (
                (voc_lists(own.seed), False)
                if own.official == "voc"
                else lists_from_file(Path(own.official), own.seed)
            )
            data = self.data if whole else data
        elif own.subset is not None:
            data = self.data.subset(own.subset)
        if lists is None:
            chosen = draw(data, self.labels, own.k, own.seed)
        else:
            chosen = choose(data, self.labels, lists, own.k, own.seed)
        for line in chosen.notes:
            show.note(line)
        return arranged(balanced_set(data, chosen), self.labels)

    # Pictures

    @property
    def _kept(self) -> tuple[int, int]:
        """The largest short and long side that any stage shows."""
        views = self._config.views
        closest = 1.0 if views.zoom is None else max(1.0, views.zoom[1])
        shorts = (*views.short, *(self._config.transfer.short or ()), views.test)
        return ceil(max(shorts) * closest), ceil(views.long * closest)

    @cached_property
    def _folder(self) -> Path:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return self._config.data.cache or Path(home) / "mini"

    @cached_property
    def _streams(self) -> bool:
        """Whether pictures are decoded on the way because they are too many to be held."""
        wish = self._config.data.feed
        if wish != "auto" or self._device.type != "cuda":
            return wish == "stream"
        kept = reduced(own_sizes(self.data), *self._kept)
        free, _ = torch.cuda.mem_get_info(self._device)
        streams = 3 * int(kept.prod(axis=1).sum()) > HELD_SHARE * free
        if streams:
            show.note("the pictures do not fit into the GPU's memory: they are decoded on the way")
        return streams

    def batches(self, data: Dataset) -> tuple[Batches, Any]:
        """The way from plans to batches of a data set, and the pictures' sizes (I, 2).

        Crowds, regions to ignore and boxes without area are no targets.
        """
        keep = data.boxes.sound & ~(data.boxes.crowd | data.boxes.ignore)
        targets = Targets.of(data.boxes, len(data), keep)
        if self._streams:
            own = own_sizes(data)
            stream = Stream(data, own, targets, self._device, *self._kept)
            return stream.batches, own
        # shots of a file may lie elsewhere
        ours = data.root == self.data.root and set(data.files) <= set(self.data.files)
        everything = self.data if ours else data
        pictures, held = _hold(everything, self._folder, *self._kept, self._device)
        pictures = pictures.take(data.files)
        return held.sharing(pictures, targets).batches, pictures.own

    def feed(self, data: Dataset, schedule: Schedule, team: Team, accumulate: int) -> Feed:
        """Training batches of a data set, for the loop."""
        batches, _ = self.batches(data)
        parts = team.world * accumulate

        def inputs(start: int) -> Generator[Sequence[Inputs]]:
            plans = (
                schedule.plan(n).part(team.rank * accumulate + i, parts)
                for n in count(start)
                for i in range(accumulate)
            )
            source = (self._inputs(batch) for batch in batches(plans))
            while part := tuple(islice(source, accumulate)):
                yield part

        return Feed(inputs, names_in(data, schedule), schedule.state(0)["schedule"])

    def _inputs(self, batch: Batch) -> Inputs:
        number = draw_number(batch.plan.step, batch.plan.first)
        draw = torch.full((), number, dtype=torch.int64, device=self._device)
        return inputs_of(batch, draw)

    # Figures

    def score(self, detector: Detector, labels: LabelMap, bf16: bool) -> dict[str, Any]:
        """What `eval.score.score` says of the detector's answers to the test images."""
        if self.test is None:
            return {"nAP50": None, "bAP50": None, "AP50": None, "per_class": {}}
        views = self._config.views
        data = arranged(self.test, labels)
        batches, own = self.batches(data)
        size = AT_TEST.get(self._device.type, AT_TEST_ELSEWHERE)
        plans = each_once(own, size, views.test, views.long)
        with show.progress("testing", len(plans)) as told:
            found = detect_all(detector, _counted(batches, told), plans, self._device, bf16)
        return score(data, found, labels, self._config.data.metric)


# The runs of a study, one after another, share what they read and hold.


@lru_cache(maxsize=1)
def _read(root: Path) -> Dataset:
    return read(root)


@lru_cache(maxsize=2)  # a data set, and shots that lie elsewhere
def _hold(
    data: Dataset, folder: Path, short: int, long: int, device: torch.device
) -> tuple[Pictures, Resident]:
    with show.progress("decoding pictures") as told:
        pictures = cached_pictures(data, folder, short, long, progress=told)
    return pictures, Resident(pictures, Targets.of(NO_BOXES, len(data)), device)


def testing_part(data: Dataset) -> str | None:
    """The image set to score on where none is named: one with boxes called test, else val."""
    counts = {name: len(data.subset(name).boxes) for name in data.subsets}
    for word in ("test", "val"):
        named = [name for name in counts if name.startswith(word) and counts[name]]
        if word in named or len(named) == 1:
            return word if word in named else named[0]
    return None


def names_in(data: Dataset, schedule: Schedule) -> Callable[[int], list[str]]:
    """The pictures of an iteration, by file."""
    return lambda n: [data.files[i] for i in schedule.plan(n).images.tolist()]


def _counted(batches: Batches, told: Callable[..., None]) -> Batches:
    def source(plans: Iterable[Plan]) -> Iterator[Batch]:
        for n, batch in enumerate(batches(plans), start=1):
            told(n)
            yield batch

    return source


def require_boxes(data: Dataset, what: str) -> None:
    if len(data.boxes) == 0:
        raise UserError(f"There is not a single box {what}.", "`mini check DATA` shows the counts.")
