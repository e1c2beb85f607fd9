"""A study whose runs take a moment: a plan without settings, and a worker that can be killed.

`python fake.py FOLDER` works in FOLDER until all is done. What happens is told in FOLDER/log, a
line "start NAME PID", "again NAME PID" (run though finished) or "end NAME PID" each.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mini_fsod.errors import UserError
from mini_fsod.files import write_json
from mini_fsod.files import lock
from mini_fsod.study.plan import Plan, join, plan
from mini_fsod.study.studies import Row, Study
from mini_fsod.study.worker import work

STAGES = ("base", "transfer", "mine", "tune")
KEYS = {
    "base": ("base.iterations", "base.minutes", "base.checkpoint", "split"),
    "transfer": (
        "transfer.iterations",
        "transfer.minutes",
        "transfer.checkpoint",
        "shots.k",
        "shots.seed",
    ),
    "mine": ("mine.threshold", "mine.given"),
    "tune": ("tune.data",),
}


def study(**changes: Any) -> Study:
    usual: dict[str, Any] = {
        "name": "fake",
        "source": "split{split}",
        "rows": (Row("TFA"),),
        "shots": (1, 5),
        "splits": (1,),
    }
    return Study(**usual | changes)


def resolve(source: str, sets: Sequence[str]) -> Any:
    """Sections of plain values: base.iterations and so on; the later of two sets counts."""
    values: dict[str, str | None] = {key: None for keys in KEYS.values() for key in keys}
    split, _, shots = source.partition("-")
    values |= {
        "split": split,
        "shots.k": shots.removesuffix("shot") or None,
        "base.iterations": "100",
        "transfer.iterations": "40",
    }
    values |= dict(text.split("=", 1) for text in sets)
    sections: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    return SimpleNamespace(
        **{s: SimpleNamespace(**v) for s, v in sections.items() if s}, all=values
    )


def parts(config: Any, stage: str) -> dict[str, Any]:
    """{section: {key: value}} of a stage and all before it."""
    found: dict[str, Any] = {}
    for known in STAGES[: STAGES.index(stage) + 1]:
        for key in KEYS[known]:
            section, _, name = key.rpartition(".")
            value = config.all[key]
            number = value is not None and value.isdigit()
            found.setdefault(section, {})[name] = int(value) if number else value
    return found


def stages_of(config: Any, last: str) -> Sequence[str]:
    """All up to the last, unless mining needs none before it."""
    lead = STAGES[: STAGES.index(last) + 1]
    return lead[2:] if config.all["mine.threshold"] == "truth" else lead


def planned(folder: Path, of: Study | None = None) -> Plan:
    return plan(of or study(), folder, resolve, parts, STAGES, stages_of)


def finish(folder: Path, stages: dict[str, Any], **more: Any) -> None:
    """What a run leaves behind."""
    write_json(folder / "results.json", {"stages": stages} | more)


def tell(folder: Path, word: str, name: str) -> None:
    handle = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{word} {name} {os.getpid()}\n".encode())
    os.close(handle)


def told(folder: Path, word: str) -> list[tuple[str, int]]:
    lines = (folder / "log").read_text().split("\n")[:-1] if (folder / "log").exists() else []
    found = [line.split() for line in lines]
    return [(name, int(pid)) for kind, name, pid in found if kind == word]


def main(folder: Path, seconds: float, fork: bool) -> None:
    todo = planned(folder, study(shots=(1, 2, 5), seeds=(0, 1), splits=(1, 2)))
    with lock(folder / "locks" / "study.lock", wait=True):
        join(folder, study(), todo.units)

    def run(config: Any, out: Path, last: str) -> None:
        done = (out / "results.json").exists()
        tell(folder, "again" if done else "start", out.name)
        if fork and os.fork() == 0:  # as loaders of pictures do
            tell(folder, "child", out.name)
            time.sleep(60)
            os._exit(0)
        time.sleep(seconds)
        if out.name in os.environ.get("FAIL", "").split():
            raise UserError("the disk is full.", "Buy another.")
        finish(out, {last: {"nAP50": 10.0}})
        tell(folder, "end", out.name)

    failed = work(todo, folder, run, finished=lambda: None, pause=0.05)
    for name, why in failed.items():
        print(f"{name}: {why}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), "fork" in sys.argv[3:])
