"""`mini check`: what a data set holds, what can be mined in it, and everything wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer import Option

from mini_fsod import console
from mini_fsod.commands.options import AsJson, Data, Novel, Split, Subset, app, flag
from mini_fsod.data.layout import data_folder, is_archive, name_of
from mini_fsod.errors import Problem, UserError, total
from mini_fsod.files import is_file, real
from mini_fsod.labels import LabelMap

if TYPE_CHECKING:
    from mini_fsod.data.dataset import Dataset

ROWS = 1000  # of the table of classes
KINDS = {
    "coco": "COCO",
    "voc": "VOC",
    "yolo": "YOLO",
    "cvat": "CVAT",
    "label studio": "Label Studio",
    "fiftyone": "FiftyOne",
    "folder": "images without annotations",
}
SETS_SHOWN = 5  # image sets whose boxes the table counts apart


@app.command("check")
def check_command(
    data: Data,
    novel: Novel = None,
    split: Split = None,
    subset: Subset = None,
    boxes: Annotated[
        Path | None,
        Option(
            help="Boxes of the novel classes, where they are not in DATA: as for mini init. "
            "Example: --boxes five.json"
        ),
    ] = None,
    root: Annotated[
        Path | None,
        Option(help="Folder of the images, if not with the annotations. Example: --root photos"),
    ] = None,
    images: Annotated[
        bool, flag("--images", "Decode every image, and look for duplicates.")
    ] = False,
    fix: Annotated[
        Path | None,
        Option(metavar="OUT", help="Write a repaired copy to a folder. Example: --fix repaired"),
    ] = None,
    sheet: Annotated[
        Path | None,
        Option(
            help="File of the contact sheet; default: NAME-check.png in the current folder, or "
            "next to the data; never over another sheet or a photo. Example: --sheet look.png"
        ),
    ] = None,
    no_sheet: Annotated[bool, flag("--no-sheet", "Write no contact sheet.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a data set, and say what can be mined in it.

    Prints counts, image sizes and all problems; the exit code is 2 if there are any.
    DATA may be a configuration, as written by mini init: then its data, classes and shots.
    Example: mini check data/VOCdevkit --split voc-split1 --images
    """
    from mini_fsod.commands.check_given import given, shot_notes
    from mini_fsod.data import check
    from mini_fsod.data.duplicates import copy_notes, leak_problems, same_content
    from mini_fsod.data.read import read_with_problems
    from mini_fsod.data.subsets import default_training_set
    from mini_fsod.data.summary import (
        base_problems,
        novel_notes,
        split_classes,
        summarize,
        unlabelled_notes,
    )
    from mini_fsod.data.unlisted import unlisted_notes

    asked = given(data, root, split, novel, boxes)
    data, root, split, novel = asked.data, asked.root, asked.split, asked.novel
    name = name_of(data)
    dataset, problems = read_with_problems(data, subset, root, asked.boxes)
    shots = asked.shots(dataset)
    # an image set chosen by --subset is checked as the one to train on
    training_name, training = default_training_set(dataset) if subset is None else ("", dataset)
    labels, class_problems = split_classes(
        dataset, split, novel, name, readable=not problems, shots=shots
    )
    complete = subset is None and not problems and len(dataset.boxes) > 0
    if not asked.has_detector:
        class_problems += base_problems(training, labels, name, training_name, complete)
    decode = images or fix is not None  # a repaired copy should hold no image that fails later
    with console.progress("decoding images" if decode else "opening images", len(dataset)) as done:
        image_problems, sizes = check.picture_problems(dataset, decode, done)
    if dataset.kind not in ("yolo", "folder") and not sizes:
        image_problems = [_suggest_root(p) for p in image_problems]
    problems += check.class_problems(dataset) + check.box_problems(dataset)
    problems += check.duplicate_problems(dataset) + check.file_problems(dataset) + image_problems
    duplicates: list[list[int]] = []  # groups of images with the same content
    if decode:
        readable = sorted(sizes)
        groups = same_content([dataset.path(i) for i in readable])
        duplicates = [[readable[n] for n in group] for group in groups]
        problems += leak_problems(dataset, duplicates)
    # data that could not be read is empty for that reason: no second problem
    problems = (problems or check.empty_problems(dataset, name)) + class_problems
    figures = summarize(dataset, labels, sizes, training, training_name)
    notes = [*dataset.notes, *copy_notes(dataset, duplicates), *novel_notes(figures)]
    notes += [] if asked.has_detector else unlabelled_notes(dataset, training, labels)
    notes += [] if asked.uses_unlisted or subset else unlisted_notes(dataset, data)
    notes += [] if shots is None else shot_notes(*shots, labels.novel)
    if as_json:
        result = figures | {"notes": notes, "problems": [asdict(p) for p in problems]}
        print(json.dumps(result, allow_nan=False))
    else:
        _show_summary(name, figures)
        for line in notes:
            console.note(f"NOTE {line}")
        console.show_problems(problems, hint=" (--json lists more)")
    if sizes and not no_sheet:
        about = f"{real(data)} {subset or ''}".strip()
        path = sheet or _default_sheet(data, root, subset)
        _write_sheet(path, about, sheet is not None, dataset, labels, sorted(sizes))
    if fix is not None:
        one_file = is_file(data) and (dataset.kind != "yolo" or is_archive(data))
        protected = None if one_file else data_folder(data)
        _write_repaired_copy(fix, dataset, labels, sizes, problems, protected)
    if not as_json:
        _show_verdict(name, problems, suggest_fix=bool(sizes) and fix is None)
    if problems:
        raise typer.Exit(2)


