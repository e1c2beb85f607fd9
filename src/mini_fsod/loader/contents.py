"""Digests of pictures' contents. Each file is read once: its digest is kept with its time and size.

The digests of a data set are a file `contents-KEY.json` in the folder of caches, which may be
deleted at any time. Like git's index, it only saves reading files that did not change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mini_fsod.errors import UserError
from mini_fsod.files import open_regular, write_json
from mini_fsod.limits import DIGESTS_BYTES
from mini_fsod.loader.decode import cores
from mini_fsod.remote import RemotePath
from mini_fsod.state_files import Count, read_state_file

# of a file: length, time of its last change in nanoseconds, number on the disk, digest
Known = dict[str, Annotated[list[Count | str], Field(min_length=4, max_length=4)]]


def file_digests(paths: Sequence[Path], folder: Path) -> list[str]:
    """The digest of each file's content; those of files that did not change are in `folder`."""
    if not paths:
        return []
    names = [os.path.normpath(path.absolute()) for path in paths]
    root = hashlib.sha256(os.path.commonpath(names).encode("utf-8", "surrogateescape"))
    store = folder / f"contents-{root.hexdigest()[:16]}.json"
    known = _read(store)
    with ThreadPoolExecutor(cores()) as pool:
        found = dict(zip(names, pool.map(_digest, paths, map(known.get, names)), strict=True))
    if any(known.get(name) != entry for name, entry in found.items()):
        write_json(store, known | found)
    return [found[name][3] for name in names]


def _digest(path: Path, known: Sequence[Any] | None) -> list[Any]:
    """Length, time, number and digest of a file; the known ones if it did not change."""
    try:
        if isinstance(path, RemotePath):
            return [0, 0, 0, path.digest()]
        with open_regular(path) as file:
            about = os.fstat(file.fileno())
            state = [about.st_size, about.st_mtime_ns, about.st_ino]
            if known is not None and list(known[:3]) == state:
                return list(known)
            return [*state, hashlib.file_digest(file, "blake2b").hexdigest()[:32]]
    except OSError as error:
        raise UserError(
            f"{path}: the picture cannot be read ({error.strerror}).",
            "Restore it or remove the image.",
        ) from None


def _read(store: Path) -> dict[str, list[Any]]:
    """What is known, nothing where the file is damaged: it only saves time."""
    try:
        found: dict[str, list[Any]] | None = read_state_file(store, Known, "", DIGESTS_BYTES)
    except UserError:
        return {}
    return {name: list(entry) for name, entry in (found or {}).items()}
