"""What a study is: rows of settings, over splits, shots and seeds. Known by name, or a file.

A file is YAML, for own data for example:

    name: photos
    config: photos.yaml             # or preset: voc-split{split}-{shots}shot-320
    rows:
      TFA: []
      long: [transfer.iterations=8000]
      base only: {set: [base.minutes=4], to: base}
    shots: [1, 5]                   # K
    seeds: 0..4                     # of the shots
    splits: [1, 2]                  # where the preset's name has {split}
    to: transfer                    # the last stage, where a row does not say
    figures: [nAP50, bAP50]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mini_fsod.errors import UserError, nearest
from mini_fsod.files import is_file, open_regular
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


def find(name: str, stages: Sequence[str]) -> Study:
    """The study of that name, or of that file."""
    if name in STUDIES:
        return STUDIES[name]
    if is_file(Path(name)):
        return from_file(Path(name), stages)
    hint = nearest(name, STUDIES)
    raise UserError(
        f"{name}: no study of this name and no file.{hint}",
        f"Give one of: {', '.join(STUDIES)}; or a YAML file.",
    )


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


KEYS = ("name", "preset", "config", "rows", "splits", "shots", "seeds", "to", "figures")


def from_file(path: Path, stages: Sequence[str]) -> Study:
    """A study described in YAML (the head of this file shows one)."""
    with open_regular(path) as source:
        try:
            content = yaml.safe_load(source)
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            reason = str(error).replace("\n", " ")
            raise UserError(f"{path}: no valid YAML ({reason}).", "Mend the file.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: no study.", f"Write keys and values: {', '.join(KEYS)}.")
    for key in content:
        if key not in KEYS:
            raise UserError(
                f'{path}: unknown key "{key}".{nearest(str(key), KEYS)}',
                f"A study has {', '.join(KEYS)}.",
            )
    source_name, own_data = _source(path, content)
    last = _stage(path, content.get("to", "transfer"), stages)
    study = Study(
        name=_text(path, "name", content.get("name", path.stem)),
        source=source_name,
        rows=_rows(path, content.get("rows"), last, stages),
        shots=_numbers(path, "shots", content.get("shots", [1]), least=1),
        seeds=_numbers(path, "seeds", content.get("seeds", [0])),
        splits=_numbers(path, "splits", content.get("splits", [1]), least=1),
        figures=_figures(path, content.get("figures", ["nAP50", "bAP50"])),
    )
    if own_data or "{split}" not in source_name:
        if "splits" in content:
            raise UserError(
                f"{path}: splits: {source_name} has no {{split}} in it.",
                "Leave splits out, or name a preset with {split}.",
            )
        return replace(study, splits=())
    return study


def _source(path: Path, content: dict[str, Any]) -> tuple[str, bool]:
    """The preset's name or the config file (beside the study's file), and which of both it is."""
    given = [key for key in ("preset", "config") if content.get(key) is not None]
    if len(given) != 1:
        raise UserError(
            f"{path}: a study starts from one preset or one config file, not "
            f"{'both' if given else 'none'}.",
            "Write preset: NAME or config: FILE.",
        )
    name = _text(path, given[0], content[given[0]])
    if given[0] == "preset":
        odd = set(re.findall(r"{.*?}", name)) - {"{split}", "{shots}"}
        if odd:
            raise UserError(
                f"{path}: preset: {name}: {', '.join(sorted(odd))} stands for nothing.",
                "Use {split} and {shots}.",
            )
        return name, False
    file = path.parent / name
    if not is_file(file):
        raise UserError(f"{path}: config: there is no file {file}.", "Name a config file.")
    return str(file), True


def _rows(path: Path, value: Any, last: str, stages: Sequence[str]) -> tuple[Row, ...]:
    if not isinstance(value, dict) or not value:
        raise UserError(
            f"{path}: rows: needs at least one row.", "Write rows: {LABEL: [key=value, ...]}."
        )
    rows: list[Row] = []
    for label, what in value.items():
        entry = what if isinstance(what, dict) else {"set": what or []}
        sets = entry.get("set") or []
        wrong = set(entry) - {"set", "to"}
        texts = isinstance(sets, list) and all(isinstance(s, str) and "=" in s for s in sets)
        if wrong or not texts:
            raise UserError(
                f"{path}: rows: {label}: is neither a list of key=value nor {{set: ..., to: ...}}.",
                "Write [transfer.iterations=8000], for example.",
            )
        ends = _stage(path, entry.get("to", last), stages)
        row = Row(_text(path, "rows", str(label)), tuple(sets), ends)
        if not row.slug or row.slug in [other.slug for other in rows]:
            raise UserError(
                f'{path}: rows: the label "{label}" makes no folder name of its own '
                f"({row.slug or 'no letter, no digit'}).",
                "Choose another label.",
            )
        rows.append(row)
    return tuple(rows)


def _stage(path: Path, name: Any, stages: Sequence[str]) -> str:
    if name not in stages:
        raise UserError(
            f'{path}: to: no stage "{name}".{nearest(str(name), stages)}',
            f"Stages are {', '.join(stages)}.",
        )
    return str(name)


def _numbers(path: Path, key: str, value: Any, least: int = 0) -> tuple[int, ...]:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return numbers(text, f"{path}: {key}", least)


def _figures(path: Path, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{path}: figures: needs a list.", "Write [nAP50, bAP50].")
    return tuple(_text(path, "figures", v) for v in value)


def _text(path: Path, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{path}: {key}: needs a word, not {value!r}.", "Mend the file.")
    return value.strip()
