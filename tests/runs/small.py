"""A data set and a configuration so small that a whole run takes a second or two.

Coloured shapes on grey, a class a colour: "red" and "green" are base, "blue, light" is novel.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import sleep

import torch

from helpers.shapes import (  # noqa: F401
    CLASSES,
    COLOURS,
    NOVEL,
    SIZES,
    WRITE,
    json_of,
    pictures,
    rewrite,
    write_data,
    write_voc,
    write_yolo,
)
from mini_fsod.config.load import resolve
from mini_fsod.runs.data import RunData

CPU = torch.device("cpu")
SETTINGS = {
    "device": "cpu",
    "data.novel": json.dumps([NOVEL]),
    "data.metric": "voc",
    "detector.backbone": "resnet18-narrow",
    "detector.norm": "group",
    "detector.anchors": "[8, 16, 32, 64, 128]",
    "detector.channels": "16",
    "detector.width": "32",
    "detector.rpn_before": "60",
    "detector.rpn_after": "30",
    "detector.rpn_samples": "32",
    "detector.roi_samples": "32",
    "views.short": "[48, 64]",
    "views.long": "96",
    "views.test": "64",
    "base.iterations": "12",
    "base.batch": "4",
    "base.save_seconds": "0",
    "transfer.iterations": "25",
    "transfer.batch": "4",
    "transfer.save_seconds": "0",
    # those of a batch of 16: so few iterations must learn something
    "base.rate": "0.02",
    "transfer.rate": "0.001",
    "online.rate": "0.02",
    "tune.rate": "0.001",
}


def sets(data: Path, **changes: object) -> list[str]:
    """KEY=VALUE of the configuration; `base__iterations=3` changes a key."""
    values: dict[str, object] = {
        **SETTINGS,
        "data.root": data,
        "data.cache": data.parent / "cache",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return [f"{key}={value}" for key, value in values.items()]


def words(data: Path, out: Path, *more: object, **changes: object) -> list[str]:
    """The words of `mini run` behind `mini`, up to transfer unless `more` says otherwise; the
    configuration is an empty file.
    """
    config = data.parent / "small.yaml"
    config.touch()
    options = [word for text in sets(data, **changes) for word in ("--set", text)]
    last = [] if "--to" in more else ["--to", "transfer"]
    return ["run", str(config), "-o", str(out), *options, *map(str, more), *last]


def process(
    words: Sequence[str], before: str = "", timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`mini WORDS` in a process of its own, in which the lines `before` are run first."""
    return subprocess.run(
        _call(words, before),
        env=_one_thread(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def kill_soon(words: Sequence[str], file: Path, pause: float) -> None:
    """Begin `mini WORDS`, and kill it so many seconds after it has written this file anew: in its
    midst, however fast the machine is.
    """
    before = _stamp(file)
    with subprocess.Popen(_call(words), env=_one_thread(), stderr=subprocess.DEVNULL) as running:
        while _stamp(file) == before and running.poll() is None:
            sleep(0.005)
        sleep(pause)
        running.kill()
    assert running.returncode == -signal.SIGKILL


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _call(words: Sequence[str], before: str = "") -> list[str]:
    return [sys.executable, "-c", f"{before}\nfrom mini_fsod import cli\ncli.main()", *words]


def _one_thread() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def material(root: Path, device: torch.device = CPU, **changes: object) -> RunData:
    """What a run of this data set works on."""
    source = root.parent / "small.yaml"
    source.touch()
    return RunData(resolve(str(source), sets(root, **changes)), device)


