"""The K shots of a run: drawn at random, from published lists, or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mini_fsod import console
from mini_fsod.config.inputs import Shots
from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import NO_BOXES, Bools, Dataset, Ints
from mini_fsod.data.layout import is_sample
from mini_fsod.data.official_shots import choose_shots, official_lists
from mini_fsod.data.read import read
from mini_fsod.data.shots import balanced_set, box_sides, draw_shots, tiny_shots
from mini_fsod.data.subsets import arranged, is_target, renamed_as_in, united
from mini_fsod.data.text import shown
from mini_fsod.errors import UserError, nearest
from mini_fsod.files import is_file
from mini_fsod.labels import LabelMap

# A shot is tiny below this multiple of the smallest anchor. With the usual one of 32 pixels, hardly
# an object below 64 is mined, and of three shots of 55 to 61 pixels two taught their class nothing.
# Where all objects are small, as in the demo, shots may be too: half a usual base box is not tiny.
TINY = 2

# Pictures in which a given detector looks for shots of base classes: enough for K of each, and few
# enough for a computer without a GPU
LABELLED = 500


def read_shot_file(file: Path, whole: Dataset, pictures: Path | None) -> Dataset:
    """The pictures with boxes in `shots.file`, with its own names; `pictures` is `shots.root`.

    Without it, a file written by `mini sample` names pictures below the folder of the data; in any
    other, they lie beside the file. Pictures without boxes are left out: exports list all that were
    uploaded.
    """
    data = read(file, root=pictures or (whole.root if is_sample(file) else None))
    return data.select(np.unique(data.boxes.image))


def drawn_shots(
    config: Shots, whole: Dataset, train: Dataset, part: str | None, labels: LabelMap
) -> Dataset:
    """K boxes of every class from the data itself, at random or by `shots.official`.

    `part` is the name of the image set that `train` is taken from.
    """
    assert config.k is not None  # `Shots` refuses it without a file
    if config.official is None:
        data = train if config.subset is None else whole.subset(config.subset)
        chosen = draw_shots(data, labels, config.k, config.seed, config.subset or part, whole)
    else:
        lists, of_all_images = official_lists(config.official, config.seed)
        data = whole if of_all_images else train
        chosen = choose_shots(data, labels, lists, config.k, config.seed)
    for line in chosen.notes:
        console.note(line)
    return arranged(balanced_set(data, chosen), labels)


def shots_of_file(config: Shots, in_file: Dataset, whole: Dataset, labels: LabelMap) -> Dataset:
    """The shots of a file, which has all novel classes."""
    shots = arranged(renamed_as_in(in_file, whole), labels)
    counts = boxes_per_class(shots)
    missing = [name for name, n in zip(labels.classes, counts, strict=True) if not n]
    missing_novel = [name for name in labels.novel if name in missing]
    if missing_novel:
        known = ", ".join(in_file.classes) or "none"
        unknown = [name for name in missing_novel if name not in in_file.classes]
        hint = nearest(unknown[0], in_file.classes) if unknown else ""
        raise UserError(
            f"{config.file}: no shots of {', '.join(missing_novel)}. Its classes: {known}.{hint}",
            "Use the same class names in data.novel and in the file, or sample again.",
        )
    _refuse_fewer_than(config, counts[len(labels.base) :], labels.novel)
    return shots


def with_base_shots(
    shots: Dataset,
    config: Shots,
    train: Dataset,
    part: str | None,
    labels: LabelMap,
    whole: Dataset | None,
) -> Dataset:
    """The shots, and K of each base class that has none, drawn from the boxes of `train`.

    `whole` as in `draw_shots`; without it, classes with fewer boxes give fewer.
    """
    counts = boxes_per_class(shots)
    missing = tuple(name for name, n in zip(labels.classes, counts, strict=True) if not n)
    if not missing:
        return shots
    k = int(counts[len(labels.base) :].min())
    wanted = LabelMap(missing, ())
    drawn = draw_shots(train, wanted, k, config.seed, part, whole, fewer=whole is None)
    if whole is None:
        found = sum(len(boxes) > 0 for boxes in drawn.chosen.values())
        console.note(
            f"shots of {found} of {console.count(len(missing), 'base class')}: what the given "
            "detector is sure of"
        )
    else:
        console.note(
            f"{config.file}: no shots of {', '.join(missing)}; drawing {k} of each from the data"
        )
    return united(shots, arranged(balanced_set(train, drawn), labels))


def pictures_to_label(train: Dataset, missing: Bools, shots: Dataset, seed: int) -> Dataset:
    """Up to `LABELLED` pictures whose base labels are missing (I, B), without boxes, and those of
    the shots with their boxes of novel classes.
    """
    images = np.flatnonzero(missing.any(axis=1))
    order = np.random.default_rng(seed).permutation(len(images))
    some = np.sort(images[order[:LABELLED]])
    return united(train.with_boxes(NO_BOXES).select(some), shots)


def _refuse_fewer_than(config: Shots, counts: Ints, novel: Sequence[str]) -> None:
    """A file with fewer boxes of a novel class than the user's K."""
    short = [f"{shown(n)} has {c}" for n, c in zip(novel, counts.tolist(), strict=True)
             if config.k is not None and c < config.k]  # fmt: skip
    if short:
        raise UserError(
            f"{config.file}: fewer boxes than shots.k={config.k}: {', '.join(short)}.",
            f"Add boxes, or set shots.k to {counts.min()}, the fewest of any class.",
        )


def uses_shots(config: Config, stages: Sequence[str]) -> bool:
    """Whether one of these stages needs the shots."""
    with_shots = {"transfer", "scan", "mine"}
    with_shots |= {"tune"} if config.tune.data != "none" else set()
    with_shots |= {"online"} if config.online.shots else set()
    return bool(with_shots & {*stages})


def boxes_per_class(shots: Dataset) -> Ints:
    """(C,) boxes of each class that can be trained on."""
    return np.bincount(shots.boxes.label[is_target(shots)], minlength=len(shots.classes))


def refuse_missing_pictures(file: Path, shots: Dataset) -> None:
    """A file sampled from another data set names pictures that do not exist here."""
    missing = [path for i in range(len(shots)) if not is_file(path := shots.path(i))]
    if missing:
        raise UserError(
            f"{file}: {console.count(len(missing), 'picture')} not found, such as {missing[0]}.",
            "Sample from this data set (`mini sample`), or put the pictures there.",
        )


def tiny_shot_notes(
    shots: Dataset, novel: tuple[str, ...], base: Dataset, config: Config
) -> list[str]:
    """A warning for each novel class whose shots are too small to learn from; `base` has base
    boxes.
    """
    short, long = config.views.test, config.views.long
    usual = box_sides(base.with_boxes(base.boxes.take(is_target(base))), short, long)
    least = TINY * min(config.detector.anchors)
    if np.isfinite(usual).any():
        least = min(least, float(np.nanmedian(usual)) / 2)
    return tiny_shots(shots, novel, short, long, least)
