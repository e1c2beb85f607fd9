"""The content of a run's data and files, for the hashes of its stages (`identity`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_fsod.data.folder import pictures_below
from mini_fsod.files import digest, is_file
from mini_fsod.mining.base_objects import BASE_OBJECTS
from mini_fsod.mining.extra import EXTRA
from mini_fsod.mining.pool_io import CANDIDATES
from mini_fsod.runs.identity import file_content
from mini_fsod.runs.pool import has_accepted
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
        paths = [run.pool, run.extra_pool, mined / BASE_OBJECTS, mined / EXTRA / BASE_OBJECTS]
        if run.config.online.ignore_candidates or run.data.is_open:
            paths.append(mined / CANDIDATES)
        # before there was a review, boxes without a score could be dropped
        accepted = ["accepted"] if any(map(has_accepted, (run.pool, run.extra_pool))) else []
        return [*(digest(path) for path in paths if is_file(path)), *accepted]


def hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
