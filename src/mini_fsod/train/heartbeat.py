"""Finds processes of a run that hang: each watches the next one, and ends the run by name.

A thread of each process counts in the store that torch's processes meet in. A process that is
stopped, swapped out, on a lost machine, or hanging in code that holds Python's lock, does not
count. One that waits, for a file system for example, still does: it is not found here.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

HANGS = 60.0  # seconds without a sign of life
EVERY = 5.0  # seconds between two
FAILED = 2  # exit code


@contextmanager
def heartbeat(rank: int, world: int) -> Iterator[None]:
    """Give signs of life, and watch those of the next process, until the block ends."""
    ends = threading.Event()
    # a connection of its own: collectives may block torch's for long
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    waits = timedelta(seconds=HANGS)
    connect: Any = dist.TCPStore  # type: ignore[attr-defined]
    store = connect(host, port, None, False, waits, wait_for_workers=False)
    thread = threading.Thread(target=_beat, args=(store, rank, world, ends), daemon=True)
    thread.start()
    try:
        yield
        with suppress(RuntimeError):
            store.set(f"mini/ended/{rank}", "")  # one that failed is missed by the others
    finally:
        ends.set()
        thread.join(EVERY)


def _beat(store: Any, rank: int, world: int, ends: threading.Event) -> None:
    watched = (rank + 1) % world
    count, last, changed = 0, "", time.monotonic()
    before = changed
    with suppress(dist.DistError, RuntimeError):  # the store ended: so does the training
        while not ends.wait(EVERY):
            count += 1
            store.set(f"mini/beat/{rank}", f"{count} {socket.gethostname()}")
            name = f"mini/beat/{watched}"
            found = store.get(name).decode() if store.check([name]) else ""
            now = time.monotonic()
            if found != last or now - before > 2 * EVERY:  # this process was stopped itself
                last, changed = found, now
            before = now
            if now - changed > HANGS and not store.check([f"mini/ended/{watched}"]):
                machine = found.partition(" ")[2] or "unknown"
                print(
                    f"Error Process {watched} of {world} (on {machine}) has given no sign of life "
                    f"for {HANGS:.0f} seconds. The run ends; the same command goes on from what is "
                    "saved.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(FAILED)
