"""The plan of a study: its cells, their order, and which stages they share.

A cell is one run: a row at a split, K and seed. plan.json in the folder of the study lists all
cells that were ever asked for, with the newest settings. The tables show these cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from mini_fsod.config.load import resolve
from mini_fsod.config.schema import Config
from mini_fsod.errors import UserError
from mini_fsod.files import write_json
from mini_fsod.limits import STUDY_RUNS
from mini_fsod.runs.identity import static_keys
from mini_fsod.state_files import Kind, read_state_file
from mini_fsod.study.studies import Row, Study

PLAN = "plan.json"

# settings that do not change a result: processes that share a study may differ in them
NO_EFFECT = ("device", "data.cache", "data.loading")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study. `keys` has a key for each of its stages, in order.

    Cells with equal keys share the result of that stage: it is computed once.
    """

    row: str
    split: int | None
    shots: int
    seed: int
    name: str  # of its folder in cells/
    metric: str
    keys: dict[str, str]

    @property
    def last(self) -> str:
        return list(self.keys)[-1]

    @property
    def key(self) -> str:
        """What the cell's result depends on; with other settings it is another result."""
        return f"{self.keys[self.last]} {self.metric}"


class _CellRecord(Kind):
    model_config = ConfigDict(extra="forbid")

    row: str
    split: int | None
    shots: int
    seed: int
    name: str
    metric: str
    keys: Annotated[dict[str, str], Field(min_length=1)]


class _PlanFile(Kind):
    study: str
    source: str
    cells: list[_CellRecord]


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """Cells in the order in which they run, and the configuration of each by name."""

    cells: tuple[Cell, ...]
    configs: Mapping[str, Config]


def plan_study(study: Study, rows: Sequence[Row] | None = None) -> StudyPlan:
    """All cells of a study, or those of some of its rows.

    Seed by seed, so that a whole table is finished early; within a seed, cells of one split and K
    follow each other, because they share the most stages.
    """
    rows = rows or study.rows
    count = len(study.seeds) * len(study.splits or (None,)) * len(study.shots) * len(rows)
    if count > STUDY_RUNS:
        raise UserError(
            f"{study.name}: {count:,} runs, and a study has {STUDY_RUNS:,} at most.",
            "Name fewer rows, splits, shots or seeds.",
        )
    return _planned(
        study,
        [
            (row, split, shots, seed)
            for seed in study.seeds
            for split in study.splits or (None,)
            for shots in study.shots
            for row in rows
        ],
    )


def merge_plan(folder: Path, study: Study, plan: StudyPlan) -> StudyPlan:
    """The plan and the cells that earlier commands have added to the folder, all with the settings
    of `study`. Cells of rows that the study no longer has are left out.

    The folder of another study is refused.
    """
    before = _read(folder)
    if before is None:
        return plan
    # the same file, named from another folder, is the same source
    for key, now in (("study", study.name), ("source", Path(study.source).name)):
        if before.get(key) != now:
            raise UserError(
                f"{folder}: another study is in this folder ({key} {before.get(key)}, not {now}).",
                "Give this one another folder with --out.",
            )
    rows = {row.label: row for row in study.rows}
    asked = {
        (rows[cell.row], cell.split, cell.shots, cell.seed)
        for cell in (*_cells(before), *plan.cells)
        if cell.row in rows
    }
    order = list(study.rows)
    return _planned(study, sorted(asked, key=lambda c: (c[3], c[1] or 0, c[2], order.index(c[0]))))


def save_plan(folder: Path, study: Study, plan: StudyPlan) -> None:
    """Write the merged plan to the folder's plan.json. Call it under a lock."""
    content = {
        "study": study.name,
        "source": Path(study.source).name,
        "sets": shown_settings(study),
        "rows": {row.label: {"sets": list(row.sets), "to": row.last} for row in study.rows},
        "cells": [asdict(cell) for cell in merge_plan(folder, study, plan).cells],
    }
    if content != _read(folder):
        write_json(folder / PLAN, content)


def read_plan(folder: Path) -> list[Cell]:
    """The cells of a folder's plan.json; none if there is no such file yet."""
    content = _read(folder)
    return [] if content is None else _cells(content)


def refuse_changed_plan(folder: Path, plan: StudyPlan) -> None:
    """A command with other settings replaces the plan: this process must not go on with its own."""
    now = {cell.name: cell for cell in read_plan(folder)}
    if any(now.get(cell.name) != cell for cell in plan.cells):
        raise UserError(
            f"{folder}: another mini study has started here with other settings.",
            "Run one after the other, or give this one another folder with --out.",
        )


def shown_settings(study: Study) -> dict[str, str]:
    """What is set for all rows and can change a result, by key."""
    pairs = ([word.strip() for word in text.partition("=")[::2]] for text in study.sets)
    return {
        key: value
        for key, value in pairs
        if key not in NO_EFFECT and not key.endswith(".save_seconds")
    }


def _planned(study: Study, asked: Iterable[tuple[Row, int | None, int, int]]) -> StudyPlan:
    cells, configs = [], {}
    for row, split, shots, seed in asked:
        voc_split = None if split is None else f"voc-split{split}"
        config = resolve(study.source, [*study.sets, *row.sets], voc_split, shots, seed)
        axes = [f"split{split}"] if split is not None else []
        name = "-".join([row.slug, *axes, f"{shots}shot", f"seed{seed}"])
        keys = static_keys(config, row.last)
        cells.append(Cell(row.label, split, shots, seed, name, _scored(config), keys))
        configs[name] = config
    return StudyPlan(tuple(cells), configs)


def _scored(config: Config) -> str:
    """How the results of a run are scored: this changes no stage, but the figures."""
    most = config.data.test_most
    return config.data.metric + ("" if most is None else f" on {most} images")


def _read(folder: Path) -> dict[str, Any] | None:
    fix = "Delete the file: finished runs are kept, and the same command plans the study again."
    content: dict[str, Any] | None = read_state_file(folder / PLAN, _PlanFile, fix)
    return content


def _cells(content: dict[str, Any]) -> list[Cell]:
    return [Cell(**record) for record in content["cells"]]
