"""Batches of data sets that do not fit into memory: worker processes decode pictures as needed.

The workers produce the bytes that `Resident` has in its buffer, and the same function puts them on
the canvas: the batches are bit-equal to those of `Resident`.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import Dataset, Ints
from mini_fsod.errors import UserError
from mini_fsod.loader.cache import byte_offsets, decode_jobs
from mini_fsod.loader.decode import cores, decode_to_memory, worker_pool
from mini_fsod.loader.resident import Annotations, Batch, make_batch
from mini_fsod.loader.schedule import Plan, reduced
from mini_fsod.temporary import SHARED_MEMORY, memory_name


class Stream:
    """Batches decoded as needed. `sizes` (I, 2) are the pictures' heights and widths.

    Pictures are resized to `short` and `long` as in the cache, so the pixels are the same.
    """

    def __init__(
        self,
        data: Dataset,
        sizes: Ints,
        annotations: Annotations,
        device: torch.device,
        short: int,
        long: int,
        workers: int | None = None,
        extra: Sequence[Annotations] = (),
    ) -> None:
        self._data = data
        self._sizes = sizes
        self._stored = reduced(sizes, short, long)
        self._annotations = annotations.to(device)
        self._extra = [boxes.to(device) for boxes in extra]
        self._device = device
        self._sides = short, long
        self._workers = workers or cores()

    def batches(self, plans: Iterable[Plan]) -> Iterator[Batch]:
        """The batches in order; a few are decoded ahead. Closing the iterator stops the workers."""
        upcoming = iter(plans)
        plan = next(upcoming, None)
        if plan is None:
            return
        largest = 3 * int(self._stored.prod(axis=1).max()) * len(plan.images)
        slots = _slots(self._workers + 2, largest)
        pixels = torch.empty(largest, dtype=torch.uint8, device=self._device)
        try:
            with worker_pool(self._workers) as pool:
                free = deque(slots)
                ahead: deque[tuple[Plan, Ints, SharedMemory, Future[None]]] = deque()
                while plan is not None or ahead:
                    while plan is not None and free:
                        slot = free.popleft()
                        starts = byte_offsets(self._stored[plan.images])
                        jobs = decode_jobs(self._data, plan.images.tolist(), self._sizes, starts)
                        work = pool.submit(decode_to_memory, slot.name, jobs, *self._sides)
                        ahead.append((plan, starts, slot, work))
                        plan = next(upcoming, None)
                    ready, starts, slot, work = ahead.popleft()
                    work.result()
                    _copy(slot, pixels[: starts[-1]])
                    free.append(slot)
                    i = ready.images
                    yield make_batch(
                        ready,
                        pixels.view(-1, 3),
                        starts[:-1] // 3,
                        self._stored[i],
                        self._sizes[i],
                        self._annotations,
                        self._extra,
                    )
        finally:
            for slot in slots:
                slot.close()
                slot.unlink()


def _slots(count: int, length: int) -> list[SharedMemory]:
    """Blocks of shared memory. Checked first: a full /dev/shm kills a worker that writes to it."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else count * length
    if count * length > free:
        raise UserError(
            f"{count} batches decoded ahead take {count * length / 2**20:.0f} MiB of shared "
            f"memory, but {SHARED_MEMORY} has only {free / 2**20:.0f} MiB free.",
            "Use fewer workers or a smaller batch; in a container, set a larger --shm-size.",
        )
    return [SharedMemory(memory_name(), create=True, size=length) for _ in range(count)]


def _copy(slot: SharedMemory, target: Tensor) -> None:
    """Copies a slot to the device without waiting for it; the slot can be reused at once."""
    host = torch.empty(target.shape, dtype=torch.uint8, pin_memory=target.is_cuda)
    host.numpy()[:] = np.ndarray(len(target), np.uint8, slot.buf)
    target.copy_(host, non_blocking=True)
