"""What a study is: rows of settings, over splits, shots and seeds. The known ones."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mini_fsod.errors import UserError
from mini_fsod.study.paper import SHOTS

MOST = 1000  # numbers of one axis: a slip of the keyboard should not plan a million runs
SMALL = "-320"  # in the names of the presets fitted to one GPU


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what it sets (key=value), the last stage it runs.

    `paper` names what stands below it: (table, row) of study.paper.TABLES.
    """

    label: str
    sets: tuple[str, ...] = ()
    last: str = "transfer"
    paper: tuple[tuple[str, str], ...] = ()

    @property
    def slug(self) -> str:
        """The label as part of a folder's name."""
        return re.sub(r"[\W_]+", "-", self.label.casefold()).strip("-")[:60]


@dataclass(frozen=True, slots=True)
class Study:
    """`source` is a config file, or a preset's name in which {split} and {shots} may stand.

    `splits` is empty where the name has no {split}. `sets` hold for every row; a row's own come
    after them.
    """

    name: str
    source: str
    rows: tuple[Row, ...]
    shots: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    splits: tuple[int, ...] = ()
    sets: tuple[str, ...] = ()
    figures: tuple[str, ...] = ("nAP50", "bAP50")


def _no_teacher(*sets: str) -> tuple[str, ...]:
    return (*sets, "online.teacher=false", "online.iou_branch=false")


# the rows of the paper's component table as switches (protocol.md, section 3), and the ceiling
COMPONENTS = (
    Row("TFA", paper=(("tab:component", "TFA Base"),)),
    Row(
        "+ TFA mining",
        _no_teacher("mine.threshold=0.7", "mine.discriminator=none"),
        "online",
        (("tab:component", "+TFA Mining"),),
    ),
    Row(
        "+ adaptive thresholding",
        _no_teacher("mine.discriminator=none"),
        "online",
        (("tab:component", "+Adaptive Thresholding"),),
    ),
    Row("+ SSL co-mining", _no_teacher(), "online", (("tab:component", "+SSL Co-Mining"),)),
    Row(
        "+ adaptive mingling",
        ("online.iou_branch=false",),
        "online",
        (("tab:component", "+Adaptive Mingling"),),
    ),
    Row("+ IoU branch", (), "online", (("tab:component", "+IoU Branching"),)),
    Row("+ fine-tuning", (), "tune", (("tab:component", "+Fine-Tuning"),)),
    Row("oracle", _no_teacher("online.oracle=true"), "online"),
    # two other readings of the last row
    Row("mined in images with base boxes alone", ("mine.images=base",), "tune"),
    Row("fine-tuning on the novel set", ("tune.data=novel",), "tune"),
    # beyond the paper: base classes lose less (docs/results.md, the last fine-tuning)
    Row("fine-tuning at a tenth of the rate", ("tune.data=known", "tune.rate=0.0001"), "tune"),
)


def _mingling(rpn: bool, rcnn: bool) -> tuple[str, ...]:
    return f"online.mingle.rpn={str(rpn).lower()}", f"online.mingle.rcnn={str(rcnn).lower()}"


MINGLING = tuple(
    Row(name, _mingling(rpn, rcnn), "online", (("tab:mingling", name),))
    for name, rpn, rcnn in (
        ("neither", False, False),
        ("RPN", True, False),
        ("R-CNN", False, True),
        ("RPN and R-CNN", True, True),
    )
)

# what goes beyond the paper, from its TFA to the ceiling
PLUS = (
    Row(
        "TFA",
        ("transfer.data=balanced", "transfer.boxes=new"),
        paper=(("tab:component", "TFA Base"),),
    ),
    Row("TFA, known boxes"),
    Row("offline mining", _no_teacher(), "online", (("tab:component", "+SSL Co-Mining"),)),
    Row("with a teacher", (), "online", (("tab:component", "+Fine-Tuning"),)),
    Row("oracle", _no_teacher("online.oracle=true", "online.ignore_candidates=false"), "online"),
)

STUDIES = {
    study.name: study
    for study in (
        Study(
            name="components",
            source=f"voc-split{{split}}-{{shots}}shot{SMALL}",
            rows=COMPONENTS,
            shots=(1, 5),
            splits=(1,),
        ),
        Study(
            name="mingling",
            source=f"voc-split{{split}}-{{shots}}shot{SMALL}",
            rows=MINGLING,
            shots=(1,),
            splits=(1,),
        ),
        Study(
            name="plus",
            source=f"voc-split{{split}}-{{shots}}shot{SMALL}-plus",
            rows=PLUS,
            shots=(1, 5),
            splits=(1,),
        ),
        Study(
            name="tfa",
            source=f"voc-split{{split}}-{{shots}}shot{SMALL}",
            rows=(
                Row(
                    "TFA",
                    paper=(("tab:component", "TFA Base"), ("tab:voc_main", "TFA w/ cos")),
                ),
            ),
            shots=SHOTS,
            splits=(1,),
        ),
    )
}


def narrowed(
    study: Study, split: str | None, shots: str | None, seeds: str | None, full: bool
) -> Study:
    """The study over what the command line names instead of its own splits, shots and seeds."""
    if full:
        if SMALL not in study.source:
            raise UserError(
                f"--full: study {study.name} takes {study.source}, which has no full schedule "
                "beside it.",
                "Leave --full out.",
            )
        study = replace(study, source=study.source.replace(SMALL, ""))
    if split is not None:
        if not study.splits:
            raise UserError(
                f"--split: study {study.name} has no splits; {study.source} says which classes "
                "are novel.",
                "Leave --split out.",
            )
        study = replace(study, splits=numbers(split, "--split", least=1))
    if shots is not None:
        study = replace(study, shots=numbers(shots, "--shots", least=1))
    if seeds is not None:
        study = replace(study, seeds=numbers(seeds, "--seeds"))
    return study


def chosen_rows(study: Study, text: str) -> tuple[str, ...]:
    """The labels of the rows that --rows names by number, the first being 1."""
    wanted = numbers(text, "--rows", least=1)
    if wanted[-1] > len(study.rows):
        raise UserError(
            f"--rows: study {study.name} has {len(study.rows)} rows, not {wanted[-1]}.",
            f"They are {', '.join(f'{n} {row.label}' for n, row in enumerate(study.rows, 1))}.",
        )
    return tuple(study.rows[n - 1].label for n in wanted)


def numbers(text: str, where: str, least: int = 0) -> tuple[int, ...]:
    """ "0..4" is 0 to 4, "0,3,7" these three, "0..2,7" both; each once, in order of size."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise UserError(
                f'{where}: "{text}" is no list of numbers.', "Write 0..4 or 0,3,7, for example."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UserError(f"{where}: {first}..{last} goes down.", f"Write {last}..{first}.")
        if first < least:
            raise UserError(f"{where}: {first} is too small.", f"Begin at {least}.")
        if last - first >= MOST or len(found) > MOST:
            raise UserError(f"{where}: {text} are more than {MOST:,}.", "Name fewer.")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
