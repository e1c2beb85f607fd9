"""The command line as a whole: help, exit codes, interruptions, start-up."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from helpers import tiny
from mini_fsod import __version__, cli
from mini_fsod.commands.options import CONTENTS, app

HEAVY = {
    "torch",
    "torchvision",
    "numpy",
    "PIL",
    "pydantic",
    "yaml",
    "faster_coco_eval",
    "sklearn",
    "skimage",
}


def test_version_is_printed(mini) -> None:
    assert mini("--version") == (0, f"mini {__version__}\n", "")


def commands(group: Any, prefix: str = "mini") -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups included."""
    for name, command in group.commands.items():
        yield f"{prefix} {name}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")


def test_help_has_an_example_of_every_command_and_option() -> None:
    for name, command in commands(typer.main.get_command(app)):
        assert f"Example: {name.removesuffix(' list')}" in command.help, name
        for parameter in command.params:
            assert "Example: " in (parameter.help or ""), (name, parameter.name)


NAMES = [name.split()[1:] for name, _ in commands(typer.main.get_command(app))]


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_help_fills_the_lines_of_a_narrow_terminal(words: list[str]) -> None:
    """No line of the text ends before the next word would not fit, but for the example."""
    width = 60
    said = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(width)}).output
    text = said.partition("Usage:")[2].partition("╭")[0].splitlines()
    for line, after in pairwise(text[1:]):
        if line.strip() and after.strip() and not after.strip().startswith("Example:"):
            assert len(line.rstrip()) + 1 + len(after.split()[0]) > width - 2, (line, after)
    assert "Example: mini" in " ".join(said.split())
    assert not re.search(r"<(float|int|list\[str)", said)


def test_help_lists_every_command_by_topic(mini) -> None:
    listed = [name for names in CONTENTS.values() for name in names]
    assert sorted(listed) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    _, out, _ = mini("--help")
    first_words = [line.strip("│╭─╮ ").partition(" ")[0] for line in out.splitlines()]
    expected = [word for topic, names in CONTENTS.items() for word in (topic, *names)]
    assert [word for word in first_words if word in expected] == expected


def test_sigterm_ends_as_ctrl_c_does(mini, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files in the making are removed, and the message says how to go on."""
    cleaned = []

    def stopped(*_: Any, **__: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()  # the handler runs before it begins to wait
        finally:
            cleaned.append(True)

    before = signal.getsignal(signal.SIGTERM)
    for words, message in (
        (("check", tmp_path), "Terminated.\n"),
        (("run", "demo"), "Terminated. The same command resumes.\n"),
    ):
        monkeypatch.setattr("mini_fsod.data.read.read_with_problems", stopped)
        monkeypatch.setattr("mini_fsod.config.load.resolve", stopped)
        code, _, err = mini(*words)
        assert (code, err) == (143, message)
    assert cleaned == [True, True]
    assert signal.getsignal(signal.SIGTERM) == before


def test_start_up_imports_no_heavy_module() -> None:
    code = "import sys, mini_fsod.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(said.stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "demo"), "Interrupted. The same command resumes.\n"),
        (("run", "demo", "--from", "base"), "The same command without --from resumes.\n"),
        (("run", "demo", "--from=base"), "The same command without --from resumes.\n"),
        (("check", "."), "Interrupted.\n"),
    ],
    ids=["run", "from", "from=", "check"],
)
def test_ctrl_c_exits_with_130_and_says_how_to_resume(
    mini, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mini_fsod.config.load.resolve", interrupted)
    monkeypatch.setattr("mini_fsod.data.read.read_with_problems", interrupted)
    code, _, err = mini(*words)
    assert code == 130
    assert err.endswith(message)


def test_full_disk_is_one_message(mini, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mini_fsod.data.read.read_with_problems", full)
    code, _, err = mini("check", "data")
    assert code == 2
    assert "No space left on device. Free some space" in err


def test_thread_errors_are_silent_only_on_a_full_disk(
    mini, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    mini("--version")
    for error in (
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EACCES, "Permission denied"),
        ValueError("a bug"),
    ):
        args = (type(error), error, None, None)
        threading.excepthook(threading.ExceptHookArgs(args))
    said = capsys.readouterr().err
    assert "No space" not in said
    assert "Permission denied" in said
    assert "a bug" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "nowhere"], "no such file"),
        (["check", "a" * 300], "no such file"),
        (["check", "loop"], "no such file"),
        (["check", "data", "--novel", "bird", "--split", "coco"], "cannot be combined"),
        (["check", "plain", "--root", "data"], "cannot be combined with another image folder"),
        (["sample", "data", "--novel", "brid", "--shots", "1", "-o", "s.json"], 'mean "bird"'),
        (["sample", "data", "--shots", "1", "-o", "data/annotations.json"], "would be overwritten"),
        (["sample", "data", "--shots", "1", "-o", "data"], "not a regular file"),
        (["sample", "plain", "--shots", "1", "-o", "s.json"], "no boxes to draw"),
        (["eval", "plain", "--detections", "nowhere.json"], "cannot be scored against"),
        (["check", "data", "--subset", "x", "--no-sheet"], 'no image set "x"'),
        (["sample", "data", "--shots", "9", "-o", "s.json"], "Too few boxes for 9 shots"),
        (
            ["sample", "data", "--shots", "1", "--official", "voc", "-o", "s.json"],
            "not in the data",
        ),
        (["eval", "data", "--detections", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_use_exits_with_2_and_one_message(
    tmp_path: Path, mini, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    tiny.write_coco(tmp_path / "data")
    tiny.write_pictures(tmp_path / "plain")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    code, out, err = mini(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "What to do:" in err
    assert not (tmp_path / "s.json").exists()
    assert json.loads((tmp_path / "data" / "annotations.json").read_text()) == tiny.coco()


# Memory


@pytest.mark.parametrize(
    ("largest", "calls"),
    [
        (1 << 40, [(-3, 1 << 30), (-1, 1 << 30)]),
        (1 << 25, [(-3, 1 << 30), (-3, 1 << 25), (-1, 1 << 25)]),  # older versions of glibc
        # setting only the second would switch off glibc's own adaptation, which is worse
        (0, [(-3, 1 << 30), (-3, 1 << 25)]),
    ],
)
def test_reuse_freed_memory_sets_the_largest_threshold_glibc_accepts(
    largest: int, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Library:
        def mallopt(self, key: int, value: int) -> int:
            made.append((key, value))
            return int(value <= largest)

    monkeypatch.setattr(cli.sys, "platform", "linux")
    monkeypatch.setattr(cli.ctypes, "CDLL", lambda _: Library())
    cli.reuse_freed_memory()
    assert made == calls


def test_reuse_freed_memory_does_nothing_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.ctypes, "CDLL", lambda _: object())  # musl
    monkeypatch.setattr(cli.sys, "platform", "linux")
    cli.reuse_freed_memory()
    monkeypatch.setattr(cli.ctypes, "CDLL", None)
    monkeypatch.setattr(cli.sys, "platform", "darwin")
    cli.reuse_freed_memory()
