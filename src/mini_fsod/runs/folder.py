"""A run's folder: what is finished in it, what a changed configuration makes stale.

`config.yaml` (every key), a folder a stage with `checkpoint.safetensors`, `metrics.json` and
`log.jsonl`, and `results.json`. A stage is finished when its metrics are there.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from mini_fsod import checkpoint, console
from mini_fsod.config.load import STAGES, Config, from_file, parts
from mini_fsod.errors import UserError
from mini_fsod.files import digest, is_file, is_folder, real, write_bytes, write_json
from mini_fsod.files import lock
from mini_fsod.runs import inputs
from mini_fsod.train import state

CONFIG, METRICS, RESULTS = "config.yaml", "metrics.json", "results.json"
LOCK = ".lock"
POOL, CANDIDATES = "pool.json", "candidates.json"  # of `mine`
LEARNT = "pool.sha256"  # of `online`: which pools it learns from
EXTRA = "extra"  # the folder in `mine`, and its key among the figures
CHECKPOINT, PROGRESS = checkpoint.NAME, state.FILE


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Work in a folder, unless another process does."""
    with lock(out / LOCK) as alone:
        if not alone:
            raise UserError(
                f"{out}: another process is at work in this folder.",
                "Wait for its end, or choose another folder with --out.",
            )
        yield


def to_do(out: Path, first: str | None, wanted: Sequence[str]) -> list[str]:
    """The stages of `wanted` that are left, or are to be repeated from `first` on."""
    again = () if first is None else STAGES[STAGES.index(first) :]
    todo = [stage for stage in wanted if stage in again or metrics(out / stage) is None]
    gap = [stage for stage in todo if again and stage not in again]
    if gap:
        raise UserError(
            f"{out}: {first} cannot be repeated, since {gap[0]} is not finished.",
            f"`mini run` up to {first} first: without --from, or from {gap[0]} on.",
        )
    return todo


def refuse_stale(out: Path, config: Config, first: str | None) -> None:
    """What is there and stays there, begun or finished, must be what the configuration gives."""
    if is_file(out):
        raise UserError(f"{out}: is no folder.", "Choose another place for --out.")
    root = config.data.root
    if root is not None and real(out) == real(root if is_folder(root) else root.parent):
        raise UserError(f"{out}: is the data's own folder.", "Choose another one with --out.")
    if is_file(out / inputs.PLAN):
        raise UserError(f"{out}: a study lies here.", "Choose another folder with --out.")
    begun = _begun(out, first)
    if begun and not is_file(out / CONFIG):
        raise UserError(
            f"{out}: no {CONFIG} says how {', '.join(begun)} came about.",
            f"Repeat with --from {begun[0]}, or choose another folder with --out.",
        )
    changed = {stage: _changed(out, config, stage) for stage in begun}
    stale = [stage for stage in begun if changed[stage]]
    if stale:
        keys = ", ".join(changed[stale[-1]])
        if {*changed[stale[-1]]} <= {"data.metric", "data.test"}:
            raise UserError(
                f"{out}: {keys} changed, and figures of finished stages stay as they were.",
                "To score otherwise what is there: "
                f"mini predict {out} PICTURES --json > found.json, then mini eval. Or choose "
                "another folder with --out.",
            )
        raise UserError(
            f"{out}: the configuration is not the one of {' and '.join(stale)}, which "
            f"{'was' if len(stale) == 1 else 'were'} run here: {keys} changed.",
            f"Repeat with --from {stale[0]}, choose another folder with --out, or go on as it was: "
            f"mini run {out / CONFIG} -o {out}",
        )


def first_stale(out: Path, config: Config) -> str | None:
    """The first stage that is there and is not what the configuration gives."""
    known = is_file(out / CONFIG)
    return next((s for s in _begun(out) if not known or _changed(out, config, s)), None)


def _begun(out: Path, first: str | None = None) -> list[str]:
    """The stages that have something to show, of all or of those before `first`."""
    kept = STAGES if first is None else STAGES[: STAGES.index(first)]
    return [stage for stage in kept if has_begun(out / stage)]


def has_begun(stage: Path) -> bool:
    return any(is_file(stage / name) for name in (METRICS, CHECKPOINT, PROGRESS))


