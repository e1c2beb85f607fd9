"""The plan of a study: its units of work, which of them cells share, and what depends on what.

A cell is one run: a row at a split, K and seed. Stages that cells have in common are units of
their own, named by what they depend on, and handed over to the cells: computed once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_fsod.errors import UserError
from mini_fsod.files import is_file, write_json
from mini_fsod.files import lock
from mini_fsod.study.studies import Row, Study

if TYPE_CHECKING:
    from mini_fsod.config.load import Config

Resolve = Callable[[str, Sequence[str]], "Config"]
Parts = Callable[["Config", str], dict[str, Any]]

# how a stage's result is given to another run: the key, and the file of the run that made it
HANDED = {
    "base": ("base.checkpoint", "base/checkpoint.safetensors"),
    "transfer": ("transfer.checkpoint", "transfer/checkpoint.safetensors"),
    "mine": ("mine.given", "mine/pool.json"),
    "online": ("online.checkpoint", "online/checkpoint.safetensors"),
}

# settings that say where and how, not what: workers of one study may differ in them
NO_MATTER = ("device", "data.cache", "data.feed")


@dataclass(frozen=True, slots=True)
class Cell:
    row: str
    split: int | None
    shots: int
    seed: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A run of the plan: the stages it computes itself, the last one's result depending on `parts`.

    `folder` lies in the study's folder; `needs` names the units that come before; `cell` is None
    for what cells share.
    """

    name: str
    folder: str
    stages: tuple[str, ...]
    last: str
    needs: tuple[str, ...]
    parts: dict[str, Any]
    cell: Cell | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Units in an order in which each comes after those it needs, and the settings of each."""

    units: tuple[Unit, ...]
    configs: Mapping[str, Config]


def plan(
    study: Study,
    folder: Path,
    resolve: Resolve,
    parts: Parts,
    stages: Sequence[str],
    stages_of: Callable[[Config, str], Sequence[str]],
    handed: Mapping[str, tuple[str, str]] = HANDED,
) -> Plan:
    """All units of a study. Seed by seed, so that a whole table stands early.

    `resolve`, `parts` and `stages_of` are those of mini_fsod.config.load, `stages` all in order.
    """
    units: dict[str, Unit] = {}
    configs: dict[str, Config] = {}
    cells = [
        (row, Cell(row.label, split, shots, seed))
        for seed in study.seeds
        for split in study.splits or (None,)
        for shots in study.shots
        for row in study.rows
    ]
    furthest = max(stages.index(row.last) for row in study.rows)
    for row, cell in cells:
        source, sets = settings(study, row, cell)
        config = resolve(source, sets)
        todo = list(stages_of(config, row.last))
        needs: tuple[str, ...] = ()
        # a stage that no row goes beyond is the cell's own, but for a base, which seeds share
        common = [stage for stage in todo if stage in stages[: max(1, furthest)]]
        for stage, name in shared(config, common, parts, handed):
            if name not in units:
                configs[name] = resolve(source, sets)
                whole = _json(parts(config, stage))
                own = tuple(todo[: todo.index(stage) + 1])
                units[name] = Unit(name, f"shared/{name}", own, stage, needs, whole)
            todo = todo[todo.index(stage) + 1 :]
            needs = (*needs, name)
            key, file = handed[stage]
            # JSON's text is YAML's too, whatever characters the path has
            sets = [*sets, f"{key}={json.dumps(str(folder.resolve() / 'shared' / name / file))}"]
        name = cell_name(row, cell)
        configs[name] = resolve(source, sets)
        whole = _json(parts(config, row.last))
        units[name] = Unit(name, f"cells/{name}", tuple(todo), row.last, needs, whole, cell)
    return Plan(tuple(units.values()), configs)


def of_rows(whole: Plan, labels: Sequence[str]) -> Plan:
    """The cells of some rows, and what they need."""
    wanted = {unit.name for unit in whole.units if unit.cell and unit.cell.row in labels}
    for unit in reversed(whole.units):  # each comes after those it needs
        if unit.name in wanted:
            wanted.update(unit.needs)
    units = tuple(unit for unit in whole.units if unit.name in wanted)
    return Plan(units, {unit.name: whole.configs[unit.name] for unit in units})


def settings(study: Study, row: Row, cell: Cell) -> tuple[str, list[str]]:
    """Preset or file of a cell, and what is set on top: for all, for the row, for the cell."""
    sets = [*study.sets, *row.sets]
    source = study.source
    if study.splits:
        source = source.replace("{split}", str(cell.split))
    if "{shots}" in source:
        source = source.replace("{shots}", str(cell.shots))
    else:
        sets.append(f"shots.k={cell.shots}")
    return source, [*sets, f"shots.seed={cell.seed}"]


def shared(
    config: Config, todo: Sequence[str], parts: Parts, handed: Mapping[str, tuple[str, str]]
) -> list[tuple[str, str]]:
    """The stages of a run that are units of their own, with the units' names.

    They are its first ones, as far as each can be handed over. One that a single cell needs is a
    unit too: a cell added later finds it. A stage whose result is given in the config is none.
    """
    found: list[tuple[str, str]] = []
    for stage in todo:
        if stage not in handed:
            break
        section, key = handed[stage][0].split(".")
        if getattr(getattr(config, section), key) is None:
            found.append((stage, f"{stage}-{digest(parts(config, stage))}"))
    return found


def digest(value: dict[str, Any]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def cell_name(row: Row, cell: Cell) -> str:
    split = "" if cell.split is None else f"-split{cell.split}"
    return f"{row.slug}{split}-{cell.shots}shot-seed{cell.seed}"


def join(folder: Path, study: Study, units: Sequence[Unit]) -> None:
    """Enter the units into the folder's plan.json, after older ones. Call it under a lock."""
    content = merged(folder, study, units)
    if content != _read(folder):
        write_json(folder / "plan.json", content)


