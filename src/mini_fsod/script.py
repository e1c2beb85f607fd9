"""`mini_fsod.run`: what `mini run` does, called from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_fsod.config.load import resolve, run_folder
from mini_fsod.errors import UserError


def run_config(
    config: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    first: str | None = None,
    last: str | None = None,
) -> dict[str, Any]:
    """Train and score a few-shot detector; returns the content of `results.json`.

    `config` is a preset's name, a YAML file, the folder of a run, or the keys themselves, nested or
    dotted, where `preset` names a preset to start from. `overrides` change keys of it, as `--set`
    does. `out` is the run's folder; by default runs/NAME, for keys it must be given. Stages from
    `first` on are computed again; the run stops after `last`. What is wrong is a `UserError`.
    """
    from mini_fsod.runs import stages  # imports torch

    source: str | Mapping[str, Any]
    if isinstance(config, Mapping):
        if out is None:
            raise UserError(
                "A configuration given as a dict needs a run folder.",
                'For example: out="runs/first".',
            )
        source = config
    else:
        source, folder = run_folder(str(config))
        out = out or folder
    settings = resolve(source, overrides or {})
    return stages.run(settings, Path(out), first, last, "mini_fsod.run")
