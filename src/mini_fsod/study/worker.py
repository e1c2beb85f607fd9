"""Workers: each takes a unit that is ready and that nobody else has, until none is left.

Any number of processes may work in one folder. A unit is held by a lock of the operating system,
which is gone when its process is, however it ended. What is finished is never run again.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from mini_fsod import console
from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes
from mini_fsod.files import lock
from mini_fsod.study.plan import Plan, Unit

if TYPE_CHECKING:
    from mini_fsod.config.load import Config

Run = Callable[["Config", Path, str], object]  # settings, run folder, last stage


def work(
    todo: Plan, folder: Path, run: Run, finished: Callable[[], object], pause: float = 1.0
) -> dict[str, str]:
    """Run what is left of the plan; {unit: why} of those that failed or wait for one that did.

    `finished` is called after each unit that this process has run. A unit that fails, here or in
    another process, is left alone by all that work now; who begins later tries it again.
    """
    names = [unit.name for unit in todo.units]
    past = {name: stamp for name in names if (stamp := _stamp(folder, name))}
    done: set[str] = set()
    waiting = False
    while True:
        done.update(
            unit.name for unit in todo.units if unit.name not in done and is_done(folder, unit)
        )
        failed = _failed(todo.units, folder, done, past)
        left = [unit for unit in todo.units if unit.name not in done and unit.name not in failed]
        if not left:
            return failed
        ready = [unit for unit in left if done.issuperset(unit.needs)]
        for unit in ready:
            with lock(folder / "locks" / f"{unit.name}.lock") as mine:
                if not mine:
                    continue
                waiting = False
                # another process may have ended it since we looked
                if not is_done(folder, unit) and not _has_failed(folder, unit.name, past):
                    place = f"[{names.index(unit.name) + 1}/{len(names)}] {unit.name}"
                    _run_one(unit, todo.configs[unit.name], folder, run, place)
                    finished()
                break
        else:
            if not waiting:
                units = console.count(len(left), "unit")
                console.note(f"waiting for other processes: {units} left")
                waiting = True
            sleep(pause)


def _run_one(unit: Unit, config: Config, folder: Path, run: Run, place: str) -> None:
    record = _failure(folder, unit.name)
    record.unlink(missing_ok=True)
    console.note(f"{place}: {', '.join(unit.stages) or unit.last}")
    begun = monotonic()
    try:
        run(config, folder / unit.folder, unit.last)
    except UserError as error:
        text = f"{error.what} {error.fix}".strip()
    except Exception:
        # one cell's accident, memory for example, should not cost the night's other cells
        text = traceback.format_exc().strip()
    else:
        result = results(folder, unit)
        if unit.last in result.get("stages", {}):
            console.note(
                f"{place}: {_figures(result, unit)}{console.duration(monotonic() - begun)}"
            )
            return
        text = f'the run ended without a result of stage "{unit.last}".'
    write_bytes(record, f"{text}\n".encode(errors="backslashreplace"))
    console.note(f"{place}: failed: {text.splitlines()[-1]}")


def _failed(
    units: Sequence[Unit], folder: Path, done: set[str], past: dict[str, int]
) -> dict[str, str]:
    """Units that failed since this process began, and those that need one of them."""
    failed: dict[str, str] = {}
    for unit in units:
        if unit.name in done:
            continue
        broken = [name for name in unit.needs if name in failed]
        if broken:
            failed[unit.name] = f"needs {broken[0]}"
        elif _has_failed(folder, unit.name, past):
            try:
                lines = _failure(folder, unit.name).read_text(errors="replace").splitlines()
            except OSError:  # a process that began later tries it again
                lines = []
            failed[unit.name] = lines[-1] if lines else "failed"
    return failed


def _has_failed(folder: Path, name: str, past: dict[str, int]) -> bool:
    """Since this process began, that is: what failed in the past is tried again."""
    return _stamp(folder, name) not in (0, past.get(name))


def _failure(folder: Path, name: str) -> Path:
    return folder / "failed" / f"{name}.txt"


def _stamp(folder: Path, name: str) -> int:
    """When a unit failed; 0 if it did not."""
    try:
        return _failure(folder, name).stat().st_mtime_ns
    except OSError:
        return 0


def results(folder: Path, unit: Unit) -> dict[str, Any]:
    """What results.json of a unit's run says; nothing if there is none."""
    try:
        content = json.loads((folder / unit.folder / "results.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_done(folder: Path, unit: Unit) -> bool:
    """results.json is written whole after a stage's evaluation: what stands there is finished.

    That it was run with the plan's settings is sure: plan.json has them, and refuses others.
    """
    return unit.last in results(folder, unit).get("stages", {})


def _figures(result: dict[str, Any], unit: Unit) -> str:
    """ "nAP50 33.4, bAP50 66.5, " as far as there are any."""
    stage = result["stages"][unit.last]
    known = [f"{key} {stage[key]:.1f}" for key in ("nAP50", "bAP50") if stage.get(key) is not None]
    return "".join(f"{text}, " for text in known)