def _suggest_root(problem: Problem) -> Problem:
    """Another fix where all images are missing."""
    if problem.kind != "picture-missing":
        return problem
    return replace(problem, fix="name the folder of the images with --root")


def _default_sheet(path: Path, root: Path | None, subset: str | None) -> Path:
    """NAME-check.png in the current folder, or next to the data if that folder is part of it."""
    part = "" if subset is None else "-" + "".join(c if c.isalnum() else "-" for c in subset)
    name = f"{Path(name_of(path)).stem}{part}-check.png"
    folder = real(root or (path if is_archive(path) else data_folder(path)))
    current = real(Path())
    return folder.parent / name if folder in (current, *current.parents) else Path(name)


def _show_summary(name: str, figures: dict[str, Any]) -> None:
    console.out.print(
        f"[bold]{console.plain(name)}[/]  {KINDS[figures['kind']]}, "
        f"{console.count(figures['images'], 'image')}, {console.count(figures['boxes'], 'box')}, "
        f"{console.count(len(figures['classes']), 'class')}",
        soft_wrap=True,
    )
    if figures["subsets"]:
        merged = {n: count for n, count in figures["subsets"].items() if count and "/" not in n}
        sets = ", ".join(f"{n} {count:,}" for n, count in merged.items()) or "without images"
        console.out.print(f"image sets  {console.plain(sets)}", soft_wrap=True)
    if figures["sizes"]["width"]:
        spans = (f"{k} {a} to {c}, median {b}" for k, (a, b, c) in figures["sizes"].items())
        console.out.print(f"sizes       {'; '.join(spans)} px")
    where = f" in {console.plain(figures['training_set'])}" if figures["training_set"] else ""
    if figures["base_set_images"] is not None:
        images = console.count(figures["base_set_images"], "image")
        console.out.print(f"base set    {images} with a base box{where}", soft_wrap=True)
    if figures["classes"]:
        console.table(class_table(figures["classes"], where))
    if figures["label_map"]["novel"]:
        console.out.print(
            "[dim]Ordinary training treats a novel object next to a base object as background. "
            f"Mining searches all images{where}. Only labelled novel boxes are counted here.[/]",
            soft_wrap=True,
        )


