"""What the result of a stage depends on, as one hash.

The hash covers the stage's own keys, the results it builds on, the content of the files and data it
reads, and the format number of the code. Equal hashes mean equal results, so a result is computed
once, whichever run or study asks for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from mini_fsod.config.schema import STAGES, Config, Training
from mini_fsod.config.values import torchvision_name
from mini_fsod.errors import UserError
from mini_fsod.files import digest, is_file
from mini_fsod.limits import DETECTIONS_BYTES, WEIGHTS_BYTES
from mini_fsod.runs.pool import EXTRA_POOL, mined_folder

FORMAT = 3  # raise it when the same settings give another result than before

# Keys of the section `mine` that the scan reads; `mine` reads all of them
SCAN_KEYS = (
    "images", "candidates", "scan_short", "min_score", "box_correction", "detections", "extra",
    "extra_only",
)  # fmt: skip
# Likewise of the section `discriminator`; whiten, refine and compete are read by `mine` alone
DISCRIMINATOR_SCAN_KEYS = ("weights", "short", "crop", "caffe")
HASHED_BYTES = max(DETECTIONS_BYTES, WEIGHTS_BYTES)
NOT_TRAINED = ("checkpoint", "save_seconds", "drop", "sure")  # change no training of their stage
ONLINE_MINE_KEYS = ("images", "drop_on_base", "drop_nested")  # of `mine`, read by `online` too


class Content(Protocol):
    """Where the content of data and files is looked up."""

    def data(self, part: str) -> str | None:
        """The digest of a part of the data: base, mined, shots or classes."""

    def file(self, name: str | Path | None) -> str | None:
        """The digest of a file; a name that is no file stands for itself."""

    def extra(self, folder: Path | None) -> str | None:
        """The digest of a folder of pictures without annotations."""

    def pools(self) -> Sequence[str]:
        """What re-training reads of mining: the pools, and the candidates."""


def needs(config: Config, stage: str) -> tuple[str, ...]:
    """The stages whose results a stage reads."""
    given = ("base",) if config.base.checkpoint else ()  # its finds stand in for missing labels
    return {
        "base": (),
        "transfer": given if config.transfer.checkpoint else ("base",),
        "scan": given if config.mine.detections else (*given, "transfer"),
        "mine": () if config.mine.pool else ("scan",),
        "online": (
            *given,
            *(("transfer",) if config.online.start == "transfer" else ()),
            *(("mine",) if config.online.uses_pool else ()),
        ),
        "tune": (*given, "online"),
    }[stage]


def stages_of(config: Config, last: str) -> tuple[str, ...]:
    """The stages that lead to the result of `last`, in order; only those that `last` depends on."""
    wanted = {last}
    for stage in reversed(STAGES):
        if stage in wanted:
            wanted.update(needs(config, stage))
    return tuple(stage for stage in STAGES if stage in wanted)


def stage_key(config: Config, stage: str, earlier: Mapping[str, str], content: Content) -> str:
    """The hash of a stage's result; `earlier` has those of the stages it needs."""
    parts = {
        "format": FORMAT,
        "stage": stage,
        # of mining only the content of the pool counts: see `Content.pools`
        "needs": {name: earlier[name] for name in needs(config, stage) if name != "mine"},
        **_DEPENDS[stage](config, content),
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def static_keys(config: Config, last: str) -> dict[str, str]:
    """A key for each stage up to `last` from the configuration alone: no data is read.

    Equal keys of two configurations mean that the stage is computed once for both.
    """
    content = _Unread(config)
    keys: dict[str, str] = {}
    for stage in stages_of(config, last):
        keys[stage] = stage_key(config, stage, keys, content)
        content.mined = keys.get("mine", "")
    return keys


def file_content(name: str | Path | None) -> str | None:
    """The digest of a file; a name that is no file stands for itself. MODEL:FILE is a file too."""
    if name is None:
        return None
    text = str(name)
    for candidate in (text, text.partition(":")[2]):
        if candidate and is_file(path := Path(candidate)):
            about = path.stat()
            model = text.removesuffix(candidate)
            return model + _digest(path, about.st_size, about.st_mtime_ns, about.st_ino)
    return text


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, changed: int, inode: int) -> str:
    """Read once by a process; the other arguments tell whether the file is still the same."""
    if size > HASHED_BYTES:
        what = f"{path}: larger than {HASHED_BYTES >> 20:,} MB."
        raise UserError(what, "No input of a run is that large: check the path.")
    return digest(path)


def _given(path: Path, stage: str, content: Content) -> str | None:
    from mini_fsod import checkpoint  # needs PyTorch, the rest of this module does not

    return content.file(checkpoint.find(path, stage))


def _given_base(path: Path, content: Content) -> str | None:
    """A detector of torchvision's is its name: the file's hash is a part of it."""
    if torchvision_name(path) is not None:
        return content.file(str(path))
    return _given(path, "base", content)


def _base(config: Config, content: Content) -> dict[str, Any]:
    if config.base.checkpoint is not None:
        return {
            "checkpoint": _given_base(config.base.checkpoint, content),
            "drop": config.base.drop,
            "detector": _detector(config, content),
        }
    return {
        "seed": config.seed,
        "data": content.data("base"),
        "detector": _detector(config, content),
        "views": _views(config),
        "train": _training(config.base),
    }


