"""Streaming gives the resident mode's batches, from worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.schedules import plans_of
from mini_fsod.cuda_graph import flatten
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.errors import UserError
from mini_fsod.loader import stream
from mini_fsod.loader.cache import cached_pictures, image_sizes
from mini_fsod.loader.resident import Annotations, Batch, Resident
from mini_fsod.loader.schedule import Plan, Schedule
from mini_fsod.loader.stream import Stream
from mini_fsod.temporary import temporary_folder

CPU = torch.device("cpu")
LIMIT = (64, 128)
STATM = Path("/proc/self/statm")


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """24 JPEG pictures, some larger than the limit, with a box each."""
    random = np.random.RandomState(0)
    names, sizes = [], []
    for n in range(24):
        height, width = random.randint(40, 150, 2).tolist()
        coarse = random.randint(0, 256, (5, 5, 3)).astype(np.uint8)
        names.append(f"{n}.jpg")
        sizes.append((width, height))
        Image.fromarray(coarse).resize((width, height)).save(tmp_path / names[-1])
    boxes = Boxes.of(range(24), [[1, 2, 30, 20]] * 24, [0] * 24)
    return Dataset(
        "coco", tmp_path, ("a",), (1,), tuple(range(24)), tuple(names), np.array(sizes), boxes,
        ("file",) * 24,
    )  # fmt: skip


def schedule(data: Dataset) -> Schedule:
    return Schedule(image_sizes(data), 4, (48, 64), 128, seed=2)


def streaming(data: Dataset, workers: int = 2) -> Stream:
    return Stream(
        data, image_sizes(data), Annotations.of(data.boxes, len(data)), CPU, *LIMIT, workers=workers
    )


def assert_equal(a: Batch, b: Batch) -> None:
    assert a.plan.step == b.plan.step
    for one, other in zip(flatten(a[1:]), flatten(b[1:]), strict=True):
        assert one is other is None or torch.equal(one, other)


def shared_blocks() -> set[str]:
    """Those of this process: other tests run beside it."""
    return {path.name for path in stream.SHARED_MEMORY.glob(f"{temporary_folder().name}-*")}


def test_batches_equal_those_of_resident_also_after_a_resume(data: Dataset, tmp_path: Path) -> None:
    before = shared_blocks()
    pictures = cached_pictures(data, tmp_path / "cache", *LIMIT, workers=1)
    resident = Resident(pictures, Annotations.of(data.boxes, len(data)), CPU)
    order = schedule(data)
    for first in (0, 5):  # from the start, and from the middle of an epoch
        wanted = list(resident.batches(plans_of(order, first, 11)))
        streamed = list(streaming(data).batches(plans_of(order, first, 11)))
        for a, b in zip(streamed, wanted, strict=True):
            assert_equal(a, b)
    assert shared_blocks() <= before


def test_batches_of_no_plans(data: Dataset) -> None:
    assert list(streaming(data).batches(iter([]))) == []


def test_batches_free_everything_when_closed_early(data: Dataset) -> None:
    before = shared_blocks()
    batches = streaming(data).batches(plans_of(schedule(data), 0))  # endless
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert shared_blocks() <= before
    assert not multiprocessing.active_children()


def test_batches_name_an_unreadable_picture(data: Dataset) -> None:
    data.path(7).write_bytes(data.path(7).read_bytes()[:300])
    with pytest.raises(UserError, match=r"7\.jpg: cannot be decoded"):
        list(streaming(data).batches(plans_of(schedule(data), 0, 12)))


def test_batches_name_a_picture_of_another_size(data: Dataset) -> None:
    Image.new("RGB", (33, 44)).save(data.path(3))
    with pytest.raises(UserError, match=r"3\.jpg: declared .* but the picture is 33 x 44"):
        list(streaming(data).batches(plans_of(schedule(data), 0, 12)))


def test_batches_report_a_killed_worker(data: Dataset) -> None:
    batches = streaming(data, workers=1).batches(plans_of(schedule(data), 0))
    next(batches)
    for worker in multiprocessing.active_children():
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="was killed or could not start") as caught:
        list(islice(batches, 20))  # what was decoded already still comes
    assert "fewer workers" in caught.value.fix


def test_batches_check_the_shared_memory_first(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda p: SimpleNamespace(free=1000))
    monkeypatch.setattr(stream, "SHARED_MEMORY", data.root)
    with pytest.raises(UserError, match="decoded ahead take"):
        next(streaming(data).batches(plans_of(schedule(data), 0)))


def test_batches_of_ranks_make_up_the_whole_batch(data: Dataset) -> None:
    order = schedule(data)
    whole = next(streaming(data, 1).batches(plans_of(order, 3)))
    parts = [next(streaming(data, 1).batches(plans_of(order, 3, None, rank, 2))) for rank in (0, 1)]
    assert torch.equal(torch.cat([p.images for p in parts]), whole.images)
    assert isinstance(parts[0].plan, Plan)


@pytest.mark.skipif(not STATM.exists(), reason="needs Linux's /proc")
def test_batches_take_no_more_memory_in_a_long_epoch(data: Dataset) -> None:
    """benchmarks/stream_memory.py does the same with as many pictures as COCO has."""
    plans = plans_of(schedule(data), 0, 400)
    resident = []
    for n, _ in enumerate(streaming(data).batches(plans)):
        if n in (60, 399):
            resident.append(int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert resident[1] - resident[0] < 10e6  # 340 batches kept would be 100 MB
