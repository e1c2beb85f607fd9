"""What goes into a run beside its keys: the files that they name, and the data's annotations.

`inputs.json` tells in which state they were. Another content of a file makes stages stale; of
annotations, which are younger on every machine they are copied to, people are told.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from mini_fsod.config.load import Config
from mini_fsod.files import digest, is_file, mode, real, write_json

NAME = "inputs.json"
PLAN = "plan.json"  # of a study
DATA = "data.root"
# keys that may name a file, whose content counts
FILES = (
    "shots.file",
    "shots.official",
    "detector.weights",
    "mine.detections",
    "mine.discriminator",
    "mine.given",
)
ANNOTATIONS = (".json", ".xml", ".txt", ".yaml", ".yml")

State = dict[str, dict[str, Any]]  # by key


def write(out: Path, config: Config, begun: bool) -> None:
    """The state of now. What has begun with other annotations has not seen those of now."""
    state: State = {}
    for key in FILES:
        section, name = key.split(".")
        text = str(getattr(getattr(config, section), name) or "")
        names = (text, text.partition(":")[2])  # a discriminator may be MODEL:FILE
        path = next((Path(name) for name in names if name and is_file(Path(name))), None)
        if path is not None:
            state[key] = {"file": str(path), "sha256": digest(path)} | _stamp(path)
    earlier = read(out).get(DATA)
    root = config.data.root
    if begun and earlier is not None and same(earlier["file"], str(root)):
        state[DATA] = earlier
    elif root is not None:
        state[DATA] = {"file": str(root), "sha256": annotations_of(root)}
    if state != read(out):
        write_json(out / NAME, state)


def read(out: Path) -> State:
    """What was written; nothing where that is not known."""
    try:
        found = json.loads((out / NAME).read_bytes())
        return {key: was for key, was in found.items() if isinstance(was, dict) and "file" in was}
    except (OSError, ValueError, AttributeError):
        return {}


def changed(out: Path, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The files that are called as before and have other content; keys of both as "shots.file"."""
    return [
        f"the content of {was['file']}"
        for key, was in read(out).items()
        if key in FILES
        and now.get(key) is not None
        and same(now[key], before.get(key))
        and _is_other(Path(was["file"]), was)
    ]


def same(one: Any, other: Any) -> bool:
    """Whether two values of a key mean the same: one place may have a name from here, and one from
    the root.
    """
    if isinstance(one, str) and isinstance(other, str) and mode(Path(one)):
        return real(Path(one)) == real(Path(other))
    return bool(one == other)


def annotations_changed(out: Path, root: Path | None) -> bool:
    """Whether the data is the one of a run, and its annotations are not."""
    was = read(out).get(DATA)
    if root is None or was is None or not same(was["file"], str(root)):
        return False
    return bool(was["sha256"] != annotations_of(root))


def annotations_of(root: Path) -> str:
    """A digest of names, sizes and ages of a data set's annotations, in its folders or a file."""
    found = []
    if is_file(root):
        found.append(("", *_stamp(root).values()))
    for folder, folders, names in os.walk(root):
        folders.sort()
        if {NAME, PLAN} & {*names}:  # a run or a study, in the data's folder
            folders.clear()
            continue
        for name in sorted(name for name in names if name.lower().endswith(ANNOTATIONS)):
            path = Path(folder, name)
            if is_file(path):
                found.append((str(path.relative_to(root)), *_stamp(path).values()))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _stamp(path: Path) -> dict[str, int]:
    about = path.stat()
    return {"bytes": about.st_size, "changed_ns": about.st_mtime_ns}


def _is_other(path: Path, was: dict[str, Any]) -> bool:
    """Whether a file that is there has other content. One of the same age is not read again."""
    if not is_file(path) or _stamp(path).items() <= was.items():
        return False
    return digest(path) != was.get("sha256")
