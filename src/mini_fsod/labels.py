"""Base and novel classes: the label map that every file of results stores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_fsod.data.text import shown
from mini_fsod.errors import UserError, nearest, repeated

VOC_CLASSES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor"
).split()

COCO_NOVEL = (
    "person,bicycle,car,motorcycle,airplane,bus,train,boat,bird,cat,dog,horse,sheep,cow,bottle,"
    "chair,couch,potted plant,dining table,tv"
).split(",")

COCO_BASE = (
    "truck,traffic light,fire hydrant,stop sign,parking meter,bench,elephant,bear,zebra,giraffe,"
    "backpack,umbrella,handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,"
    "baseball glove,skateboard,surfboard,tennis racket,wine glass,cup,fork,knife,spoon,bowl,banana,"
    "apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,bed,toilet,laptop,mouse,remote,"
    "keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,book,clock,vase,scissors,"
    "teddy bear,hair drier,toothbrush"
).split(",")

VOC_NOVEL = {
    "voc-split1": ("bird", "bus", "cow", "motorbike", "sofa"),
    "voc-split2": ("aeroplane", "bottle", "cow", "horse", "sofa"),
    "voc-split3": ("boat", "cat", "motorbike", "sheep", "sofa"),
}


NAME_THEM = "Name the novel classes: --novel, or data.novel in a configuration."


@dataclass(frozen=True, slots=True)
class LabelMap:
    """Base classes, then novel ones, in the order of the detector's outputs."""

    base: tuple[str, ...]
    novel: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.base + self.novel

    def to_json(self) -> dict[str, Any]:
        return {"classes": list(self.classes), "base": list(self.base), "novel": list(self.novel)}


SPLITS = {
    name: LabelMap(tuple(c for c in VOC_CLASSES if c not in novel), novel)
    for name, novel in VOC_NOVEL.items()
} | {"coco": LabelMap(tuple(COCO_BASE), tuple(COCO_NOVEL))}


def folded(name: str) -> str:
    """A class name without case, spaces, hyphens and underscores."""
    return re.sub(r"[\s_\-]+", "", name).casefold()


def refuse_other_spellings(file: Path, given: Sequence[str], known: Sequence[str]) -> None:
    """UserError if classes of a file of shots differ from those of the data in spelling alone."""
    spelt = {folded(name): name for name in known}
    pairs = [(n, spelt[folded(n)]) for n in given if n not in known and folded(n) in spelt]
    if pairs:
        listed = ", ".join(f"{shown(name)} and {shown(other)}" for name, other in pairs[:10])
        raise UserError(
            f"{file} and the data spell the same class in two ways: {listed}.",
            "Use one spelling in both: rename the class in one of them.",
        )


def split_by_name(name: str, classes: Sequence[str]) -> LabelMap:
    """A published split. `classes` are the data set's; all of them must belong to it."""
    if name not in SPLITS:
        raise UserError(
            f"There is no split {shown(name)}.{nearest(name, SPLITS)}", f"Use {', '.join(SPLITS)}."
        )
    labels = SPLITS[name]
    unknown = [c for c in classes if c not in labels.classes]
    if unknown:
        listed = ", ".join(map(shown, unknown[:10]))
        raise UserError(
            f'The data has classes that are not in split "{name}": {listed}.', NAME_THEM
        )
    if not set(labels.novel) & set(classes):
        raise UserError(
            f'The data has none of the novel classes of "{name}": {", ".join(labels.novel)}.',
            f"Use another split. {NAME_THEM}",
        )
    return labels


def split_by_novel(
    novel: Sequence[str], classes: Sequence[str], file: Path | None = None
) -> LabelMap:
    """The named classes are novel, all others base, in their order; `classes` are those of the data
    and of `file`, a file of shots, if there is one.
    """
    unknown = [n for n in novel if n not in classes]
    if unknown:
        spelt = {folded(name): name for name in classes}
        if file is not None and all(folded(n) in spelt for n in unknown):
            right = [n if n in classes else spelt[folded(n)] for n in novel]
            raise UserError(
                f"No class {', '.join(map(shown, unknown[:10]))} in the data or in {file}: they "
                f"spell it {', '.join(shown(spelt[folded(n)]) for n in unknown[:10])}.",
                f"Write data.novel: [{', '.join(map(shown, right))}].",
            )
        where = "the data" if file is None else f"the data or in {file}"
        hints = "; ".join(f"{shown(n)}.{nearest(n, classes)}" for n in unknown[:10])
        listed = ", ".join(classes[:100])
        known = f"Known classes: {listed}." if classes else "There are no boxes at all."
        fix = "If its boxes are in a file of their own, give that: shots.file, or --boxes."
        fix = fix if file is None else "Correct data.novel, or the file."
        raise UserError(f"No such class in {where}: {hints}", f"{known} {fix}")
    return LabelMap(tuple(c for c in classes if c not in novel), tuple(novel))


def refuse_split_with_novel(split: str | None, novel: Sequence[str] | None) -> None:
    """UserError if both options are given."""
    if split and novel:
        raise UserError("--split and --novel cannot be combined.", "Give one of them.")


def novel_names(
    split: str | None, novel: Sequence[str] | None, classes: Sequence[str] = ()
) -> list[str]:
    """The names in `--novel a,b,c` or in several options; UserError if one is given twice.

    An option that is one of the data's `classes` is taken whole: names may contain commas.
    """
    refuse_split_with_novel(split, novel)
    names: list[str] = []
    for option in novel or ():
        parts = [part.strip() for part in option.split(",") if part.strip()]
        whole = option.strip() in classes or len(parts) < 2
        names += [option.strip()] * bool(parts) if whole else parts
    if novel and not names:
        raise UserError("--novel is empty.", "For example: --novel bird,bus")
    twice = repeated(names)
    if twice:
        raise UserError(
            f"Named twice in --novel: {', '.join(map(shown, twice[:10]))}.", "Name each class once."
        )
    return names


def label_map(
    classes: Sequence[str],
    split: str | None,
    novel: Sequence[str] | None,
    file: Path | None = None,
) -> LabelMap:
    """The label map of `--split NAME` or `--novel a,b,c`; with neither, all classes are base.

    `file` as for `split_by_novel`.
    """
    names = novel_names(split, novel, classes)
    if split:
        return split_by_name(split, classes)
    return split_by_novel(names, classes, file) if names else LabelMap(tuple(classes), ())