def merged(folder: Path, study: Study, units: Sequence[Unit]) -> dict[str, Any]:
    """plan.json with the units in it. A folder begun with other settings is refused."""
    before, earlier = _read(folder), known(folder)
    try:
        return _joined(folder, study, units, before, earlier)
    except UserError:
        if any((folder / unit.folder).exists() or _is_held(folder, unit) for unit in earlier):
            raise
        # nothing came of that plan: a word was wrong in it
        return _joined(folder, study, units, None, [])


def _is_held(folder: Path, unit: Unit) -> bool:
    """Whether another process has begun it, and reads data, for example."""
    path = folder / "locks" / f"{unit.name}.lock"
    if not is_file(path):
        return False
    with lock(path) as free:
        return not free


def _joined(
    folder: Path,
    study: Study,
    units: Sequence[Unit],
    before: dict[str, Any] | None,
    earlier: Sequence[Unit],
) -> dict[str, Any]:
    described = _description(study)
    if before is not None:
        _refuse_others(folder, before, described)
        described["rows"] = before["rows"] | described["rows"]
    by_name = {unit.name: unit for unit in earlier}
    for unit in units:
        other = by_name.setdefault(unit.name, unit)
        changes = differences(other.parts, unit.parts)
        if changes:
            raise UserError(
                f"{folder}: this study was begun with other settings ({unit.name}: "
                f"{'; '.join(changes[:3])}).",
                "Give it another folder with --out, or the same settings.",
            )
    return described | {"units": [_json(asdict(unit)) for unit in by_name.values()]}


def known(folder: Path) -> list[Unit]:
    """The units of a folder's plan.json; none if there is no such file yet."""
    content = _read(folder)
    if content is None:
        return []
    try:
        return [
            Unit(
                **record
                | {"stages": tuple(record["stages"]), "needs": tuple(record["needs"])}
                | {"cell": record["cell"] and Cell(**record["cell"])}
            )
            for record in content["units"]
        ]
    except (KeyError, TypeError):
        raise UserError(
            f"{folder / 'plan.json'}: written by another version.", "Choose another folder."
        ) from None


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """ "base.iterations was 100 and is 200", for every key that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for k in {**old, **new}
            for line in differences(old.get(k), new.get(k), f"{key}.{k}" if key else str(k))
        ]
    if old == new:
        return []
    was, now = ("not set" if value is None else json.dumps(value) for value in (old, new))
    return [f"{key} was {was} and is {now}"]


def what_matters(study: Study) -> dict[str, str]:
    """What is set for all rows and can change a result, by key."""
    pairs = ([word.strip() for word in text.partition("=")[::2]] for text in study.sets)
    return {
        key: value
        for key, value in pairs
        if key not in NO_MATTER and not key.endswith(".save_seconds")
    }


def _description(study: Study) -> dict[str, Any]:
    return {
        "study": study.name,
        "source": Path(study.source).name,  # the same file seen from another folder is the same
        "sets": what_matters(study),
        "rows": {row.label: {"sets": list(row.sets), "to": row.last} for row in study.rows},
    }


def _refuse_others(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    rows = {label: row for label, row in now["rows"].items() if label in before["rows"]}
    changes = differences(
        {key: before[key] for key in ("study", "source", "sets")}
        | {"rows": {label: before["rows"][label] for label in rows}},
        {key: now[key] for key in ("study", "source", "sets")} | {"rows": rows},
    )
    if changes:
        raise UserError(
            f"{folder}: another study lies here ({'; '.join(changes[:3])}).",
            "Give this one another folder with --out; more splits, shots and seeds may be added "
            "to the same.",
        )


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / "plan.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}).", "Choose another folder.") from None
    if not isinstance(content, dict) or "units" not in content:
        raise UserError(f"{path}: no plan of a study.", "Choose another folder.")
    return content


def _json(value: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a file: lists for tuples."""
    back: dict[str, Any] = json.loads(json.dumps(value))
    return back
