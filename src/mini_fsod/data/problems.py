"""Kinds of problems in a data set: what to do about each, and what `mini check --fix` does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from mini_fsod.errors import Problem
from mini_fsod.limits import PROBLEMS_KEPT

LEFT_OUT = "left out"
IMAGE_OUT = "image left out, with its boxes"
NO_REPAIR = "cannot be repaired"
TRUE_SIZE = "size of the picture used, where it could be read"

# kind: (what to do about it, what the repaired copy does). Summaries give their own advice.
KINDS = {
    "annotation-missing": ("add it, or remove it from the list", LEFT_OUT),
    "area-wrong": ("correct it, or remove area", "area of the box used"),
    "base-empty": ("", NO_REPAIR),
    "box-duplicate": ("remove one of them", "kept once"),
    "box-nan": ("correct the box or remove it", LEFT_OUT),
    "box-negative": (
        "put the right edge right of the left one, the bottom below the top",
        LEFT_OUT,
    ),
    "box-no-area": ("remove the box", LEFT_OUT),
    "box-outside": ("clip the box to the picture", "clipped"),
    "box-rotated": ("draw an upright box", LEFT_OUT),
    "box-shape": ("use four numbers", LEFT_OUT),
    "class-duplicate": ("use one name for a class", "merged under the name with the most boxes"),
    "data-too-large": ("split the data set", "left out from there on"),
    "empty": ("add images with boxes", NO_REPAIR),
    "filename-duplicate": ("correct <filename>, or remove one of the files", IMAGE_OUT),
    "flag-wrong": ("use 0 or 1", LEFT_OUT),
    "folder-unreadable": ("make it readable", LEFT_OUT),
    "id-duplicate": ("use another id", "renumbered"),
    "id-unknown": ("correct the id, or add what it stands for", LEFT_OUT),
    "id-wrong": ("use integer ids", LEFT_OUT),
    "json-broken": ("write the file again", "everything after that could not be read"),
    "json-shape": ("write lists of objects: images, annotations, categories", LEFT_OUT),
    "key-duplicate": ("remove one of the two", LEFT_OUT),
    "key-missing": ("add it, or remove the record", LEFT_OUT),
    "label-broken": ("correct the line", LEFT_OUT),
    "list-broken": ("list pictures only", LEFT_OUT),
    "list-unreadable": ("make it readable", LEFT_OUT),
    "name-wrong": ("rename it", LEFT_OUT),
    "not-coco": ("convert or remove it", "not read"),
    "novel-empty": ("", NO_REPAIR),
    "novel-unknown": ("", "not repaired: name classes of the data"),
    "number-wrong": ("correct it", LEFT_OUT),
    "path-outside": ("use a path inside it", LEFT_OUT),
    "picture-ambiguous": ("name the picture with its folder", IMAGE_OUT),
    "picture-duplicate": (
        "give the picture one id, with all its boxes",
        "merged under the first id, with the boxes of all that declare the same size",
    ),
    "picture-format": ("save the picture as JPEG or PNG, with that suffix", IMAGE_OUT),
    "picture-missing": ("put the picture there, or remove the image", IMAGE_OUT),
    "picture-too-large": ("make the picture smaller", IMAGE_OUT),
    "picture-truncated": ("download the picture again, or remove the image", IMAGE_OUT),
    "picture-unreadable": ("save the picture again, or remove the image", IMAGE_OUT),
    "record-duplicate": ("remove one of them", "kept once"),
    "set-leak": (
        "remove the picture from one of the image sets",
        "not repaired: decide which image set the picture belongs to",
    ),
    "set-missing": ("correct data.yaml; paths are relative to its folder", LEFT_OUT),
    "size-missing": ("use the size of the picture", TRUE_SIZE),
    "size-wrong": ("use the size of the picture; check its boxes too", TRUE_SIZE),
    "xml-broken": ("write the file again", LEFT_OUT),
    "xml-entities": ("remove the DOCTYPE", LEFT_OUT),
    "xml-shape": ("write a VOC annotation, or export again", LEFT_OUT),
    "yaml-broken": ("correct it", LEFT_OUT),
    "yaml-shape": ("write train:, val: and names:", LEFT_OUT),
}
UNREPAIRED = ("base-empty", "empty", "not-coco", "novel-empty", "novel-unknown", "set-leak")


def outcome(problem: Problem) -> str:
    """What the repaired copy does about it."""
    special = {
        "id-duplicate category": "boxes of that category left out: their class is ambiguous",
        "id-duplicate image": "images of that id left out, with their boxes",
        "path-outside filename": "searched by the name of the XML file",
    }
    return special.get(f"{problem.kind} {problem.record.split(' ')[0]}", KINDS[problem.kind][1])


@dataclass(slots=True)
class Report:
    """Collects problems, of the annotation file `file` unless another one is named.

    The first PROBLEMS_KEPT of each kind are kept, of the others their number.
    """

    file: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    kept: list[Problem] = field(default_factory=list)

    def __call__(
        self, kind: str, record: str, what: str, fix: str = "", file: str | None = None
    ) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= PROBLEMS_KEPT:
            file = self.file if file is None else file
            self.kept.append(Problem(kind, file, record, what, fix or KINDS[kind][0]))

    def of(self, file: str) -> Report:
        """The same report, for the problems of another file."""
        return Report(file, self.counts, self.kept)

    def add(self, problem: Problem) -> None:
        self(problem.kind, problem.record, problem.what, problem.fix, problem.file)

    @property
    def problems(self) -> list[Problem]:
        """The problems in order, and one line for those of each kind that were only counted."""
        return self.kept + [
            replace(last, record="", what=f"{n:,} more of this kind", count=n)
            for kind, number in self.counts.items()
            if (n := number - PROBLEMS_KEPT) > 0
            for last in [next(p for p in reversed(self.kept) if p.kind == kind)]
        ]
