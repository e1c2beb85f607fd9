"""A study described in a YAML file, for your own data or settings.

    name: photos
    config: photos.yaml             # or preset: voc-320
    rows:
      TFA: []
      long: [transfer.iterations=8000]
      base only: {set: [base.minutes=4], to: base}
    splits: [1, 2]                  # of VOC: data.split=voc-split1, ...
    shots: [1, 5]                   # K: shots.k
    seeds: 0..4                     # of the shots: shots.seed
    to: transfer                    # last stage of rows that name none
    figures: [nAP50, bAP50]

`splits`, `shots` and `seeds` may be left out: the configuration's values are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from mini_fsod.config.load import resolve
from mini_fsod.config.schema import STAGES
from mini_fsod.errors import UserError, nearest
from mini_fsod.eval.score import COCO_ALONE, NAMES
from mini_fsod.files import is_file, read_bytes
from mini_fsod.limits import QUOTED, STUDY_RUNS, YAML_BYTES
from mini_fsod.plain_yaml import parse_yaml
from mini_fsod.study.known import STUDIES
from mini_fsod.study.studies import Row, Study, parse_numbers

STUDY_KEYS = ("name", "preset", "config", "rows", "splits", "shots", "seeds", "to", "figures")


def find_study(name: str) -> Study:
    """The study of that name, or described in that file."""
    if name in STUDIES:
        return STUDIES[name]
    if is_file(Path(name)):
        return read_study(Path(name))
    raise UserError(
        f"{name}: there is no study and no file of this name.{nearest(name, STUDIES)}",
        f"Studies: {', '.join(STUDIES)}; or give a YAML file.",
    )


def read_study(path: Path) -> Study:
    """A study described in YAML; the module's docstring has an example."""
    try:
        content = parse_yaml(read_bytes(path, YAML_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).", "Check the file.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).replace("\n", " ")[:QUOTED]
        raise UserError(f"{path}: not valid YAML ({reason}).", "Correct the file.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a study.", f"Write keys and values: {', '.join(STUDY_KEYS)}.")
    for key in content:
        _known(f"{path}: unknown key", key, STUDY_KEYS, f"The keys are {', '.join(STUDY_KEYS)}.")
    return Study(
        name=_word(path, "name", content.get("name", path.stem)),
        source=_source(path, content),
        rows=_rows(path, content.get("rows"), _stage(path, content.get("to", "transfer"))),
        shots=_numbers(path, "shots", content, least=1),
        seeds=_numbers(path, "seeds", content),
        splits=_numbers(path, "splits", content, least=1),
        figures=_figures(path, content.get("figures", ["nAP50", "bAP50"])),
    )


def fill_from_config(study: Study) -> Study:
    """K and seed that a study leaves open are those of its configuration."""
    _refuse_cell_keys(study)
    config = resolve(study.source, study.sets)
    if study.splits and config.data.novel:
        raise UserError(
            f"splits: {study.source} names its novel classes in data.novel.",
            "Leave the splits out (--split, or splits in the study's file).",
        )
    return replace(
        study,
        shots=study.shots or (config.shots.k or 1,),
        seeds=study.seeds or (config.shots.seed,),
    )


def _refuse_cell_keys(study: Study) -> None:
    """Keys that differ between cells cannot be set for all: the cells' names would be wrong."""
    options = {"shots.k": "--shots", "shots.seed": "--seeds"}
    if study.splits:
        options |= {"data.split": "--split", "data.novel": "--split"}
    for text in (*study.sets, *(text for row in study.rows for text in row.sets)):
        key = text.partition("=")[0].strip()
        if key in options:
            raise UserError(
                f"{text}: the runs of this study differ in {key}.", f"Give {options[key]} instead."
            )


def _source(path: Path, content: dict[str, Any]) -> str:
    """The preset's name, or the config file, which lies beside the study's file."""
    given = [key for key in ("preset", "config") if content.get(key) is not None]
    if len(given) != 1:
        raise UserError(
            f"{path}: needs either a preset or a config file, and has "
            f"{'both' if given else 'neither'}.",
            "Write preset: NAME or config: FILE.",
        )
    name = _word(path, given[0], content[given[0]])
    if given[0] == "preset":
        return name
    file = path.parent / name
    if not is_file(file):
        raise UserError(f"{path}: config: there is no file {file}.", "Name a config file.")
    return str(file)


def _rows(path: Path, value: Any, last: str) -> tuple[Row, ...]:
    if not isinstance(value, dict) or not value:
        raise UserError(
            f"{path}: rows: needs at least one row.", "Write rows: {LABEL: [key=value, ...]}."
        )
    if len(value) > STUDY_RUNS:
        raise UserError(
            f"{path}: rows: {len(value):,} of them, and a study has {STUDY_RUNS:,} runs at most.",
            "Describe several studies.",
        )
    rows: dict[str, Row] = {}  # by the part of a folder's name
    for label, what in value.items():
        entry = what if isinstance(what, dict) else {"set": what or []}
        sets = entry.get("set") or []
        unknown = set(entry) - {"set", "to"}
        texts = isinstance(sets, list) and all(isinstance(s, str) and "=" in s for s in sets)
        if unknown or not texts:
            raise UserError(
                f"{path}: rows: {label}: is neither a list of key=value nor {{set: ..., to: ...}}.",
                "Write [transfer.iterations=8000], for example.",
            )
        row = Row(_word(path, "rows", str(label)), tuple(sets), _stage(path, entry.get("to", last)))
        slug = row.slug
        if not slug or slug in rows:
            same = rows[slug].label if slug else ""
            problem = f'"{same}" and "{label}" would share a folder ({slug}).'
            if not slug:
                problem = f'the label "{label}" has no letter and no digit to name a folder by.'
            raise UserError(f"{path}: rows: {problem}", "Choose another label.")
        rows[slug] = row
    return tuple(rows.values())


def _known(problem: str, name: Any, known: Sequence[str], fix: str) -> str:
    if name not in known:
        raise UserError(f'{problem} "{name}".{nearest(str(name), known)}', fix)
    return str(name)


def _stage(path: Path, name: Any) -> str:
    return _known(f"{path}: to: there is no stage", name, STAGES, f"Stages: {', '.join(STAGES)}.")


def _numbers(path: Path, key: str, content: dict[str, Any], least: int = 0) -> tuple[int, ...]:
    if key not in content:
        return ()
    value = content[key]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return parse_numbers(text, f"{path}: {key}", least)


def _figures(path: Path, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{path}: figures: needs a list.", "Write [nAP50, bAP50].")
    fix = f"VOC has nAP50, bAP50 and AP50; COCO has also {', '.join(COCO_ALONE)}."
    return tuple(_known(f"{path}: figures: there is no figure", v, NAMES, fix) for v in value)


def _word(path: Path, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{path}: {key}: must be a word, not {value!r}.", "Correct the file.")
    return value.strip()
