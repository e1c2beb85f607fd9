from __future__ import annotations

import io
import json
import os
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from rich.console import Console

from mini_fsod import console
from mini_fsod.limits import LOG_BYTES
from mini_fsod.train import log
from mini_fsod.train.log import Log

LOSSES = {"loss_left": 0.25, "loss_right": 1.125}


def look(
    to: Log, step: int, total: int | None = 20, speed: float = 1234.5, **losses: float
) -> None:
    left = None if total is None else 185.0
    to.write(step, total, losses or LOSSES, 0.02, speed, left, 3.5)


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / log.FILE).read_text().splitlines()]


def test_log_writes_a_line_at_once(tmp_path: Path) -> None:
    with Log(tmp_path, "base", 0, 20) as to:
        look(to, 5)
        assert steps(tmp_path) == [5]  # at once, not when it ends
        look(to, 10)
    assert log.read_log(tmp_path / log.FILE)[0] == {
        "step": 5,
        "loss": 1.375,
        "loss_left": 0.25,
        "loss_right": 1.125,
        "rate": 0.02,
        "images_per_second": 1234.5,
        "seconds": 3.5,
    }


@pytest.mark.parametrize(
    ("start", "torn", "kept"),
    [
        (10, "", [5, 10]),
        (10, '{"step": 20, "lo', [5, 10]),  # torn in the middle of a line
        (15, '{"step": 20, "loss": 1}', [5, 10, 15]),  # a whole line, but for its end
        (15, "\n", [5, 10, 15]),
        (0, "", []),  # killed before its first state
    ],
)
def test_log_of_a_resumed_run_drops_later_lines(
    tmp_path: Path, start: int, torn: str, kept: list[int]
) -> None:
    with Log(tmp_path, "base", 0, 20) as to:
        for step in (5, 10, 15):
            look(to, step)
    with (tmp_path / log.FILE).open("a") as file:
        file.write(torn)
    with Log(tmp_path, "base", start, 20) as to:
        assert steps(tmp_path) == kept
        look(to, start + 5)
    assert steps(tmp_path) == [*kept, start + 5]


def test_read_log_of_a_damaged_or_missing_file(tmp_path: Path) -> None:
    path = tmp_path / log.FILE
    assert log.read_log(path) == []
    path.write_text('{"step": 5}\n{"step": 10}\n{"st')
    assert log.read_log(path) == [{"step": 5}, {"step": 10}]
    path.write_text('{"step": 5}\n' + "[" * 100_000)
    assert log.read_log(path) == [{"step": 5}]
    path.write_text('{"step": 5}\n')
    os.truncate(path, LOG_BYTES + 99)  # a line of zeros, sparse
    assert log.read_log(path) == [{"step": 5}]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_log_writes_tensorboard_scalars(tmp_path: Path) -> None:
    with Log(tmp_path, "base", 0, 20) as to:
        look(to, 5)
    seen = events(tmp_path / "tensorboard")
    names = ("loss", "loss_left", "loss_right", "rate", "images_per_second")
    assert seen.keys() == {f"base/{name}" for name in names}
    assert seen["base/loss"] == [(5, 1.375)]


@pytest.mark.parametrize("start", [10, 0])
def test_log_of_a_killed_run_shows_no_scalar_twice(tmp_path: Path, start: int) -> None:
    """What was seen up to the state stays, nothing is seen twice. A killed run closes no file."""
    killed = Log(tmp_path, "base", 0, 20)
    for step in (5, 10, 15):
        look(killed, step, loss=step)
    shown = [step for step in (5, 10) if step <= start]
    sleep(1.1)  # TensorBoard's files are sorted by the second in which they were begun
    with Log(tmp_path, "base", start, 20) as to:
        for step in range(start + 5, 21, 5):
            look(to, step, loss=step + 100)
    killed.__exit__(None, None, None)
    again = [(step, step + 100) for step in range(start + 5, 21, 5)]
    assert events(tmp_path / "tensorboard")["base/loss"] == [(s, s) for s in shown] + again


# On the screen


def screen(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> io.StringIO:
    output = io.StringIO()
    stream = Console(file=output, force_terminal=terminal, width=110, color_system=None)
    monkeypatch.setattr(console, "err", stream)
    return output


@pytest.mark.parametrize(
    ("looked", "said"),
    [
        ({"step": 5}, "5/20"),
        ({"step": 5}, "1,234 img/s  loss 1.375  3:05 min left"),
        ({"step": 5, "total": None}, "5/?"),
        ({"step": 1500, "total": 18000}, "1,500/18,000"),
        ({"step": 5, "speed": 3.25, "loss": 3.313}, "3.2 img/s  loss 3.313  3:05 min left"),
        ({"step": 5, "speed": 10.4, "loss": 0.1}, "10 img/s  loss 0.100"),
    ],
)
def test_log_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: dict[str, Any], said: str
) -> None:
    output = screen(monkeypatch, terminal=True)
    with Log(tmp_path, "base", 0, 20) as to:
        look(to, **looked)
        to._bar.refresh()
    assert said in output.getvalue()
    assert "base" in output.getvalue()


def test_log_bar_when_the_total_is_known_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = screen(monkeypatch, terminal=True)
    with Log(tmp_path, "base", 0, None) as to:
        look(to, 5, None)
        to._bar.refresh()
        assert "left" not in output.getvalue()
        look(to, 10, 20)
        to._bar.refresh()
    assert "10/20" in output.getvalue()


def test_log_prints_lines_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = screen(monkeypatch, terminal=False)
    with Log(tmp_path, "base", 0, 20) as to:
        look(to, 5)
        assert output.getvalue() == ""  # not for every look
        monkeypatch.setattr(console, "LINE_SECONDS", -1)
        look(to, 10)
    assert output.getvalue() == "base 10/20  1,234 img/s  loss 1.375  3:05 min left\n"
    with Log(tmp_path, "base", 10, 20):
        pass
    assert output.getvalue().endswith("\nbase: resumes after iteration 10 of 20\n")