def _transfer(config: Config, content: Content) -> dict[str, Any]:
    if config.transfer.checkpoint is not None:
        return {
            "checkpoint": _given(config.transfer.checkpoint, "transfer", content),
            "classes": content.data("classes"),
            "detector": _detector(config, content),
        }
    known = config.transfer.data == "known"
    return {
        "seed": config.seed,
        "classes": content.data("classes"),
        "shots": content.data("shots"),
        "boxes": content.data("mined") if known else None,
        "found": content.data("base") if known and config.base.checkpoint else None,
        "views": config.views.model_dump(exclude={"zoom"}),
        "train": _training(config.transfer, "calibration", "mined_shots"),
        **_mined_shots(config, content),
    }


def _mined_shots(config: Config, content: Content) -> dict[str, Any]:
    """Where the few-shot detector is fine-tuned twice, it depends on how shots are mined."""
    count = config.transfer.mined_shots
    if not count:
        return {}
    found = {"scan": _scan(config, content), "mine": _choice(config, content)}
    return {"mined_shots": count, **found}


def _scan(config: Config, content: Content) -> dict[str, Any]:
    mine, crop = config.mine, config.discriminator.crop
    return {
        "data": content.data("mined"),
        "base": content.data("base"),
        "shots": content.data("shots"),
        "classes": content.data("classes"),
        "extra": content.extra(mine.extra),
        "detections": content.file(mine.detections),
        "views": config.views.model_dump(include={"test", "long"}),
        "mine": mine.model_dump(include={*SCAN_KEYS}, exclude={"extra", "detections"}),
        "discriminator": config.discriminator.model_dump(
            include={*DISCRIMINATOR_SCAN_KEYS}, exclude={"weights"}
        )
        # as before null had another meaning than file, so that earlier results are found
        | {"crop": "whole" if crop is None else None if crop == "file" else crop},
        "weights": content.file(config.discriminator.weights),
    }


def _mine(config: Config, content: Content) -> dict[str, Any]:
    mine = config.mine
    if mine.pool is not None:
        names = ("candidates.json", "extra/pool.json", "extra/candidates.json", "extra/base.json")
        beside = [mined_folder(mine.pool) / name for name in names]
        return {
            "pool": content.file(mine.pool),
            "beside": [content.file(path) for path in (*beside, mine.pool.parent / EXTRA_POOL)],
            "extra": content.extra(mine.extra),
        }
    return _choice(config, content)


def _choice(config: Config, content: Content) -> dict[str, Any]:
    """How boxes are chosen from a scan."""
    mine = config.mine
    return {
        "mine": mine.model_dump(mode="json", exclude={"pool", "segmenter", *SCAN_KEYS}),
        "segmenter": content.file(mine.segmenter),
        "sure": _sure(config) if mine.drop_on_base else None,
        "calibration": config.transfer.calibration,
        "discriminator": config.discriminator.model_dump(
            mode="json", exclude={*DISCRIMINATOR_SCAN_KEYS}
        ),
    }


def _sure(config: Config) -> float | None:
    """`base.sure`, where base labels may be missing."""
    return config.base.sure if config.base.checkpoint or config.mine.extra else None


def _online(config: Config, content: Content) -> dict[str, Any]:
    online = config.online
    from_weights = online.start == "weights"
    return {
        "seed": config.seed,
        "classes": content.data("classes"),
        "data": content.data("mined"),
        "shots": content.data("shots") if online.shots else None,
        "pools": [*content.pools()] if online.uses_pool else [],
        "extra": content.extra(config.mine.extra) if online.uses_pool else None,
        "sure": _sure(config),
        "detector": _detector(config, content) if from_weights else None,
        "views": _views(config),
        "mine": config.mine.model_dump(include={*ONLINE_MINE_KEYS}),
        "train": _training(online),
    }


def _tune(config: Config, content: Content) -> dict[str, Any]:
    if config.tune.data == "none":
        return {"train": None}
    known = config.tune.data == "known"
    return {
        "seed": config.seed,
        "shots": content.data("shots"),
        "boxes": content.data("mined") if known else None,
        "found": content.data("base") if known and config.base.checkpoint else None,
        "views": config.views.model_dump(exclude={"zoom"}),
        "train": _training(config.tune),
    }


_DEPENDS: dict[str, Callable[[Config, Content], dict[str, Any]]] = {
    "base": _base, "transfer": _transfer, "scan": _scan,
    "mine": _mine, "online": _online, "tune": _tune,
}  # fmt: skip


def _training(section: Training, *others: str) -> dict[str, Any]:
    """The keys of a stage that trains, without `others`, which other stages read. How often it
    saves its state changes nothing.
    """
    excluded = {*NOT_TRAINED, "bf16", *others}
    keys = section.model_dump(mode="json", exclude=excluded)
    return keys | {"rate": section.learning_rate, "bf16": str(section.bf16)}


def _detector(config: Config, content: Content) -> dict[str, Any]:
    test = config.views.model_dump(include={"test", "long"})  # stored in the checkpoint
    keys = config.detector.model_dump(mode="json", exclude={"weights"})
    return keys | test | {"weights": content.file(config.detector.weights)}


def _views(config: Config) -> dict[str, Any]:
    return config.views.model_dump(mode="json", exclude={"few_shot"})


class _Unread:
    """Content as the configuration names it, for `static_keys`."""

    def __init__(self, config: Config) -> None:
        self._data = config.data.model_dump_json(
            include={
                *("root", "pictures", "split", "novel", "train", "test"),
                *("unlisted", "leave_out"),
            }
        )
        self._shots = config.shots.model_dump_json()
        self.mined = ""

    def data(self, part: str) -> str:
        return f"{part} {self._data} {self._shots if part == 'shots' else ''}"

    def file(self, name: str | Path | None) -> str:
        return str(name)

    def extra(self, folder: Path | None) -> str:
        return str(folder)

    def pools(self) -> Sequence[str]:
        return [self.mined]
