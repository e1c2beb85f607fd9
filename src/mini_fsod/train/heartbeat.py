"""Finds processes of a run that hang: each watches the next one, and ends the run by name.

A thread of each process counts in the store that torch's processes meet in. A process that is
stopped, swapped out, on a lost machine, or hanging in code that holds Python's lock, does not
count. One that waits, for a file system for example, still does: it is not found here. The store
is on the machine of the first process: a second thread, which uses no store, finds that one lost.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

HANGS = 45.0  # seconds without a sign of life: with the pauses between looks, less than a minute
EVERY = 5.0  # seconds between two
FAILED = 2  # exit code


@dataclass(slots=True)
class _Answers:
    last: float  # when the store answered last


@contextmanager
def heartbeat(rank: int, world: int) -> Iterator[None]:
    """Give signs of life, and watch those of the next process, until the block ends."""
    ends = threading.Event()
    # a connection of its own: collectives may block torch's for long
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    waits = timedelta(seconds=HANGS)
    connect: Any = dist.TCPStore  # type: ignore[attr-defined]
    store = connect(host, port, None, False, waits, wait_for_workers=False)
    answers = _Answers(time.monotonic())
    threads = [
        threading.Thread(target=_beat, args=(store, rank, world, ends, answers), daemon=True),
        threading.Thread(target=_watch_store, args=(host, world, ends, answers), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
        with suppress(RuntimeError):
            store.set(f"mini/ended/{rank}", "")  # one that failed is missed by the others
    finally:
        ends.set()
        for thread in threads:
            thread.join(EVERY)


def _beat(store: Any, rank: int, world: int, ends: threading.Event, answers: _Answers) -> None:
    watched = (rank + 1) % world
    count, last, changed = 0, "", time.monotonic()
    before = changed
    with suppress(RuntimeError):  # the store is lost: `_watch_store` ends the run if that lasts
        while not ends.wait(EVERY):
            count += 1
            store.set(f"mini/beat/{rank}", f"{count} {socket.gethostname()}")
            name = f"mini/beat/{watched}"
            found = store.get(name).decode() if store.check([name]) else ""
            now = answers.last = time.monotonic()
            if found != last or now - before > 2 * EVERY:  # this process was stopped itself
                last, changed = found, now
            before = now
            if now - changed > HANGS and not store.check([f"mini/ended/{watched}"]):
                _end_run(watched, world, found.partition(" ")[2] or "unknown")


def _watch_store(host: str, world: int, ends: threading.Event, answers: _Answers) -> None:
    """A lost store answers with an error, one on a stopped machine not at all."""
    before = time.monotonic()
    while not ends.wait(EVERY):
        now = time.monotonic()
        if now - before > 2 * EVERY:  # this process was stopped itself
            answers.last = now
        before = now
        if now - answers.last > HANGS:
            _end_run(0, world, host)


def _end_run(process: int, world: int, machine: str) -> None:
    print(
        f"Error Process {process} of {world} (on {machine}) has given no sign of life for "
        f"{HANGS:.0f} seconds. The run ends; the same command goes on from what is saved.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(FAILED)
