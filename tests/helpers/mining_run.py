"""The stages `scan` and `mine` on coloured shapes, with an untrained few-shot detector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from helpers.tiny_run import config, discriminator
from mini_fsod import checkpoint
from mini_fsod.config.schema import Config
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.mining.choose import mine
from mini_fsod.mining.scan import scan
from mini_fsod.runs.data import RunData
from mini_fsod.runs.detectors import new_detector
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import ALONE, Team

CPU = torch.device("cpu")


def mining_config(data: Path, **changes: object) -> Config:
    """So few boxes are mined that the annotations suffice for an audit."""
    return config(data, **discriminator(data, **{"mine__per_class": 8, **changes}))


def mining_run(
    data: Path, out: Path, scanned: Path | None = None, team: Team = ALONE, **changes: object
) -> Run:
    """A run with its results in `out`/STAGE; `scanned` has the stage `scan` of another one."""
    wanted = mining_config(data, **changes)
    folders = {
        "transfer": data.parent / "transfer",
        "scan": (scanned or out) / "scan",
        "mine": out / "mine",
    }
    run = Run(
        wanted,
        RunData(wanted, CPU),
        CPU,
        team,
        folders.__getitem__,
        out / "pool.json",
        out / "pool-extra.json",
    )
    _write_detector(run, folders["transfer"] / CHECKPOINT_FILE)
    return run


def scan_and_mine(data: Path, out: Path, **changes: object) -> dict[str, Any]:
    """The figures of the stage `mine`."""
    run = mining_run(data, out, **changes)
    scan(run, run.folder("scan"))
    return mine(run, run.folder("mine"))


def mine_again(data: Path, out: Path, scanned: Path, **changes: object) -> dict[str, Any]:
    """The figures of the stage `mine` with the scan of another run."""
    run = mining_run(data, out, scanned, **changes)
    return mine(run, run.folder("mine"))


def mined(out: Path, name: str) -> Any:
    """The content of a file of the stage `mine`."""
    return json.loads((out / "mine" / name).read_bytes())


def _write_detector(run: Run, path: Path) -> None:
    """Random weights whose scores differ from proposal to proposal."""
    if path.exists():
        return
    torch.manual_seed(0)
    labels = run.data.labels
    detector = new_detector(run.config, len(labels.classes))
    torch.nn.init.normal_(detector.predictor.classifier.weight, std=0.3)
    torch.nn.init.normal_(detector.rpn_head.predict.weight, std=0.1)
    checkpoint.save(path, detector, labels, {})
