"""What `mini check` is given: a data set with options, or a configuration that names all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mini_fsod import console
from mini_fsod.config.load import is_configuration, resolve
from mini_fsod.data.text import shown
from mini_fsod.errors import UserError
from mini_fsod.labels import refuse_split_with_novel

if TYPE_CHECKING:
    from mini_fsod.config.schema import Config
    from mini_fsod.data.dataset import Dataset


class Given(NamedTuple):
    data: Path
    root: Path | None  # folder of its pictures, if elsewhere
    split: str | None
    novel: list[str] | None
    boxes: Path | None  # of the new classes, in a file of their own
    config: Config | None = None

    @property
    def has_detector(self) -> bool:
        """Whether base classes need no labels."""
        return self.config is not None and self.config.base.checkpoint is not None

    @property
    def uses_unlisted(self) -> bool:
        """Whether pictures that the annotations do not list have a use."""
        return self.config is not None and (
            self.config.data.unlisted or self.config.mine.extra is not None
        )

    def shots(self, data: Dataset) -> tuple[Path, Dataset] | None:
        """`boxes` and its content; its pictures are found as a run or `mini init` finds them."""
        if self.boxes is None:
            return None
        from mini_fsod.runs.shots import read_shot_file, refuse_missing_pictures
        from mini_fsod.start.look import find_shots

        if self.config is None:
            return self.boxes, find_shots(self.boxes, data, self.root or self.data)[0]
        shots = read_shot_file(self.boxes, data, self.config.shots.root)
        refuse_missing_pictures(self.boxes, shots)
        return self.boxes, shots


def given(
    path: Path,
    root: Path | None,
    split: str | None,
    novel: list[str] | None,
    boxes: Path | None,
) -> Given:
    """The data that a command's arguments name; a UserError where they do not go together."""
    refuse_split_with_novel(split, novel)
    if not is_configuration(path):
        return Given(path, root, split, novel, boxes)
    if root or split or novel or boxes:
        raise UserError(
            f"{path}: a configuration, which names data, classes and boxes itself.",
            "Leave out --root, --split, --novel and --boxes, or give the data instead of it.",
        )
    config = resolve(path)
    config.ready()
    data = config.data
    assert data.root is not None  # refused above
    console.note(f"{path}: the data of this configuration, {data.root}")
    return Given(data.root, data.pictures, data.split, [*data.novel], config.shots.file, config)


def shot_notes(boxes: Path, shots: Dataset, novel: Sequence[str]) -> list[str]:
    """How many boxes of each new class there are in a file of their own."""
    from mini_fsod.data.subsets import is_of, is_target

    usable = is_target(shots)
    counts = {name: int((usable & is_of(shots, (name,))).sum()) for name in novel}
    listed = ", ".join(f"{count:,} of {shown(name)}" for name, count in counts.items() if count)
    return [f"boxes in {boxes}: {listed}"] if listed else []
