"""SIGTERM, as sent by Kubernetes, SLURM and spot machines.

In a training, the first one makes the loop save its state and end. Elsewhere it ends the command as
Ctrl-C does: files in the making are removed, locks released. A second one ends the process at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED = 128 + signal.SIGTERM  # exit code


class Terminated(SystemExit):
    """Ends the process by way of all `finally` clauses."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class StopRequest:
    """Whether SIGTERM was received."""

    received = False


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Within it, the first SIGTERM raises Terminated."""

    def receive(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    with _handler(receive):
        yield


@contextmanager
def _handler(receive: Callable[..., None]) -> Iterator[None]:
    """Signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sigterm_request() -> Iterator[StopRequest]:
    """Within it the first SIGTERM is only a request."""
    request = StopRequest()

    def receive(*_: Any) -> None:
        request.received = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    with _handler(receive):
        yield request
