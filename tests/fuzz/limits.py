"""Limits of time and memory for one case of the fuzzer."""

from __future__ import annotations

import faulthandler
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 10
BYTES = 1 << 30
HARD = 2  # times the limits: beyond them the process itself is stopped

STATUS = Path("/proc/self/status")


class TooSlow(BaseException):
    """Not an Exception: readers must not take it for damage."""


class TooLarge(Exception):
    pass


@contextmanager
def limited() -> Iterator[None]:
    """Raise TooSlow after 10 seconds, TooLarge if memory grew by more than 1 GB.

    Memory is only measured on Linux. A call into C that neither returns nor allocates is ended
    with the whole process, and a traceback.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = _memory("VmRSS")
    if STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + HARD * BYTES, hard))
    old = signal.signal(signal.SIGALRM, _too_slow)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    faulthandler.dump_traceback_later(HARD * SECONDS, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    grown = _memory("VmHWM") - before
    if grown > BYTES:
        raise TooLarge(f"memory grew by {grown >> 20:,} MB")


def _too_slow(*_: Any) -> None:
    raise TooSlow(f"more than {SECONDS} s")


def _memory(name: str) -> int:
    """A figure of this process in bytes; 0 where the system does not tell."""
    if not STATUS.exists():
        return 0
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024