def class_table(classes: dict[str, dict[str, Any]], where: str) -> Table:
    """One row per class; `where` names the images in which co-occurrence was counted."""
    has_novel = any(row["role"] == "novel" for row in classes.values())
    flags = [f for f in ("difficult", "crowd") if any(row[f] for row in classes.values())]
    beside_base = [f">next to a base object{where}"] if has_novel else []
    counts = ("images", "boxes", *flags)
    sets = list(next(iter(classes.values()), {}).get("boxes_of_sets", {}))
    sets = sets if 1 < len(sets) <= SETS_SHOWN else []
    table = console.columns(
        "class",
        *(f">{c}" for c in counts[:2]),
        *(f">in {console.plain(name)}" for name in sets),
        *(f">{c}" for c in counts[2:]),
        ">median side",
        *beside_base,
    )
    shown = [*islice(classes.items(), ROWS)]
    for name, row in shown:
        style = "bold magenta" if row["role"] == "novel" else ""
        side = "-" if row["median_side"] is None else f"{row['median_side']:.0f} px"
        cells = [f"{row[c]:,}" for c in counts]
        cells[2:2] = [f"{row['boxes_of_sets'][name]:,}" for name in sets]
        cells.append(side)
        if has_novel and "beside_base" in row:
            beside, boxes = row["beside_base"], row["training_boxes"]
            share = f" ({beside / boxes:.0%})" if boxes else ""
            cells.append(f"{beside:,} of {boxes:,}{share}")
        table.add_row(console.plain(name) + (" (novel)" if style else ""), *cells, style=style)
    if len(classes) > len(shown):
        table.add_row(f"... and {len(classes) - len(shown):,} more (--json lists all)", style="dim")
    return table


def _write_sheet(
    path: Path, about: str, is_chosen: bool, data: Dataset, labels: LabelMap, readable: list[int]
) -> None:
    from mini_fsod.data.pick import pick_images
    from mini_fsod.draw import sheet_of
    from mini_fsod.sheet_files import write_sheet

    chosen = pick_images(data.select(readable), labels)
    sheet = sheet_of(data, labels, [readable[i] for i in chosen])
    console.note(f"contact sheet: {write_sheet(path, sheet, about, is_chosen)}")


def _write_repaired_copy(
    out: Path,
    data: Dataset,
    labels: LabelMap,
    sizes: dict[int, tuple[int, int]],
    problems: list[Problem],
    protected: Path | None,
) -> None:
    """Write the copy and list the changes; `out` must not lie in the folder `protected`."""
    from mini_fsod.data.repair import changes, repair, write_repaired

    missing = [p for p in problems if (p.kind, p.record) == ("set-missing", "train")]
    if missing:
        fix = f"A copy would have no training images: {missing[0].fix}."
        raise UserError(f"{missing[0]}.", fix)
    good = repair(data, sizes)
    with console.progress("copying images", len(good.data)) as done:
        write_repaired(out, good.data, good.labels(labels), protected, done)
    size = f"{console.count(len(good.data), 'image')}, {console.count(len(good.data.boxes), 'box')}"
    console.err.print(f"\n[bold]Repaired copy[/] in {console.plain(out)}: {size}", soft_wrap=True)
    for line in changes(problems, data, good) or ["nothing had to be changed"]:
        console.err.print(f"  {console.plain(line)}", soft_wrap=True)


def _show_verdict(name: str, problems: list[Problem], suggest_fix: bool) -> None:
    from mini_fsod.data.problems import UNREPAIRED

    found = f"[bold red]{console.count(total(problems), 'problem')}[/]"
    verdict = found if problems else "[bold green]No problems[/]"
    repairable = suggest_fix and any(p.kind not in UNREPAIRED for p in problems)
    hint = "; [dim]--fix OUT writes a repaired copy[/]" if repairable else ""
    console.err.print(f"\n{verdict} in {console.plain(name)}{hint}", soft_wrap=True)
