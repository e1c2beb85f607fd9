"""Runs on coloured shapes (`helpers.shapes`): a whole run takes some seconds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from helpers.shapes import NOVEL
from mini_fsod.config.load import resolve
from mini_fsod.config.schema import Config
from mini_fsod.detector.backbone import NARROW, make_backbone
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.runs import stages

SETTINGS: dict[str, object] = {
    "device": "cpu",
    "data.novel": json.dumps([NOVEL]),
    "data.metric": "voc",
    "detector.backbone": "resnet18-narrow",
    "detector.norm": "group",
    "detector.anchors": "[8, 16, 32, 64, 128]",
    "detector.fpn_channels": "16",
    "detector.head_width": "32",
    "detector.rpn_pre_nms": "60",
    "detector.rpn_post_nms": "30",
    "detector.rpn_samples": "32",
    "detector.roi_samples": "32",
    "views.short": "[48, 64]",
    "views.long": "96",
    "views.test": "64",
    "train.batch": "4",
    "train.bf16": "false",  # processes that tests start compute as the tests do
    "train.save_seconds": "0",
    "base.iterations": "12",
    "transfer.iterations": "25",
    "online.iterations": "4",
    "tune.iterations": "4",
    # those of a batch of 16: so few iterations must learn something
    "base.rate": "0.02",
    "transfer.rate": "0.001",
    "online.rate": "0.02",
    "tune.rate": "0.001",
    "mine.min_score": "0.01",  # a detector of a few iterations has low scores
}
SHORT = {  # stages that take a fraction of a second
    "shots__k": 2,
    "base__iterations": 2,
    "transfer__iterations": 2,
    "online__iterations": 2,
    "tune__iterations": 2,
}
MINED_FILES = ("candidates.json", "thresholds.json", "pool.json", "audit.json")


def sets(data: Path, **changes: object) -> list[str]:
    """KEY=VALUE of the configuration; `base__iterations=3` changes a key."""
    values: dict[str, object] = {
        **SETTINGS,
        "data.root": data,
        "data.cache": data.parent / "cache",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return [f"{key}={value}" for key, value in values.items()]


def config(data: Path, **changes: object) -> Config:
    return resolve(str(_empty_config(data)), sets(data, **changes))


def short_config(data: Path, **changes: object) -> Config:
    """All stages in a fraction of a second each, mining from another tool's detections."""
    mined = {"mine__detections": detections(data), "mine__threshold": 0.5}
    mined["online__start"] = "transfer"  # else nothing needs the stages base and transfer
    return config(data, **SHORT | mined | changes)


def run(
    config: Config, out: Path, first: str | None = None, last: str = "transfer", **more: Any
) -> dict[str, Any]:
    """`stages.run`; so short a training teaches nothing to build on."""
    return stages.run(config, out, first, last, **{"anyway": True} | more)


def copy_runs(run: Path, target: Path) -> Path:
    """A copy of a run's folder with all that lies beside it."""
    shutil.copytree(run.parent, target / "runs", symlinks=True)
    return target / "runs" / run.name


def stamps(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in files}


def words(data: Path, out: Path, *more: object, **changes: object) -> list[str]:
    """The arguments of `mini run`, up to transfer unless `more` names another stage."""
    options = [word for text in sets(data, **changes) for word in ("--set", text)]
    last = [] if "--to" in more else ["--to", "transfer"]
    start = ["run", str(_empty_config(data)), "-o", str(out), "--anyway"]
    return [*start, *options, *map(str, more), *last]


def _empty_config(data: Path) -> Path:
    path = data.parent / "empty.yaml"
    path.touch()
    return path


def discriminator(data: Path, seed: int = 0, **changes: object) -> dict[str, object]:
    """Keys of mining with a narrow ResNet of random weights, written as torchvision does."""
    path = data.parent / f"narrow-{seed}.safetensors"
    if not path.exists():
        torch.manual_seed(seed)
        state = make_backbone(BackboneSettings(NARROW, "group")).state_dict()
        for name in [name for name in state if name.endswith("bias")]:  # of a norm
            state[name.replace("bias", "running_mean")] = torch.zeros_like(state[name])
            state[name.replace("bias", "running_var")] = torch.ones_like(state[name])
        save_file(state, path)
    return {"discriminator__weights": path, "discriminator__short": 96, **changes}


def hidden_boxes(data: Path) -> list[dict[str, Any]]:
    """Annotations of the novel class in the training images."""
    content = json.loads((data / "annotations" / "train.json").read_text())
    return [box for box in content["annotations"] if box["category_id"] == 3]


def detections(data: Path, right: int = 3) -> Path:
    """Another tool's detections: so many hidden boxes, and a wrong one in place of each other."""
    path = data.parent / f"detections-{right}.json"
    rows = [
        {
            "image_id": box["image_id"],
            "category_id": 3,
            "bbox": box["bbox"] if n < right else [1, 2, 20, 16],
            "score": 0.9 - n / 10,
        }
        for n, box in enumerate(hidden_boxes(data))
    ]
    path.write_text(json.dumps(rows))
    return path


def weights(run: Path, stage: str) -> bytes:
    return (run / stage / "checkpoint.safetensors").read_bytes()


def assert_same_weights(one: Path, other: Path, stage: str, **tolerance: float) -> None:
    a, b = (load_file(run / stage / "checkpoint.safetensors") for run in (one, other))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], **(tolerance or {"rtol": 0, "atol": 0}))


def mini(arguments: Sequence[str], before: str = "") -> subprocess.CompletedProcess[str]:
    """`mini ARGUMENTS` in a process of its own, in which the lines `before` run first."""
    return subprocess.run(
        _call(arguments, before),
        env=_one_thread(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def start_mini(arguments: Sequence[str], **streams: Any) -> subprocess.Popen[str]:
    """`mini ARGUMENTS` in a process of its own, which goes on in the background."""
    return subprocess.Popen(_call(arguments), env=_one_thread(), text=True, **streams)


def kill_soon(arguments: Sequence[str], file: Path, pause: float) -> None:
    """Start `mini ARGUMENTS`, and kill it so many seconds after it wrote this file again."""
    before = _written(file)
    with start_mini(arguments, stderr=subprocess.DEVNULL) as started:
        while _written(file) == before and started.poll() is None:
            sleep(0.005)
        sleep(pause)
        started.kill()
    assert started.returncode == -signal.SIGKILL


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _call(arguments: Sequence[str], before: str = "") -> list[str]:
    return [sys.executable, "-c", f"{before}\nfrom mini_fsod import cli\ncli.main()", *arguments]


def _one_thread() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}
