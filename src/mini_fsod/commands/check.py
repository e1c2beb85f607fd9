"""`mini check`: what is in a data set, what can be mined in it, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from mini_fsod import console
from mini_fsod.data.check import (
    box_problems,
    class_problems,
    duplicate_problems,
    empty_problems,
    file_problems,
    picture_problems,
)
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.duplicates import copy_notes, leak_problems, same_content
from mini_fsod.data.layout import data_folder, name_of
from mini_fsod.data.read import read_with_problems
from mini_fsod.data.repair import UNREPAIRED, changes, repair, write_repaired
from mini_fsod.data.subsets import base_set, hidden_boxes, is_of, is_target, training_set
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import is_file, real, write_bytes
from mini_fsod.labels import LabelMap, label_map, novel_names, one_of


def run(
    path: Path,
    novel: str | None,
    split: str | None,
    subset: str | None,
    root: Path | None,
    images: bool,
    fix: Path | None,
    sheet: Path | None,
    as_json: bool,
) -> bool:
    """True if the data set has no problem."""
    name = name_of(path)
    one_of(split, novel)
    data, problems = read_with_problems(path, subset, root)
    # a set that is named is meant to be trained on
    where, training = training_set(data) if subset is None else ("", data)
    labels, unknown = roles(data, split, novel, name, readable=not problems)
    # of what could not be read, and of a set that is looked at alone, less is known
    whole = subset is None and not problems and len(data.boxes) > 0
    unknown += base_problems(training, labels, name, where, whole)
    # a copy should have no picture that fails later
    decode = images or fix is not None
    with console.progress("decoding pictures" if decode else "opening pictures", len(data)) as done:
        pictures, sizes = picture_problems(data, decode, done)
    if data.kind == "coco" and len(pictures) == len(data) and not sizes:
        pictures = [_elsewhere(p, is_file(path)) for p in pictures]
    problems += class_problems(data) + box_problems(data) + duplicate_problems(data)
    problems += file_problems(data) + pictures
    copies = _copies(data, sorted(sizes)) if decode else []
    problems += leak_problems(data, copies) if decode else []
    # a file that could not be read is empty for that reason
    problems = (problems or empty_problems(data, name)) + unknown
    figures = summary(data, labels, sizes, where, training)
    notes = [*data.notes, *copy_notes(data, copies), *notes_of_novel(figures)]
    if as_json:
        print(
            json.dumps(
                figures | {"notes": notes, "problems": [asdict(p) for p in problems]},
                allow_nan=False,
            )
        )
    else:
        show_summary(name, figures, data.kind)
        for line in notes:
            console.note(f"NOTE {line}")
        console.show_problems(problems, hint=" (--json lists all)")
    if sheet is not None and sizes:
        write_sheet(sheet, data, labels, sorted(sizes))
    if fix is not None:
        closed = None if is_file(path) and data.kind == "coco" else data_folder(path)
        write_fixed(fix, data, labels, sizes, problems, closed)
    if not as_json:
        told = f"[bold red]{console.count(len(problems), 'problem')}[/]"
        verdict = told if problems else "[bold green]No problems[/]"
        mendable = sizes and any(p.kind not in UNREPAIRED for p in problems)
        hint = "; [dim]--fix OUT writes a repaired copy[/]" if mendable and fix is None else ""
        console.err.print(f"\n{verdict} in {console.plain(name)}{hint}", soft_wrap=True)
    return not problems


def _copies(data: Dataset, readable: list[int]) -> list[list[int]]:
    """Images with the same picture, a group each."""
    groups = same_content([data.path(i) for i in readable])
    return [[readable[n] for n in group] for group in groups]


def roles(
    data: Dataset, split: str | None, novel: str | None, name: str, readable: bool
) -> tuple[LabelMap, list[Problem]]:
    """The label map; novel classes that are not there are one problem among the others."""
    try:
        novel_names(split, novel)
        if not data.classes and not readable:
            # a set that could not be read has no classes to compare the novel ones with
            return LabelMap((), ()), []
        labels = label_map(data.classes, split, novel)
        empty = [one for one in labels.novel if not is_of(data, (one,)).any()]
        what = "there is not a single box of it"
        fix = "draw boxes of it in some pictures, or leave it out of the novel classes"
        return labels, [Problem("novel-empty", name, f"class {one}", what, fix) for one in empty]
    except UserError as error:
        record = "--split" if split else "--novel"
        problem = Problem("novel-unknown", name, record, error.what, error.fix.rstrip("."))
        return LabelMap(tuple(dict.fromkeys(data.classes)), ()), [problem]


def base_problems(
    training: Dataset, labels: LabelMap, name: str, where: str, whole: bool
) -> list[Problem]:
    """Novel classes, but nothing to train on before them, as `mini run` would say.

    Whether the images of `training`, called `where`, have a base box is asked of `whole` data.
    """
    what = "there is not a single box of a base class to train on"
    if labels.novel and not labels.base:
        fix = "name fewer; a data set of new classes alone (shots.file) is checked without --novel"
        return [Problem("base-empty", name, "", f"all classes are novel: {what}", fix)]
    if not labels.novel or not whole or (is_target(training) & is_of(training, labels.base)).any():
        return []
    what += f" in {where}" if where else ""
    fix = "draw boxes of base classes there; --subset counts in another image set"
    return [Problem("base-empty", name, "", what, fix)]


def _elsewhere(problem: Problem, is_given: bool) -> Problem:
    """Another fix for pictures that are all missing; `--root` is for a file that is given."""
    if problem.kind != "picture-missing":
        return problem
    fix = "name the folder of the pictures with --root"
    return replace(problem, fix=fix if is_given else f"give the .json file, and {fix}")


def default_sheet(path: Path, root: Path | None) -> Path:
    """NAME-check.png here, or beside the data folder where "here" is in it: it is no part of it."""
    name = f"{Path(name_of(path)).stem}-check.png"
    folder = real(root or data_folder(path))
    here = real(Path())
    return folder.parent / name if folder in (here, *here.parents) else Path(name)


def summary(
    data: Dataset,
    labels: LabelMap,
    sizes: dict[int, tuple[int, int]],
    where: str,
    training: Dataset,
) -> dict[str, Any]:
    """The figures of the table: counts by class, sizes, and how novel classes meet base ones.

    The latter in the images that are trained on alone, called `where`: nothing else is mined.
    """
    boxes = data.boxes
    with np.errstate(over="ignore", invalid="ignore"):
        side = np.sqrt(np.maximum(boxes.xywh[:, 2] * boxes.xywh[:, 3], 0))
    finite = np.isfinite(side)
    mineable = hidden_boxes(training, labels)
    classes = {}
    for name in labels.classes:
        own = is_of(data, (name,))
        classes[name] = {
            "role": "novel" if name in labels.novel else "base",
            "images": len(np.unique(boxes.image[own])),
            "boxes": int(own.sum()),
            "difficult": int(boxes.difficult[own].sum()),
            "crowd": int((boxes.crowd | boxes.ignore)[own].sum()),
            "median_side": float(np.median(side[own & finite])) if (own & finite).any() else None,
        }
        if name in mineable:
            classes[name]["training_boxes"], classes[name]["beside_base"] = mineable[name]
    known = np.array(list(sizes.values()), dtype=np.int64).reshape(-1, 2)
    return {
        "kind": data.kind,
        "images": len(data),
        "boxes": len(boxes),
        "subsets": {name: len(part) for name, part in data.subsets.items()},
        "sizes": {
            axis: [int(f(known[:, a])) for f in (np.min, np.median, np.max)] if len(known) else None
            for a, axis in enumerate(("width", "height"))
        },
        "label_map": labels.to_json(),
        "training_set": where or None,
        "training_images": len(training),
        "base_set_images": len(base_set(training, labels)) if labels.novel else None,
        "classes": classes,
    }


def show_summary(name: str, figures: dict[str, Any], kind: str) -> None:
    kinds = {"coco": "COCO", "voc": "VOC", "yolo": "YOLO", "folder": "pictures without annotations"}
    console.out.print(
        f"[bold]{console.plain(name)}[/]  {kinds[kind]}, {console.count(figures['images'], 'image')}, "
        f"{console.count(figures['boxes'], 'box')}, {console.count(len(figures['classes']), 'class')}",
        soft_wrap=True,
    )
    if figures["subsets"]:
        united = {n: count for n, count in figures["subsets"].items() if count and "/" not in n}
        sets = ", ".join(f"{n} {count:,}" for n, count in united.items())
        console.out.print(f"image sets  {console.plain(sets)}", soft_wrap=True)
    if figures["sizes"]["width"]:
        spans = (f"{k} {a} to {c}, median {b}" for k, (a, b, c) in figures["sizes"].items())
        console.out.print(f"pictures    {'; '.join(spans)} px")
    there = f" in {console.plain(figures['training_set'])}" if figures["training_set"] else ""
    if figures["base_set_images"] is not None:
        images = console.count(figures["base_set_images"], "image")
        console.out.print(f"base set    {images} with a base box{there}", soft_wrap=True)
    if figures["classes"]:
        console.table(class_table(figures["classes"], there))
    if figures["label_map"]["novel"]:
        console.out.print(
            "[dim]Novel objects beside a base one are taught as background by ordinary training. "
            f"Mining looks for them, and for others, in all images{there}; counted are those that "
            "have a box.[/]",
            soft_wrap=True,
        )


def notes_of_novel(figures: dict[str, Any]) -> list[str]:
    """A sentence for each novel class that has boxes, but none where a run would look for it."""
    where = figures["training_set"]
    return [
        f"{name} has no box in {where}, which a run trains on, mines and draws shots from "
        f"({row['boxes']:,} elsewhere); shots may lie in a data set of their own (shots.file)"
        for name, row in figures["classes"].items()
        if row["role"] == "novel" and row["boxes"] and not row["training_boxes"]
    ]


def class_table(classes: dict[str, dict[str, Any]], there: str) -> Table:
    novel = any(row["role"] == "novel" for row in classes.values())
    flags = [f for f in ("difficult", "crowd") if any(row[f] for row in classes.values())]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("class")
    for column in ("images", "boxes", *flags, "median side"):
        table.add_column(column, justify="right")
    if novel:
        table.add_column(f"beside a base object{there}", justify="right", no_wrap=True)
    for name, row in classes.items():
        style = "bold magenta" if row["role"] == "novel" else ""
        side = "-" if row["median_side"] is None else f"{row['median_side']:.0f} px"
        cells = [f"{row[c]:,}" for c in ("images", "boxes", *flags)] + [side]
        if novel and "beside_base" in row:
            beside, boxes = row["beside_base"], row["training_boxes"]
            share = f" ({beside / boxes:.0%})" if boxes else ""
            cells.append(f"{beside:,} of {boxes:,}{share}")
        table.add_row(console.plain(name) + (" (novel)" if style else ""), *cells, style=style)
    return table


def write_sheet(path: Path, data: Dataset, labels: LabelMap, readable: list[int]) -> None:
    from io import BytesIO

    from mini_fsod.draw import pick_images, sheet_of

    chosen = pick_images(data.select(readable), labels)
    picture = sheet_of(data, labels, [readable[i] for i in chosen])
    buffer = BytesIO()
    picture.save(buffer, "PNG")
    write_bytes(path, buffer.getvalue())
    console.note(f"contact sheet: {path}")


def write_fixed(
    out: Path,
    data: Dataset,
    labels: LabelMap,
    sizes: dict[int, tuple[int, int]],
    problems: list[Problem],
    closed: Path | None,
) -> None:
    """The repaired copy, and what was done; it may not lie in the folder `closed`."""
    lost = [p for p in problems if (p.kind, p.record) == ("set-missing", "train")]
    if lost:
        raise UserError(f"{lost[0]}.", f"A copy would have nothing to train on: {lost[0].fix}")
    good = repair(data, sizes)
    with console.progress("copying pictures", len(good.data)) as done:
        write_repaired(out, good.data, good.labels(labels), closed, done)
    size = f"{console.count(len(good.data), 'image')}, {console.count(len(good.data.boxes), 'box')}"
    console.err.print(
        f"\n[bold]Repaired copy[/] in {console.plain(out)}: {size}",
        soft_wrap=True,
    )
    for line in changes(problems, data, good) or ["nothing had to be changed"]:
        console.err.print(f"  {console.plain(line)}", soft_wrap=True)
