"""Limits of time and memory for one case of the fuzzer.

Time that the process waits for a free core does not count: other work on the machine is no fault.
"""

from __future__ import annotations

import faulthandler
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 10
BYTES = 1 << 30
HARD_BYTES = 2 << 30  # beyond it no memory is given
HARD_SECONDS = 300  # without a return from C code: the process itself is ended

STATUS = Path("/proc/self/status")
WAITED = Path("/proc/self/schedstat")  # nanoseconds of the main thread: working, waiting for a core


class TooSlow(BaseException):
    """Not an Exception: readers must not take it for damage."""


class TooLarge(Exception):
    pass


@dataclass
class Cost:
    """The most that a case has taken so far."""

    seconds: float = 0.0
    bytes: int = 0


@contextmanager
def limited(most: Cost | None = None) -> Iterator[None]:
    """Raise TooSlow after 10 seconds, TooLarge if memory grew by more than 1 GB.

    Memory and waiting are only measured on Linux. A call into C that neither returns nor allocates
    is ended with the whole process, and a traceback.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = _memory("VmRSS")
    if STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + HARD_BYTES, hard))
    start = time.monotonic() - _waited()

    def look(*_: Any) -> None:
        left = SECONDS - (time.monotonic() - _waited() - start)
        if left <= 0:
            raise TooSlow(f"more than {SECONDS} s")
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.1))
        faulthandler.dump_traceback_later(HARD_SECONDS, exit=True)  # from now on

    old = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    faulthandler.dump_traceback_later(HARD_SECONDS, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    grown = _memory("VmHWM") - before
    if most is not None:
        most.seconds = max(most.seconds, time.monotonic() - _waited() - start)
        most.bytes = max(most.bytes, grown)
    if grown > BYTES:
        raise TooLarge(f"memory grew by {grown >> 20:,} MB")


def _waited() -> float:
    """Seconds that the main thread has waited for a free core; 0 where the system does not tell."""
    return int(WAITED.read_text().split()[1]) / 1e9 if WAITED.exists() else 0.0


def _memory(name: str) -> int:
    """A figure of this process in bytes; 0 where the system does not tell."""
    if not STATUS.exists():
        return 0
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024
