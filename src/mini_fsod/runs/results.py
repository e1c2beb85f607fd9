"""`results.json` of a run, and what to say of a stage's figures."""

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

LITTLE = 10.0  # bAP50 of a base detector that mining cannot build on
LOST = 5.0  # bAP50 that a stage costs by its settings, not by chance
WORSE = 2.0  # likewise nAP50, and bAP50 that makes the last fine-tuning one of the causes

ADVICE = {
    "transfer": "Lower transfer.rate, or set transfer.data to known",
    "online": "Lower online.rate, or train longer",
    "tune": "Lower tune.rate, or set tune.data to known or none",
}
EARLIER = {"online": "transfer", "tune": "online"}  # whose detector a stage should improve


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
    if stage == "scan" and "pairs" in figures:
        words = [console.count(figures["pairs"], "candidate") + " before NMS"]
    if stage == "mine" and "kept" in figures:
        mined = figures["kept"] + figures.get("extra", {}).get("kept", 0)
        words = [console.count(mined, "mined box")]
    given = figures.get("checkpoint") or figures.get("given")
    how = f"from {given}" if given else f"in {console.duration(figures['seconds'])}"
    console.note(f"{stage}: {', '.join(words) or 'not scored'} {how}")


def advice(stage: str, figures: Mapping[str, Figures]) -> list[str]:
    """What to change where a stage gave poor figures; `figures` are those of all stages so far."""

    def lost(name: str, since: str) -> float:
        before, now = (figures.get(s, {}).get(name) for s in (since, stage))
        return 0.0 if before is None or now is None else before - now

    lines = []
    base = figures.get(stage, {}).get("bAP50") if stage == "base" else None
    if base is not None and base < LITTLE:
        lines.append(
            "that is low: mining needs what the base detector has learned. Train it longer "
            "(base.minutes or base.iterations), from pretrained weights (detector.weights), or on "
            "more pictures"
        )
    own_loss = lost("bAP50", "online" if stage == "tune" else "base")
    if stage in ADVICE and own_loss > WORSE and lost("bAP50", "base") > LOST:
        lines.append(
            f"base classes lost {lost('bAP50', 'base'):.1f} of bAP50 since the base detector. "
            f"{ADVICE[stage]}"
        )
    earlier = EARLIER.get(stage)
    if earlier is not None and lost("nAP50", earlier) > WORSE:
        lines.append(
            f"new classes had an nAP50 of {figures[earlier]['nAP50']:.1f} after the stage "
            f"{earlier}: its checkpoint is the better detector"
        )
    return lines


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
