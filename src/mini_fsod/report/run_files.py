"""What a run has left in its folder: read, checked, and never trusted.

A file that is missing, damaged or of another version is a line in `problems`; the rest is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mini_fsod.config.load import resolve
from mini_fsod.config.schema import STAGES, TRAINED, Config
from mini_fsod.errors import UserError
from mini_fsod.eval.kept_detections import detections_file
from mini_fsod.files import CONFIG_FILE, is_file, is_folder, real
from mini_fsod.mining.pool_io import read_thresholds
from mini_fsod.runs import store
from mini_fsod.runs.facts import read_data_facts
from mini_fsod.runs.results import RESULTS
from mini_fsod.state_files import Kind, read_state_file
from mini_fsod.train.log import FILE as LOG_FILE
from mini_fsod.train.log import read_log

RUN_AGAIN = "Run the same `mini run` again: it writes what is missing."


class Results(Kind):
    """`results.json`."""

    stages: dict[str, store.Figures]
    results: dict[str, str]
    pool: dict[str, Any]
    seed: int
    shots: dict[str, Any]
    versions: dict[str, str]
    device: str
    command: str
    commit: str | None


@dataclass(frozen=True, slots=True)
class StageFiles:
    """What a stage has left."""

    folder: Path
    finished: bool
    figures: Mapping[str, Any]  # as in results.json
    log: list[dict[str, Any]]
    errors: dict[str, Any] | None = None  # `eval.errors.error_figures`
    detections: Path | None = None  # on the test set


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run's folder. Without a configuration, most causes and pictures cannot be found."""

    folder: Path
    config: Config | None
    results: Mapping[str, Any]  # of results.json; empty before the first stage has finished
    stages: Mapping[str, StageFiles]  # in their order
    facts: Mapping[str, Any] | None  # `runs.facts`
    thresholds: Mapping[str, Any]  # by class
    audit: Mapping[str, Any] | None  # where the hidden boxes are known
    problems: list[str] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Mapping[str, Any]]:
        """The figures of each finished stage."""
        return {name: stage.figures for name, stage in self.stages.items() if stage.finished}

    @property
    def unfinished(self) -> str | None:
        """The stage in which a run was stopped."""
        return next((name for name, stage in self.stages.items() if not stage.finished), None)

    @property
    def last_scored(self) -> str | None:
        """The last stage with a score on the test set."""
        scored = [s for s, figures in self.figures.items() if figures.get("AP50") is not None]
        return scored[-1] if scored else None

    @property
    def errors(self) -> dict[str, Any] | None:
        """The errors of that stage."""
        return self.stages[self.last_scored].errors if self.last_scored else None

    @property
    def novel(self) -> list[str]:
        """The new classes, as far as any file names them."""
        if self.facts is not None:
            return [name for name, row in self.facts["classes"].items() if row["novel"]]
        if self.thresholds:
            return list(self.thresholds)
        return list(self.config.data.novel) if self.config else []

    @property
    def is_oracle(self) -> bool:
        return self.config is not None and self.config.online.oracle

    def ap(self, name: str) -> float | None:
        """AP50 of a class after the last scored stage."""
        if self.last_scored is None:
            return None
        row = self.figures[self.last_scored].get("per_class", {}).get(name, {})
        value: float | None = row.get("AP50")
        return value

    def headline(self, name: str) -> float | None:
        """A mean, such as nAP50, after the last scored stage."""
        stage = self.last_scored
        return None if stage is None else self.figures[stage].get(name)


def read_run(folder: Path) -> RunFiles:
    """All that the report and the doctor need of a run. UserError where it is no run's folder."""
    if not is_file(folder / CONFIG_FILE):
        raise UserError(
            f"{folder}: not the folder of a run (it has no {CONFIG_FILE}).",
            "Give a folder that `mini run` has written, such as runs/demo.",
        )
    store.refuse_moved(folder)
    problems: list[str] = []

    def attempt(read: Callable[[], Any], default: Any) -> Any:
        try:
            return read()
        except UserError as error:
            problems.append(f"{error.what} {error.fix}".strip())
            return default

    config = attempt(lambda: resolve(str(folder / CONFIG_FILE)), None)
    results = attempt(lambda: read_state_file(folder / RESULTS, Results, RUN_AGAIN), None) or {}
    read = {
        stage: attempt(partial(_read_stage, folder / stage, stage, results), None)
        for stage in STAGES
        if is_folder(folder / stage)
    }
    stages = {name: stage for name, stage in read.items() if stage is not None}
    thresholds, audit = None, None
    if "mine" in stages:
        thresholds, audit = attempt(lambda: read_thresholds(folder / "mine"), (None, None))
    return RunFiles(
        folder,
        config,
        results,
        stages,
        attempt(lambda: read_data_facts(folder), None),
        (thresholds or {}).get("classes", {}),
        audit,
        problems,
    )


def _read_stage(folder: Path, stage: str, results: Mapping[str, Any]) -> StageFiles:
    """Figures come from results.json, or from the stage's files where it has others by now."""
    metrics = store.read_metrics(real(folder))
    figures = dict(metrics or {})
    if results.get("results", {}).get(stage) == real(folder).name:
        figures |= results["stages"].get(stage, {})
    score = _score_file(folder, figures.get("score")) if stage in TRAINED else None
    scored = None if score is None else store.read_score(score)
    errors = None
    if scored is not None:
        errors = scored.pop("errors", None)
        figures = figures | scored
    return StageFiles(
        folder,
        metrics is not None,
        figures,
        read_log(folder / LOG_FILE),
        errors,
        None if score is None else detections_file(score),
    )


def _score_file(folder: Path, name: Any) -> Path | None:
    """The file of the stage's score; the newest where results.json does not name it."""
    files = sorted(folder.glob("score-*.json"), key=lambda path: path.lstat().st_mtime)
    named = [path for path in files if path.name == name] or files
    return named[-1] if named else None
