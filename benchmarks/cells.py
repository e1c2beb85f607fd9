"""Runs the open measurements of docs/lab/cells.yaml one after another, within a time limit.

    python benchmarks/cells.py -o FOLDER [--minutes 28] [--only NAME ...] [--list]

A cell is a shell command with the minutes it takes. It runs in FOLDER; its output goes to
FOLDER/NAME.log, and FOLDER/cells.jsonl gets a line when it has ended: seconds, exit code, commit,
device, date. A cell that ended well is not repeated; one that does not fit into the time left is
passed over, one that takes twice its minutes is stopped. So the same command goes on in the next
hour of GPU. Commands may use $DEVKIT (VOC07+12), $CAFFE (the weights of the backbone), $COMMON (the
`--set` of both) and $BENCHMARKS (this folder). DEVKIT and CAFFE are taken from the environment, and
so are SEGMENTER, the weights of MobileSAM for the cells that use them, and MORE: further options
for $COMMON, with which all cells can be tried at tiny size.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
MINI = 'mini() { python -m mini_fsod "$@"; }\n'  # from PYTHONPATH, where nothing is installed
CELLS = HERE.parent / "docs" / "lab" / "cells.yaml"


def environment() -> dict[str, str]:
    devkit, caffe = (str(Path(os.environ[name]).resolve()) for name in ("DEVKIT", "CAFFE"))
    keys = {
        "data.root": devkit,
        "detector.weights": caffe,
        "detector.caffe": "true",
        "discriminator.weights": f"resnet50:{caffe}",
        "discriminator.caffe": "true",
    }
    common = " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in keys.items())
    common += " " + os.environ.get("MORE", "")
    paths = {"DEVKIT": devkit, "CAFFE": caffe, "BENCHMARKS": str(HERE)}
    if "SEGMENTER" in os.environ:
        paths["SEGMENTER"] = str(Path(os.environ["SEGMENTER"]).resolve())
    return {**os.environ, **paths, "COMMON": common}


def facts() -> dict[str, str]:
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    cuda = torch.cuda.is_available()
    return {
        "commit": commit or os.environ.get("COMMIT", "unknown"),
        "device": torch.cuda.get_device_name() if cuda else f"{os.cpu_count()} CPU cores",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def run_cell(cell: dict[str, Any], out: Path, limit: float) -> dict[str, Any]:
    """The command in a process group of its own, which is stopped after so many seconds."""
    start = time.monotonic()
    with (out / f"{cell['name']}.log").open("ab") as log:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", MINI + cell["run"]],
            cwd=out,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # trainings save their state
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    seconds = round(time.monotonic() - start, 1)
    return {"name": cell["name"], "seconds": seconds, "code": code, "command": cell["run"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=28)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cells", type=Path, default=CELLS)
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    cells = yaml.safe_load(options.cells.read_text())
    record = options.out / "cells.jsonl"
    lines = record.read_text().splitlines() if record.exists() else []
    done = {line["name"] for line in map(json.loads, lines) if line["code"] == 0}
    if options.list:
        for cell in cells:
            state = "done" if cell["name"] in done else f"{cell['minutes']} min"
            print(f"{cell['name']:24} {state:8} {cell['about']}")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    machine = facts()
    for cell in cells:
        name, minutes = cell["name"], cell["minutes"]
        left = end - time.monotonic()
        if name in done or (options.only and name not in options.only):
            continue
        missing = [need for need in cell.get("needs", ()) if need not in done]
        if missing or left < 60 * minutes:
            why = f"needs {', '.join(missing)}" if missing else f"{left / 60:.1f} min left"
            print(f"{name}: passed over, {why}", flush=True)
            continue
        print(f"{name}: {minutes} min", flush=True)
        result = run_cell(cell, options.out, min(left, 120 * minutes))
        with record.open("a") as file:
            file.write(json.dumps(result | machine) + "\n")
        if result["code"] == 0:
            done.add(name)
        print(f"{name}: code {result['code']}, {result['seconds'] / 60:.1f} min", flush=True)


if __name__ == "__main__":
    main()
