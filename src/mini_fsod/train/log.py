"""The log of a training: a progress bar, lines of JSON, TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mini_fsod import console
from mini_fsod.errors import UserError
from mini_fsod.files import mode, open_regular, write_bytes
from mini_fsod.limits import LOG_BYTES, RECORD_CHARACTERS
from mini_fsod.state_files import Count, Finite, check_kind
from mini_fsod.train.step import is_loss

FILE = "log.jsonl"
LINE = dict[str, Count | Finite]


class Log:
    """The log of one stage, in its folder. A resumed run drops lines beyond the saved state."""

    def __init__(self, folder: Path, title: str, start: int, total: int | None) -> None:
        self._title = title
        self._file = _truncated(folder / FILE, start)
        self._tensorboard = _tensorboard(folder / "tensorboard", start)
        texts = (
            "{task.description}",
            "{task.completed:,}/{task.fields[of]}",
            "{task.fields[status]}",
        )
        name, count, status = map(TextColumn, texts)
        columns = (name, BarColumn(bar_width=24), count, TimeElapsedColumn(), status)
        self._bar = Progress(*columns, console=console.err, transient=True)
        self._task = self._bar.add_task(
            title, completed=start, total=total, status="", of=_of(total)
        )
        self._last_note = time.monotonic()
        if start:
            of = "" if total is None else f" of {total:,}"
            console.note(f"{title}: resumes after iteration {start:,}{of}")

    def __enter__(self) -> Self:
        if console.err.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar.live.is_started:
            self._bar.stop()
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def write(
        self,
        step: int,
        total: int | None,
        losses: Mapping[str, float],
        rate: float,
        speed: float,
        left: float | None,
        seconds: float,
    ) -> None:
        """A line after `step` iterations; `speed` in images per second, `left` in seconds."""
        loss = sum(value for name, value in losses.items() if is_loss(name))
        values = {"loss": loss, **losses, "rate": rate, "images_per_second": speed}
        self._file.write(json.dumps({"step": step, **values, "seconds": seconds}) + "\n")
        self._file.flush()
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(f"{self._title}/{name}", value, step)
            self._tensorboard.flush()  # what a resumed run does not log again
        status = f"{speed:,.{0 if speed >= 10 else 1}f} img/s  loss {loss:.3f}"
        if left is not None:
            status += f"  {console.duration(left)} left"
        of = _of(total)
        self._bar.update(self._task, completed=step, total=total, status=status, of=of)
        now = time.monotonic()
        if not console.err.is_terminal and now - self._last_note > console.LINE_SECONDS:
            self._last_note = now
            console.note(f"{self._title} {step:,}/{of}  {status}")


def _of(total: int | None) -> str:
    return "?" if total is None else f"{total:,}"


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, up to one that was cut off by a kill or is damaged."""
    lines: list[dict[str, Any]] = []
    if not mode(path):
        return lines
    try:
        with open_regular(path) as file:
            while (line := file.readline(RECORD_CHARACTERS)) and file.tell() <= LOG_BYTES:
                values = check_kind(json.loads(line), LINE)
                check_kind(values.get("step"), Count)
                lines.append(values)
    except (ValueError, RecursionError):
        pass
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}).", "Delete the log of the training."
        ) from None
    return lines


def _truncated(path: Path, start: int) -> Any:
    """The log up to iteration `start`, open for appending."""
    kept = [line for line in read_log(path) if line["step"] <= start]
    write_bytes(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
    return path.open("a")


def _tensorboard(folder: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:  # optional
        return None
    return SummaryWriter(str(folder), purge_step=start + 1)
