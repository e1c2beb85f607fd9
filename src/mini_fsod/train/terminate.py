"""SIGTERM, as sent by Kubernetes, SLURM and spot machines, and Ctrl-C.

In a training, the first one makes the loop save its state and end. Elsewhere SIGTERM ends the
command as Ctrl-C does: files in the making are removed, locks released. A second one ends the
process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

TERMINATED = 128 + signal.SIGTERM  # exit code
WAIT = b"\nCtrl-C: the training ends after this iteration. Once more ends it at once.\n"
BOTH = (signal.SIGTERM, signal.SIGINT)


class Terminated(SystemExit):
    """Ends the process by way of all `finally` clauses."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class StopRequest:
    """The signal that was received; 0 for none."""

    received = 0


def stopped_by(received: int) -> tuple[str, BaseException]:
    """How a message names the signal, and what ends a training that it has stopped."""
    if received == signal.SIGINT:
        return "Ctrl-C", KeyboardInterrupt()
    return "SIGTERM", Terminated()


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Within it, the first SIGTERM raises Terminated."""

    def receive(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    with _handlers(receive, signal.SIGTERM):
        yield


@contextmanager
def _handlers(receive: Callable[..., None], *signals: signal.Signals) -> Iterator[None]:
    """Signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, receive) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Within it the first SIGTERM or Ctrl-C is only a request."""
    request = StopRequest()

    def receive(number: int, _: Any) -> None:
        request.received = number
        for each in BOTH:
            signal.signal(each, signal.SIG_DFL)
        if number == signal.SIGINT:
            with suppress(OSError):  # not print(): the signal may have come within one
                os.write(2, WAIT)

    with _handlers(receive, *BOTH):
        yield request
