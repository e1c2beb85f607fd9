"""`mini check`: what a data set holds, what can be mined in it, and everything wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mini_fsod import console
from mini_fsod.commands.options import AsJson, Data, Novel, Split, Subset, app
from mini_fsod.data.layout import data_folder, name_of
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import is_file, real, write_bytes
from mini_fsod.labels import LabelMap, refuse_split_with_novel

if TYPE_CHECKING:
    from mini_fsod.data.dataset import Dataset

KINDS = {"coco": "COCO", "voc": "VOC", "yolo": "YOLO", "folder": "images without annotations"}


@app.command("check")
def check_command(
    data: Data,
    novel: Novel = None,
    split: Split = None,
    subset: Subset = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="The folder of a COCO file's images, if they are not next to it. "
            "Example: --root photos"
        ),
    ] = None,
    images: Annotated[
        bool,
        typer.Option(
            "--images",
            help="Decode every image, not only its header, and look for duplicates. "
            "Example: --images",
        ),
    ] = False,
    fix: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT", help="Write a repaired copy into a new folder. Example: --fix repaired"
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            help="File of the contact sheet; by default NAME-check.png in the current folder, or "
            "next to the data if the current folder is part of it. Example: --sheet look.png"
        ),
    ] = None,
    no_sheet: Annotated[
        bool, typer.Option("--no-sheet", help="Write no contact sheet. Example: --no-sheet")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a data set, and say what can be mined in it.

    Prints counts, image sizes and all problems; the exit code is 2 if there are any.
    Example: mini check data/VOCdevkit --split voc-split1 --images
    """
    if no_sheet:
        sheet = None
    elif sheet is None:
        sheet = _default_sheet(data, root)
    if not check_data(data, novel, split, subset, root, images, fix, sheet, as_json):
        raise typer.Exit(2)


def check_data(
    path: Path,
    novel: str | None = None,
    split: str | None = None,
    subset: str | None = None,
    root: Path | None = None,
    images: bool = False,
    fix: Path | None = None,
    sheet: Path | None = None,
    as_json: bool = False,
) -> bool:
    """Check a data set and print the result; True if it has no problem."""
    from mini_fsod.data import check
    from mini_fsod.data.duplicates import copy_notes, leak_problems, same_content
    from mini_fsod.data.read import read_with_problems
    from mini_fsod.data.subsets import default_training_set
    from mini_fsod.data.summary import base_problems, novel_notes, split_classes, summarize

    name = name_of(path)
    refuse_split_with_novel(split, novel)
    data, problems = read_with_problems(path, subset, root)
    # an image set chosen by --subset is checked as the one to train on
    training_name, training = default_training_set(data) if subset is None else ("", data)
    labels, class_problems = split_classes(data, split, novel, name, readable=not problems)
    complete = subset is None and not problems and len(data.boxes) > 0
    class_problems += base_problems(training, labels, name, training_name, complete)
    decode = images or fix is not None  # a repaired copy should hold no image that fails later
    with console.progress("decoding images" if decode else "opening images", len(data)) as done:
        image_problems, sizes = check.picture_problems(data, decode, done)
    if data.kind == "coco" and len(image_problems) == len(data) and not sizes:
        image_problems = [_suggest_root(p, is_file(path)) for p in image_problems]
    problems += check.class_problems(data) + check.box_problems(data)
    problems += check.duplicate_problems(data) + check.file_problems(data) + image_problems
    duplicates: list[list[int]] = []  # groups of images with the same content
    if decode:
        readable = sorted(sizes)
        groups = same_content([data.path(i) for i in readable])
        duplicates = [[readable[n] for n in group] for group in groups]
        problems += leak_problems(data, duplicates)
    # data that could not be read is empty for that reason: no second problem
    problems = (problems or check.empty_problems(data, name)) + class_problems
    figures = summarize(data, labels, sizes, training, training_name)
    notes = [*data.notes, *copy_notes(data, duplicates), *novel_notes(figures)]
    if as_json:
        result = figures | {"notes": notes, "problems": [asdict(p) for p in problems]}
        print(json.dumps(result, allow_nan=False))
    else:
        _show_summary(name, figures)
        for line in notes:
            console.note(f"NOTE {line}")
        console.show_problems(problems, hint=" (--json lists all)")
    if sheet is not None and sizes:
        _write_sheet(sheet, data, labels, sorted(sizes))
    if fix is not None:
        protected = None if is_file(path) and data.kind == "coco" else data_folder(path)
        _write_repaired_copy(fix, data, labels, sizes, problems, protected)
    if not as_json:
        _show_verdict(name, problems, suggest_fix=bool(sizes) and fix is None)
    return not problems


def _suggest_root(problem: Problem, is_json_file: bool) -> Problem:
    """Another fix where all images are missing; `--root` needs the .json file itself."""
    if problem.kind != "picture-missing":
        return problem
    fix = "name the folder of the images with --root"
    return replace(problem, fix=fix if is_json_file else f"give the .json file, and {fix}")


def _default_sheet(path: Path, root: Path | None) -> Path:
    """NAME-check.png in the current folder, or next to the data if that folder is part of it."""
    name = f"{Path(name_of(path)).stem}-check.png"
    folder = real(root or data_folder(path))
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
        sets = ", ".join(f"{n} {count:,}" for n, count in merged.items())
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
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("class")
    for column in ("images", "boxes", *flags, "median side"):
        table.add_column(column, justify="right")
    if has_novel:
        table.add_column(f"next to a base object{where}", justify="right", no_wrap=True)
    for name, row in classes.items():
        style = "bold magenta" if row["role"] == "novel" else ""
        side = "-" if row["median_side"] is None else f"{row['median_side']:.0f} px"
        cells = [f"{row[c]:,}" for c in ("images", "boxes", *flags)] + [side]
        if has_novel and "beside_base" in row:
            beside, boxes = row["beside_base"], row["training_boxes"]
            share = f" ({beside / boxes:.0%})" if boxes else ""
            cells.append(f"{beside:,} of {boxes:,}{share}")
        table.add_row(console.plain(name) + (" (novel)" if style else ""), *cells, style=style)
    return table


def _write_sheet(path: Path, data: Dataset, labels: LabelMap, readable: list[int]) -> None:
    from mini_fsod.draw import pick_images, sheet_of

    chosen = pick_images(data.select(readable), labels)
    content = BytesIO()
    sheet_of(data, labels, [readable[i] for i in chosen]).save(content, "PNG")
    write_bytes(path, content.getvalue())
    console.note(f"contact sheet: {path}")


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
    from mini_fsod.data.repair import UNREPAIRED

    found = f"[bold red]{console.count(len(problems), 'problem')}[/]"
    verdict = found if problems else "[bold green]No problems[/]"
    repairable = suggest_fix and any(p.kind not in UNREPAIRED for p in problems)
    hint = "; [dim]--fix OUT writes a repaired copy[/]" if repairable else ""
    console.err.print(f"\n{verdict} in {console.plain(name)}{hint}", soft_wrap=True)
