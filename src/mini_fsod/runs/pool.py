"""The pool in a run's folder, which people may correct: `pool.json`, and `pool-extra.json`.

The stage `mine` keeps its own copy. The run's copy follows it until somebody edits it; an edited
pool is what re-training learns from, as long as mining gives the same. The decisions of
`mini review` are done to the run's copy, whatever mining gives.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from mini_fsod import console
from mini_fsod.data.json_stream import JsonError, records
from mini_fsod.errors import UserError
from mini_fsod.files import digest, dumps, is_file, read_bytes, write_bytes, write_json
from mini_fsod.limits import POOL_BYTES, RUN_POOL_BYTES
from mini_fsod.mining.names import REVIEWED
from mini_fsod.review.correct import accepted_and_rejected, corrected_pool
from mini_fsod.review.decisions import JOURNAL, Decision, read_decisions, settled
from mini_fsod.state_files import Count, Kind, read_state_file

POOL, EXTRA_POOL = "pool.json", "pool-extra.json"
MINED = {POOL: "pool.json", EXTRA_POOL: "extra/pool.json"}  # run's file: file of `mine`
ORIGIN = ".pools.json"  # which result each copy was made from, and its digest


class Origin(Kind):
    result: str
    sha256: str
    decisions: Count = 0  # number of review decisions applied to it
    edited: bool = False  # it was edited in another tool before they were applied


def refresh_pools(run: Path, mined: Path) -> None:
    """Bring the pools of a run's folder up to date with the result of `mine` and the review.

    An edited pool of the same mining stays; one of another mining is kept under another name. What
    `mini review` has decided is done to either: of a pool that was edited later, the edit counts.
    """
    origins = _origins(run)
    decisions = read_decisions(run / JOURNAL)
    for name, source_name in MINED.items():
        target, source = run / name, mined / source_name
        about = [d for d in decisions if d.do == "undo" or d.place.extra == (name == EXTRA_POOL)]
        new = None
        if is_file(source):
            new = _corrected(source, source, about, 0) or _content(source)
        origin = origins.get(name, {})
        edited = False
        if is_file(target):
            ours = {origin.get("sha256"), _sha256(new)}
            ours |= {digest(source)} if is_file(source) else set()
            edited = digest(target) not in ours or origin.get("edited", False)
            if edited and (new is None or origin.get("result") not in (mined.name, None)):
                other = _free_name(run, target.stem)
                target.rename(other)
                console.note(
                    f"{name} was edited, but mining gives other boxes now: your edited file was "
                    f"renamed to {other.name}"
                )
                edited = False
        if edited:
            since = origin.get("decisions", 0)
            new = _corrected(target, source, about, since) if since < len(decisions) else None
        if new is not None:
            write_bytes(target, new)
            origins[name] = {"result": mined.name, "sha256": _sha256(new)}
            origins[name] |= {"decisions": len(decisions)} if decisions else {}
            origins[name] |= {"edited": True} if edited else {}
        elif not edited:
            target.unlink(missing_ok=True)
            origins.pop(name, None)
    if origins != _origins(run):
        write_json(run / ORIGIN, origins)


def _corrected(base: Path, source: Path, decisions: Sequence[Decision], since: int) -> bytes | None:
    """The content of the pool `base` with the decisions done to it; None where it is no pool.

    `source` is as it was mined, and names all pictures.
    """
    unchanged = _content(base)
    places = [decision.place for decision in decisions if decision.do != "undo"]
    if not places:
        return unchanged
    try:
        pool = _read(base)
        corrected = corrected_pool(pool, decisions, places[0].extra, pictures_in(source), since)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # its reader says what is wrong
    return unchanged if corrected == pool else (dumps(corrected) + "\n").encode()


def _sha256(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


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


def accepted_boxes(run: Path) -> int:
    """How many boxes `mini review` has accepted: mined ones, corrected ones and added ones."""
    return len(accepted_and_rejected(settled(read_decisions(run / JOURNAL)))[0])


def pictures_in(pool: Path) -> list[str]:
    """The names of the pictures in a pool that the stage `mine` wrote: all that were mined."""
    return [image["file_name"] for image in _read(pool)["images"]]


def has_accepted(pool: Path) -> bool:
    """Whether a person has accepted boxes of a pool: re-training never drops these."""
    try:
        boxes = _read(pool)["annotations"]
        return any(box.get("score", REVIEWED) == REVIEWED for box in boxes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False  # the reader of pools says what is wrong


def boxes_of_pool(pool: Path) -> int:
    """How many boxes a pool in the run's folder has; 0 where there is none."""
    return _boxes(pool).total() if is_file(pool) else 0


def copy_pools(run: Path, target: Path) -> None:
    """Copy a run's pools, and what `refresh_pools` needs, to try it elsewhere."""
    for name in (*MINED, ORIGIN, JOURNAL):
        if is_file(run / name):
            write_bytes(target / name, _content(run / name))


def _boxes(pool: Path) -> Counter[tuple[Any, ...]]:
    """Picture, box and class of each box; nothing where the file is not what mini writes."""
    try:
        names: dict[Any, Any] = {}
        classes: dict[Any, Any] = {}
        boxes: Counter[tuple[Any, ...]] = Counter()
        for key, _, record in records(pool):
            if key == "images":
                names[record["id"]] = record["file_name"]
            elif key == "categories":
                classes[record["id"]] = record["name"]
            elif key == "annotations" and record:
                sides = (round(float(side), 1) for side in record["bbox"])
                boxes[record["image_id"], *sides, record["category_id"]] += 1
        return Counter(
            {
                (names[image], *sides, classes[category]): n
                for (image, *sides, category), n in boxes.items()
            }
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, JsonError):
        return Counter()  # the reader of pools says what is wrong


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, RUN_POOL_BYTES)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}).", "Move it away: it is written again."
        ) from None


def _read(pool: Path) -> Any:
    return json.loads(read_bytes(pool, POOL_BYTES))


def _origins(run: Path) -> dict[str, dict[str, Any]]:
    try:
        found = read_state_file(run / ORIGIN, dict[str, Origin], "") or {}
    except UserError:  # the pools count as edited then
        return {}
    return {name: found[name] for name in MINED if name in found}


def _free_name(run: Path, stem: str) -> Path:
    """STEM-edited.json, or STEM-edited-2.json and so on."""
    numbered = (f"{stem}-edited{'' if n == 1 else f'-{n}'}.json" for n in count(1))
    return next(run / name for name in numbered if not (run / name).exists())
