"""The oracle of a run, where another run beside it is one: an upper bound to compare with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mini_fsod.errors import UserError
from mini_fsod.files import CONFIG_FILE, is_file, read_bytes, real
from mini_fsod.limits import YAML_BYTES
from mini_fsod.report.run_files import RunFiles, read_run
from mini_fsod.runs.results import RESULTS

ORACLE = re.compile(rb'\boracle"?: *true')
MOST_RUNS = 200  # looked at beside the run


@dataclass(frozen=True, slots=True)
class Oracle:
    run: str  # the folder's name
    figures: Mapping[str, Any]  # of its last scored stage

    def value(self, name: str, mean: str | None = None) -> float | None:
        """AP50 of a class, or a mean such as nAP50."""
        if mean is not None:
            return self.figures.get(mean)
        value: float | None = self.figures.get("per_class", {}).get(name, {}).get("AP50")
        return value


def oracle_of(run: RunFiles) -> Oracle | None:
    """The best oracle among the runs beside this one with the same test set and classes."""
    stage = run.last_scored
    if stage is None or run.is_oracle:
        return None
    of_run = run.figures[stage]
    found = []
    beside = sorted(run.folder.resolve().parent.iterdir())
    for folder in islice((f for f in beside if is_file(f / RESULTS)), MOST_RUNS):
        if real(folder) == real(run.folder) or not is_file(folder / CONFIG_FILE):
            continue
        try:  # most runs are none: a look at the configuration is cheaper than reading the run
            if not ORACLE.search(read_bytes(folder / CONFIG_FILE, YAML_BYTES)):
                continue
            other = read_run(folder)
        except (OSError, UserError):
            continue
        last = other.last_scored
        if not other.is_oracle or last is None:
            continue
        figures = other.figures[last]
        same = all(figures.get(key) == of_run.get(key) for key in ("test_set", "metric"))
        if same and of_run.get("test_set") and figures.get("nAP50") is not None:
            found.append(Oracle(folder.name, figures))
    return max(found, key=lambda one: one.figures["nAP50"], default=None)
