"""SIGTERM, as sent by Kubernetes, SLURM and spot machines, during a training.

The first one makes the training loop save its state and end; a second one ends the process at
once. Outside of a training SIGTERM ends the process at once, as usual: all files are atomic.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED = 128 + signal.SIGTERM  # exit code


class Terminated(SystemExit):
    """Ends the process after the training state is saved."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class Request:
    """Whether SIGTERM was received."""

    received = False


@contextmanager
def sigterm_request() -> Iterator[Request]:
    """Within it the first SIGTERM is only a request. Signals reach the main thread alone."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def receive(*_: Any) -> None:
        request.received = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    before = signal.signal(signal.SIGTERM, receive)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, before)
