"""The figures that show pictures: examples of mined boxes, and training pictures with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mini_fsod.config.load import resolve
from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.pictures import drawn_size, picture_size
from mini_fsod.data.subsets import is_of, is_target
from mini_fsod.errors import UserError
from mini_fsod.files import CONFIG_FILE, is_file
from mini_fsod.loader.decode import decode
from mini_fsod.mining.audit import TRUE, GroundTruth, judge_candidates, seem_complete
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.pool_io import POOL, Pool, read_pool
from mini_fsod.runs.data import RunData

EXAMPLES = 6  # mined boxes of a class
MARGIN = 0.3  # around a box, in shares of its longer side
MAX_SIDE = 1000  # pixels of a picture as it is decoded
BASE, NOVEL, WRONG = "#2DA44E", "#FF5C28", "#CF222E"
ROW_INCHES = 1.35  # height of a row of examples
TEASER = 2  # pictures


class _Mined(NamedTuple):
    config: Config
    data: Dataset  # with all boxes, novel ones too
    pool: Pool
    right: Any  # (n,) bool: by the annotations; None where they do not tell
    classes: tuple[str, ...]  # novel


def _mined(run: Path) -> _Mined | None:
    """What a run has mined; None without a pool, or if its data is not here."""
    path = run / "mine" / POOL
    if not is_file(path):
        return None
    try:
        config = resolve(run / CONFIG_FILE)
        of_run = RunData(config, torch.device("cpu"))
        data, labels = of_run.mined, of_run.labels
        pool = read_pool(path, data, labels)
        shots = of_run.novel_shots
    except UserError:
        return None
    found = Candidates(pool.image, pool.label, pool.xywh, pool.score, pool.score, None)
    truth = GroundTruth.of(data, shots, labels)
    right = None
    if seem_complete(len(truth.hidden), len(pool)):
        right = judge_candidates(found, truth).kind == TRUE
    return _Mined(config, data, pool, right, labels.novel)


def draw_mined_examples(figure: Any, text: str, runs: Sequence[Path]) -> bool:
    """The best boxes of each class: those of the last row that has mined.

    A row that leaves a class out shows what was mined for that class instead.
    """
    left_out: dict[str, tuple[_Mined, int]] = {}
    last: _Mined | None = None
    for run in runs:
        mined = _mined(run)
        if mined is None:
            continue
        last = mined
        name = mined.config.data.leave_out
        if name is not None:
            left_out[f"without\n{name}"] = mined, mined.classes.index(name)
    if last is None:
        return False
    lines = left_out or {name: (last, n) for n, name in enumerate(last.classes)}
    figure.set_figheight(ROW_INCHES * len(lines))
    grid = figure.subplots(len(lines), EXAMPLES, squeeze=False)
    for axes, (title, (mined, label)) in zip(grid, lines.items(), strict=True):
        best = np.flatnonzero(mined.pool.label == label)
        best = best[np.argsort(-mined.pool.score[best], kind="stable")][:EXAMPLES]
        for place in axes:
            place.set_axis_off()
        axes[0].text(-0.12, 0.5, title, ha="right", va="center", transform=axes[0].transAxes)
        for place, row in zip(axes, best.tolist(), strict=False):
            _draw_crop(place, mined, row, text)
    return True


def _draw_crop(axes: Any, mined: _Mined, row: int, text: str) -> None:
    from matplotlib.patches import Rectangle

    picture, scale = _decoded(mined.data, int(mined.pool.image[row]))
    x, y, width, height = (mined.pool.xywh[row] * scale).tolist()
    half = max(width, height) * (0.5 + MARGIN)
    left, top = max(0, round(x + width / 2 - half)), max(0, round(y + height / 2 - half))
    crop = picture[top : round(y + height / 2 + half), left : round(x + width / 2 + half)]
    right = None if mined.right is None else bool(mined.right[row])
    colour = NOVEL if right is None else BASE if right else WRONG
    axes.imshow(crop)
    line = "--" if right is False else "-"
    frame = (x - left, y - top), width, height
    axes.add_patch(Rectangle(*frame, fill=False, color=colour, lw=1.6, ls=line))
    word = "" if right is None else " right" if right else " wrong"
    axes.set_title(
        f"{mined.pool.score[row]:.2f}{word}", fontsize=7, color=text, fontweight="normal", pad=2
    )


def draw_teaser_pictures(figure: Any, text: str, runs: Sequence[Path]) -> bool:
    """Training pictures in which something was mined, beside objects of base classes."""
    from matplotlib.patches import Rectangle

    every = (_mined(run) for run in reversed(runs))
    mined = next((found for found in every if found is not None), None)
    if mined is None:
        return False
    data, pool = mined.data, mined.pool
    base_names = tuple(name for name in data.classes if name not in mined.classes)
    base = data.boxes.take(is_of(data, base_names) & is_target(data))
    # right boxes beside base objects first
    worth = np.isin(pool.image, base.image) + (0 if mined.right is None else 2 * mined.right)
    rows = np.lexsort((-pool.score, -worth))
    images = list(dict.fromkeys(pool.image[rows].tolist()))[:TEASER]
    if not images:
        return False
    for axes, image in zip(figure.subplots(1, TEASER, squeeze=False)[0], images, strict=False):
        picture, scale = _decoded(data, image)
        axes.imshow(picture)
        axes.set_axis_off()
        for boxes, colour, line in (
            (base.xywh[base.image == image], BASE, "-"),
            (pool.xywh[pool.image == image], NOVEL, "--"),
        ):
            for x, y, width, height in (boxes * scale).tolist():
                frame = Rectangle((x, y), width, height, fill=False, color=colour, lw=2, ls=line)
                axes.add_patch(frame)
    figure.suptitle("annotated (green), mined (orange, dashed)", fontsize=9, color=text)
    return True


def _decoded(data: Dataset, image: int) -> tuple[Any, float]:
    """The picture (H, W, 3), and its size relative to the annotations'."""
    path = data.path(image)
    width, height = drawn_size(*picture_size(path), tuple(data.sizes[image].tolist()))
    picture = decode(path, MAX_SIDE, MAX_SIDE, (height, width))
    return picture, picture.shape[1] / width
