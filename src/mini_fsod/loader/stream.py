"""Training batches for sets beyond memory: worker processes decode, the device does the rest.

The workers hand over the same kept bytes that the resident mode holds, and the same function places
them on the canvas: batches are equal to the resident mode's, not only alike.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import Dataset, Ints
from mini_fsod.errors import UserError
from mini_fsod.loader.decode import Job, cores, decode_to_memory, worker_pool
from mini_fsod.loader.resident import Annotations, Batch, make_batch
from mini_fsod.loader.schedule import Plan, reduced

SHARED = Path("/dev/shm")


class Stream:
    """Batches decoded on the way. `own` (I, 2) are the pictures' heights and widths.

    Pictures are reduced to `short` and `long` as in the cache, so that pixels agree with it.
    """

    def __init__(
        self,
        data: Dataset,
        own: Ints,
        annotations: Annotations,
        device: torch.device,
        short: int,
        long: int,
        workers: int | None = None,
        extra: Sequence[Annotations] = (),
    ) -> None:
        self._data = data
        self._own = own
        self._kept = reduced(own, short, long)
        self._annotations = annotations.to(device)
        self._extra = [boxes.to(device) for boxes in extra]
        self._device = device
        self._short, self._long = short, long
        self._workers = workers or cores()

    def batches(self, plans: Iterable[Plan]) -> Iterator[Batch]:
        """The batches in order. A few are decoded ahead; closing the iterator ends the workers."""
        upcoming = iter(plans)
        first = next(upcoming, None)
        if first is None:
            return
        largest = 3 * int(self._kept.prod(axis=1).max()) * len(first.images)
        slots = _slots(self._workers + 2, largest)
        pixels = torch.empty(largest, dtype=torch.uint8, device=self._device)
        try:
            with worker_pool(self._workers) as pool:
                free = deque(slots)
                ahead: deque[tuple[Plan, SharedMemory, Future[None]]] = deque()
                plan: Plan | None = first
                while plan is not None or ahead:
                    while plan is not None and free:
                        slot = free.popleft()
                        work = pool.submit(
                            decode_to_memory, slot.name, self._jobs(plan), self._short, self._long
                        )
                        ahead.append((plan, slot, work))
                        plan = next(upcoming, None)
                    ready, slot, work = ahead.popleft()
                    work.result()
                    start = self._starts(ready)
                    length = int(start[-1])
                    _copy(slot, pixels[:length])
                    free.append(slot)
                    i = ready.images
                    yield make_batch(
                        ready,
                        pixels.view(-1, 3),
                        start[:-1] // 3,
                        self._kept[i],
                        self._own[i],
                        self._annotations,
                        self._extra,
                    )
        finally:
            for slot in slots:
                slot.close()
                slot.unlink()

    def _starts(self, plan: Plan) -> Ints:
        """(b + 1,) where the bytes of the plan's images start and end in a slot."""
        return np.concatenate([[0], np.cumsum(3 * self._kept[plan.images].prod(axis=1))])

    def _jobs(self, plan: Plan) -> list[Job]:
        starts = self._starts(plan).tolist()
        return [
            Job(str(self._data.path(i)), (int(self._own[i, 0]), int(self._own[i, 1])), starts[n])
            for n, i in enumerate(plan.images.tolist())
        ]


def _slots(count: int, length: int) -> list[SharedMemory]:
    """Blocks of shared memory. A full /dev/shm would kill a worker at its first write."""
    free = shutil.disk_usage(SHARED).free if SHARED.exists() else count * length
    if count * length > free:
        raise UserError(
            f"{count} batches on their way take {count * length / 2**20:.0f} MiB of shared memory, "
            f"but {SHARED} has only {free / 2**20:.0f} MiB free.",
            "Take fewer workers or a smaller batch; in a container, give it more (--shm-size).",
        )
    return [SharedMemory(create=True, size=length) for _ in range(count)]


def _copy(slot: SharedMemory, there: Tensor) -> None:
    """A slot's bytes to the device, without waiting for it; the slot is free again at once."""
    here = torch.empty(there.shape, dtype=torch.uint8, pin_memory=there.is_cuda)
    here.numpy()[:] = np.ndarray(len(there), np.uint8, slot.buf)
    there.copy_(here, non_blocking=True)
