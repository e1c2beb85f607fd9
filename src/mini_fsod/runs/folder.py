"""A run's folder: what is finished in it, what a changed configuration makes stale.

`config.yaml` (every key), a folder a stage with `checkpoint.safetensors`, `metrics.json` and
`log.jsonl`, and `results.json`. A stage is finished when its metrics are there.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from mini_fsod.config import STAGES, Config, from_file, parts
from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes, write_json

CONFIG, METRICS, RESULTS = "config.yaml", "metrics.json", "results.json"
CHECKPOINT = "checkpoint.safetensors"


def prepare(out: Path, config: Config, first: str | None, wanted: tuple[str, ...]) -> None:
    """Make the folder ready for these stages, or say why it cannot be.

    Stages from `first` on are cleared away. What is left, begun or finished, must be what this
    configuration would give.
    """
    if first is not None:
        for stage in STAGES[: STAGES.index(first)]:
            if stage in wanted and not is_finished(out / stage):
                raise UserError(
                    f"{out}: {first} cannot be repeated, since {stage} is not finished.",
                    f"Leave --from out, or take --from {stage}.",
                )
    kept = STAGES if first is None else STAGES[: STAGES.index(first)]
    stale = [stage for stage in kept if (out / stage).exists() and _changed(out, config, stage)]
    if stale:
        keys = ", ".join(_changed(out, config, stale[-1]))
        raise UserError(
            f"{out}: the configuration is not the one of {', '.join(stale)}, which "
            f"{'was' if len(stale) == 1 else 'were'} run here: {keys} changed.",
            f"Repeat with --from {stale[0]}, or choose another folder with --out.",
        )
    if first is not None:
        (out / RESULTS).unlink(missing_ok=True)
        for stage in STAGES[STAGES.index(first) :]:
            shutil.rmtree(out / stage, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / CONFIG, config.to_yaml().encode())


def _changed(out: Path, config: Config, stage: str) -> list[str]:
    """The keys in which the folder's configuration differs, as far as the stage depends on them."""
    if not (out / CONFIG).exists():
        return []
    before, now = _flat(parts(from_file(out / CONFIG), stage)), _flat(parts(config, stage))
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{leaf}": v for leaf, v in value.items()}
        else:
            flat[key] = value
    return flat


def is_finished(stage: Path) -> bool:
    return (stage / METRICS).is_file()


def metrics(stage: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((stage / METRICS).read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{stage / METRICS}: cannot be read: {error}.", "Repeat the stage with --from."
        ) from error
    return found


def write_results(out: Path, config: Config, command: str, device: str) -> dict[str, Any]:
    """`results.json`: the figures of all finished stages, and what they were made with."""
    results = {
        "stages": {s: metrics(out / s) for s in STAGES if is_finished(out / s)},
        "seed": config.seed,
        "shots": {"k": config.shots.k, "seed": config.shots.seed},
        "versions": versions(),
        "device": device,
        "command": command,
        "commit": commit(),
    }
    write_json(out / RESULTS, results)
    return results


def versions() -> dict[str, str]:
    import numpy
    import torch
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
    """The commit of the checkout that this code lies in, with a + where it was changed since."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD") + (
            "+" if git("status", "-s", here.parent.as_posix()) else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
