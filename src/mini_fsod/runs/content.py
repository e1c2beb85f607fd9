"""The content of a run's data and files, for the hashes of its stages (`identity`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_fsod.data.folder import pictures_below
from mini_fsod.files import digest, is_file
from mini_fsod.runs.identity import file_content
from mini_fsod.runs.pool import current_pools
from mini_fsod.runs.run import Run


class RunContent:
    """What `identity.Content` asks for, of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def data(self, part: str) -> str | None:
        if part == "classes":
            labels = self._run.data.labels
            return hash_of([labels.base, labels.novel])
        return self._run.data.digest_of(part)

    def file(self, name: str | Path | None) -> str | None:
        return file_content(name)

    def extra(self, folder: Path | None) -> str | None:
        """Names and sizes of the pictures: to read all of them would take minutes."""
        if folder is None:
            return None
        names = pictures_below(folder, lambda _: None, lambda _: None)
        return hash_of([[name, (folder / name).stat().st_size] for name in names])

    def pools(self) -> Sequence[str]:
        run, mined = self._run, self._run.folder("mine")
        paths = current_pools(run.pool.parent, mined)
        candidates = mined / "candidates.json"
        if run.config.online.ignore_candidates and is_file(candidates):
            paths.append(candidates)
        return [digest(path) for path in paths]


def hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