def _changed(out: Path, config: Config, stage: str) -> list[str]:
    """The keys in which the folder's configuration differs, as far as the stage depends on them."""
    before, now = _flat(parts(from_file(out / CONFIG), stage)), _flat(parts(config, stage))
    changed = sorted(k for k in {*before, *now} if not inputs.same(before.get(k), now.get(k)))
    changed += inputs.changed(out, before, now)
    learnt = out / "online" / LEARNT
    if stage in ("online", "tune") and is_file(learnt):
        known = dict(zip(pools(out), learnt.read_text().split(), strict=False))
        others = [pool for pool, content in known.items() if digest(pool) != content]
        changed += [f"the content of {pool}" for pool in others]
    for earlier in STAGES[: STAGES.index(stage) + 1]:
        figures = metrics(out / earlier) or {}
        given, content = Path(figures.get("checkpoint", "")), figures.get("checkpoint_sha256")
        if content and is_file(given) and digest(given) != content:
            changed.append(f"the content of {given}")
    return changed


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{leaf}": v for leaf, v in value.items()}
        else:
            flat[key] = value
    return flat


def prepare(out: Path, config: Config, first: str | None) -> None:
    """Make the folder ready: stages from `first` on are cleared, and what kills left behind."""
    again = () if first is None else STAGES[STAGES.index(first) :]
    try:
        if again:
            (out / RESULTS).unlink(missing_ok=True)
        for stage in reversed(STAGES):
            place = out / stage
            if is_folder(place) and (stage in again or not has_begun(place)):
                if stage == "mine":
                    keep_edited(place, out)
                # first, so that a kill in between leaves no stage that looks finished
                (place / METRICS).unlink(missing_ok=True)
                shutil.rmtree(place)
            if is_file(place / METRICS):
                (place / PROGRESS).unlink(missing_ok=True)
        for place in (out, *(out / stage for stage in STAGES)):
            for torn in place.glob(".*.part"):
                torn.unlink()
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot be cleared away ({error.strerror}).",
            "Choose another folder with --out.",
        ) from None
    inputs.write(out, config, begun=bool(_begun(out)))
    write_bytes(out / CONFIG, config.to_yaml().encode())


def pools(out: Path) -> list[Path]:
    """What there is to re-train on: the pool, and that of pictures from elsewhere."""
    found = (out / "mine" / POOL, out / "mine" / EXTRA / POOL)
    return [pool for pool in found if is_file(pool)]


def keep_edited(mine: Path, out: Path) -> None:
    """A pool that somebody has corrected by hand is not cleared away with its stage."""
    figures = metrics(mine) or {}
    for pool, about in ((mine / POOL, figures), (mine / EXTRA / POOL, figures.get(EXTRA, {}))):
        written = about.get("pool_sha256")
        if written is not None and is_file(pool) and digest(pool) != written:
            other = free_name(out, "pool-edited", ".json")
            pool.rename(other)
            console.note(f"the former pool had been edited: it is kept as {other.name}")


def free_name(out: Path, name: str, ending: str = "") -> Path:
    """A place in the folder that nothing has taken yet: name, name-2, name-3."""
    numbered = (f"{name}{'' if n == 1 else f'-{n}'}{ending}" for n in count(1))
    return next(out / text for text in numbered if not (out / text).exists())


def metrics(stage: Path) -> dict[str, Any] | None:
    """The figures of a finished stage; None where it is not finished."""
    path = stage / METRICS
    if not is_file(path):
        return None
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict) or "seconds" not in found:
            raise ValueError("not the figures of a stage")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}).", f"Repeat the stage with --from {stage.name}."
        ) from None
    return found


def write_results(
    out: Path, config: Config, command: str, device: str, shots: int
) -> dict[str, Any]:
    """`results.json`: the figures of all finished stages, and what they were made with."""
    found = {stage: metrics(out / stage) for stage in STAGES}
    results = {
        "stages": {stage: figures for stage, figures in found.items() if figures is not None},
        "seed": config.seed,
        "shots": config.shots.model_dump(mode="json") | {"k": shots},
        "versions": versions(),
        "device": device,
        "command": command,
        "commit": commit(),
    }
    write_json(out / RESULTS, results)
    return results


def results(out: Path) -> dict[str, Any] | None:
    """The content of `results.json`, if it tells of every finished stage."""
    try:
        found: dict[str, Any] = json.loads((out / RESULTS).read_bytes())
        whole = all(found["stages"].get(s) == metrics(out / s) for s in STAGES)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if whole else None


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
