"""`results.json` of a run, and one line about each stage."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.files import write_json

RESULTS = "results.json"

Figures = Mapping[str, Any]


def write_results(
    run: Path,
    config: Config,
    stages: Mapping[str, Figures],
    keys: Mapping[str, str],
    pool: Figures,
    shots: int | None,
    command: str,
    device: str,
) -> dict[str, Any]:
    """The figures of all finished stages, and what they were made with."""
    results = {
        "stages": {stage: dict(figures) for stage, figures in stages.items()},
        "results": {stage: f"{stage}-{keys[stage]}" for stage in stages},
        "pool": dict(pool),
        "seed": config.seed,
        "shots": config.shots.model_dump(mode="json") | {"k": shots},
        "versions": versions(),
        "device": device,
        "command": command,
        "commit": commit(),
    }
    write_json(run / RESULTS, results)
    return results


def say_figures(stage: str, figures: Figures) -> None:
    """One line about a finished stage."""
    known = [name for name in ("nAP50", "bAP50") if figures.get(name) is not None]
    words = [f"{name} {figures[name]:.1f}" for name in known]
    images, of_images = figures.get("images", 0), figures.get("of_images", 0)
    if known and images < of_images:
        words[-1] += f" on {images:,} of {of_images:,} images"
    if stage == "scan" and "pairs" in figures:
        words = [console.count(figures["pairs"], "candidate") + " before NMS"]
    if stage == "mine" and "kept" in figures:
        mined = figures["kept"] + figures.get("extra", {}).get("kept", 0)
        words = [console.count(mined, "mined box")]
    given = figures.get("checkpoint") or figures.get("given")
    how = f"taken from {given}" if given else f"in {console.duration(figures['seconds'])}"
    if words:
        console.note(f"{stage}: {', '.join(words)} {how}")
    else:
        console.note(f"{stage}: {how if given else f'done {how}'}, not scored")


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {console.count(torch.get_num_threads(), 'thread')}"


def versions() -> dict[str, str]:
    import numpy
    import torchvision

    from mini_fsod import __version__

    return {
        "mini": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": numpy.__version__,
    }


def commit() -> str | None:
    """The commit of the checkout this code lies in, with a + where it was changed since."""
    package = Path(__file__).parents[1]

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # an installed package may lie in a checkout of something else
        git("ls-files", "--error-unmatch", __file__)
        changed = git("status", "--short", ".")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
