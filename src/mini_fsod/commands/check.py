"""`mini check`: what is in a data set, what can be mined in it, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from mini_fsod import show
from mini_fsod.data.check import box_problems, class_problems, empty_problems, picture_problems
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import look
from mini_fsod.data.repair import changes, repaired, write_repaired
from mini_fsod.data.split import base_set, hidden
from mini_fsod.errors import Problem
from mini_fsod.files import write_bytes
from mini_fsod.labels import LabelMap, label_map


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
    data, problems = look(path, subset, root)
    # a set that could not be read has no classes to compare the novel ones with
    labels = label_map(data.classes, split, novel) if data.classes else LabelMap((), ())
    with show.progress("decoding pictures" if images else "opening pictures", len(data)) as done:
        pictures, sizes = picture_problems(data, images, done)
    problems += class_problems(data) + box_problems(data) + pictures
    # a file that could not be read is empty for that reason
    problems = problems or empty_problems(data, path.name)
    figures = summary(data, labels, sizes)
    if as_json:
        print(json.dumps(figures | {"problems": [asdict(p) for p in problems]}, ensure_ascii=False))
    else:
        show_summary(path.name, figures, data.kind)
    if sheet is not None and sizes:
        write_sheet(sheet, data, labels, sorted(sizes))
    if problems and not as_json:
        show.show_problems(problems)
    if fix is not None:
        write_fixed(fix, data, labels, sizes, problems)
    if not as_json:
        verdict = (
            f"\n[bold red]{len(problems):,} problems[/] in {path.name}"
            if problems
            else f"\n[bold green]No problems[/] in {path.name}"
        )
        hint = "" if not problems or fix else "; [dim]--fix OUT writes a repaired copy[/]"
        show.err.print(verdict + hint)
    return not problems


def summary(data: Dataset, labels: LabelMap, sizes: dict[int, tuple[int, int]]) -> dict[str, Any]:
    """The figures of the table: counts by class, sizes, and how novel classes meet base ones."""
    boxes = data.boxes
    side = np.sqrt(np.maximum(boxes.xywh[:, 2] * boxes.xywh[:, 3], 0))
    mineable = hidden(data, labels)
    classes = {}
    for name in labels.classes:
        own = boxes.label == (data.classes.index(name) if name in data.classes else -1)
        classes[name] = {
            "role": "novel" if name in labels.novel else "base",
            "images": len(np.unique(boxes.image[own])),
            "boxes": int(own.sum()),
            "difficult": int(boxes.difficult[own].sum()),
            "crowd": int((boxes.crowd | boxes.ignore)[own].sum()),
            "median_side": float(np.nanmedian(side[own])) if own.any() else None,
        }
        if name in mineable:
            classes[name]["beside_base"] = mineable[name][1]
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
        "base_set_images": len(base_set(data, labels)) if labels.novel else None,
        "classes": classes,
    }


def show_summary(name: str, figures: dict[str, Any], kind: str) -> None:
    kinds = {"coco": "COCO", "voc": "VOC", "yolo": "YOLO", "folder": "pictures without annotations"}
    show.out.print(
        f"[bold]{name}[/]  {kinds[kind]}, {figures['images']:,} images, "
        f"{figures['boxes']:,} boxes, {len(figures['classes'])} classes"
    )
    if figures["subsets"]:
        united = {n: count for n, count in figures["subsets"].items() if "/" not in n}
        sets = ", ".join(f"{n} {count:,}" for n, count in united.items())
        show.out.print(f"image sets  {sets}")
    if figures["sizes"]["width"]:
        spans = (f"{k} {a} to {c}, median {b}" for k, (a, b, c) in figures["sizes"].items())
        show.out.print(f"pictures    {'; '.join(spans)} px")
    if figures["base_set_images"] is not None:
        show.out.print(f"base set    {figures['base_set_images']:,} images with a base box")
    if figures["classes"]:
        show.out.print(class_table(figures["classes"]))
    if figures["label_map"]["novel"]:
        show.out.print(
            "[dim]Novel objects beside a base object lie in base images: they can be mined.[/]"
        )


def class_table(classes: dict[str, dict[str, Any]]) -> Table:
    novel = any(row["role"] == "novel" for row in classes.values())
    flags = [f for f in ("difficult", "crowd") if any(row[f] for row in classes.values())]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("class")
    for column in ("images", "boxes", *flags, "median side"):
        table.add_column(column, justify="right")
    if novel:
        table.add_column("beside a base object", justify="right", no_wrap=True)
    for name, row in classes.items():
        style = "bold magenta" if row["role"] == "novel" else ""
        side = "-" if row["median_side"] is None else f"{row['median_side']:.0f} px"
        cells = [f"{row[c]:,}" for c in ("images", "boxes", *flags)] + [side]
        if novel and "beside_base" in row:
            share = row["beside_base"] / row["boxes"] if row["boxes"] else 0
            cells.append(f"{row['beside_base']:,} of {row['boxes']:,} ({share:.0%})")
        table.add_row(name + (" (novel)" if style else ""), *cells, style=style)
    return table


def write_sheet(path: Path, data: Dataset, labels: LabelMap, readable: list[int]) -> None:
    from io import BytesIO

    from mini_fsod.draw import pick_images, sheet_of

    chosen = pick_images(data.select(readable), labels)
    picture = sheet_of(data, labels, [readable[i] for i in chosen])
    buffer = BytesIO()
    picture.save(buffer, "PNG")
    write_bytes(path, buffer.getvalue())
    show.note(f"contact sheet: {path}")


def write_fixed(
    out: Path,
    data: Dataset,
    labels: LabelMap,
    sizes: dict[int, tuple[int, int]],
    problems: list[Problem],
) -> None:
    good = repaired(data, sizes)
    with show.progress("copying pictures", len(good)) as done:
        write_repaired(
            out,
            good,
            LabelMap(
                tuple(c for c in labels.base if c in good.classes),
                tuple(c for c in labels.novel if c in good.classes),
            ),
            done,
        )
    show.err.print(
        f"\n[bold]Repaired copy[/] in {out}: {len(good):,} images, {len(good.boxes):,} boxes"
    )
    for line in changes(problems) or ["nothing had to be changed"]:
        show.err.print(f"  {line}")
