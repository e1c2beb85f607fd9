"""The pool in a run's folder, which people may correct: `pool.json`, and `pool-extra.json`.

The stage `mine` keeps its own copy. The run's copy follows it until somebody edits it; an edited
pool is what re-training learns from, as long as mining gives the same.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from mini_fsod import console
from mini_fsod.errors import UserError
from mini_fsod.files import digest, is_file, open_regular, write_bytes, write_json
from mini_fsod.state_files import Kind, read_state_file

POOL, EXTRA_POOL = "pool.json", "pool-extra.json"
MINED = {POOL: "pool.json", EXTRA_POOL: "extra/pool.json"}  # run's file: file of `mine`
ORIGIN = ".pools.json"  # which result each copy was made from, and its digest


class Origin(Kind):
    result: str
    sha256: str


def refresh_pools(run: Path, mined: Path) -> None:
    """Bring the pools of a run's folder up to date with the result of `mine`.

    An edited pool of the same mining stays; one of another mining is kept under another name.
    """
    origins = _origins(run)
    for name, source_name in MINED.items():
        target, source = run / name, mined / source_name
        origin = origins.get(name, {})
        if is_file(target) and _is_edited(target, source, origin):
            if _belongs(source, mined, origin):
                continue
            other = _free_name(run, target.stem)
            target.rename(other)
            console.note(f"{name} was edited, but belongs to another mining: now {other.name}")
        if is_file(source):
            write_bytes(target, source.read_bytes())
            origins[name] = {"result": mined.name, "sha256": digest(target)}
        else:
            target.unlink(missing_ok=True)
            origins.pop(name, None)
    if origins != _origins(run):
        write_json(run / ORIGIN, origins)


def current_pools(run: Path, mined: Path) -> list[Path]:
    """The pools to re-train on, as `refresh_pools` leaves them: edited ones, else those mined."""
    origins, pools = _origins(run), []
    for name, source_name in MINED.items():
        target, source, origin = run / name, mined / source_name, origins.get(name, {})
        edited = is_file(target) and _is_edited(target, source, origin)
        pools.append(target if edited and _belongs(source, mined, origin) else source)
    return [path for path in pools if is_file(path)]


def _is_edited(target: Path, source: Path, origin: dict[str, str]) -> bool:
    mined = digest(source) if is_file(source) else None
    return digest(target) not in (mined, origin.get("sha256"))


def _belongs(source: Path, mined: Path, origin: dict[str, str]) -> bool:
    """Whether a run's copy was made from this mining."""
    return origin.get("result") in (mined.name, None) and is_file(source)


def mined_folder(pool: Path) -> Path:
    """The folder with the other files about a pool: its own, or the stage `mine` of a run."""
    stage = pool.parent / "mine"
    beside = is_file(pool.parent / "candidates.json")
    return stage if not beside and is_file(stage / "candidates.json") else pool.parent


def edits(run: Path, mined: Path) -> dict[str, Any]:
    """How the run's pool differs from the mined one: boxes removed, added, relabelled."""
    target, source = run / POOL, mined / MINED[POOL]
    if not is_file(target) or not is_file(source) or digest(target) == digest(source):
        return {"edited": False}
    before, after = _boxes(source), _boxes(target)
    removed, added = before - after, after - before
    classless = [Counter(box[:-1] for box in boxes.elements()) for boxes in (removed, added)]
    relabelled = (classless[0] & classless[1]).total()
    return {
        "edited": True,
        "boxes": after.total(),
        "removed": removed.total() - relabelled,
        "added": added.total() - relabelled,
        "relabelled": relabelled,
    }


def boxes_of_pool(pool: Path) -> int:
    """How many boxes a pool in the run's folder has; 0 where there is none."""
    return _boxes(pool).total() if is_file(pool) else 0


def _boxes(pool: Path) -> Counter[tuple[Any, ...]]:
    """Picture, box and class of each box; nothing where the file is not what mini writes."""
    try:
        with open_regular(pool) as file:
            content = json.load(file)
        names = {image["id"]: image["file_name"] for image in content["images"]}
        classes = {category["id"]: category["name"] for category in content["categories"]}
        return Counter(
            (
                names[box["image_id"]],
                *(round(float(side), 1) for side in box["bbox"]),
                classes[box["category_id"]],
            )
            for box in content["annotations"]
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Counter()  # the reader of pools says what is wrong


def _origins(run: Path) -> dict[str, dict[str, str]]:
    try:
        found = read_state_file(run / ORIGIN, dict[str, Origin], "") or {}
    except UserError:  # the pools count as edited then
        return {}
    return {name: found[name] for name in MINED if name in found}


def _free_name(run: Path, stem: str) -> Path:
    """STEM-edited.json, or STEM-edited-2.json and so on."""
    numbered = (f"{stem}-edited{'' if n == 1 else f'-{n}'}.json" for n in count(1))
    return next(run / name for name in numbered if not (run / name).exists())
