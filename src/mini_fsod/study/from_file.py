"""A study by its name, or described in a file.

A file is YAML, for own data for example:

    name: photos
    config: photos.yaml             # or preset: voc-split{split}-{shots}shot-320
    rows:
      TFA: []
      long: [transfer.iterations=8000]
      base only: {set: [base.minutes=4], to: base}
    shots: [1, 5]                   # K; where it is left out, what the config says
    seeds: 0..4                     # of the shots; the same
    splits: [1, 2]                  # where the preset's name has {split}
    to: transfer                    # the last stage, where a row does not say
    figures: [nAP50, bAP50]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from mini_fsod.errors import UserError, nearest
from mini_fsod.eval.score import COCO_ALONE, NAMES
from mini_fsod.files import is_file, open_regular
from mini_fsod.plain_yaml import parse_yaml
from mini_fsod.study.plan import Resolve
from mini_fsod.study.studies import STUDIES, Row, Study, numbers

KEYS = ("name", "preset", "config", "rows", "splits", "shots", "seeds", "to", "figures")


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


def from_file(path: Path, stages: Sequence[str]) -> Study:
    """A study described in YAML (the head of this file shows one)."""
    with open_regular(path) as source:
        try:
            content = parse_yaml(source.read().decode("utf-8-sig"))
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
        shots=_numbers(path, "shots", content["shots"], least=1) if "shots" in content else (),
        seeds=_numbers(path, "seeds", content["seeds"]) if "seeds" in content else (),
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


def as_configured(study: Study, resolve: Resolve) -> Study:
    """K and seed of the shots that a study leaves open are those of its configuration."""
    if study.shots and study.seeds:
        return study
    if not study.shots and "{shots}" in study.source:
        raise UserError(
            f"shots: {study.source} needs K.", "Write shots: [1, 5], for example, or give --shots."
        )
    source = study.source
    for word, numbers_ in (("{split}", study.splits), ("{shots}", study.shots)):
        source = source.replace(word, str(numbers_[0])) if numbers_ else source
    own = resolve(source, study.sets).shots
    return replace(study, shots=study.shots or (own.k,), seeds=study.seeds or (own.seed,))


def refuse_axes(study: Study) -> None:
    """What cells differ in is not set for all of them: their names would not tell the truth."""
    axes = {"shots.k": "--shots", "shots.seed": "--seeds"}
    if study.splits:
        axes |= {"data.split": "--split", "data.novel": "--split"}
    for text in (*study.sets, *(text for row in study.rows for text in row.sets)):
        key = text.partition("=")[0].strip()
        if key in axes:
            raise UserError(
                f"{text}: the cells of a study differ in this.", f"Give {axes[key]} instead."
            )


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
    for name in value:
        if name not in NAMES:
            raise UserError(
                f'{path}: figures: there is no figure "{name}".{nearest(str(name), NAMES)}',
                f"VOC's are nAP50, bAP50 and AP50, COCO's too: {', '.join(COCO_ALONE)}.",
            )
    return tuple(value)


def _text(path: Path, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{path}: {key}: needs a word, not {value!r}.", "Mend the file.")
    return value.strip()
