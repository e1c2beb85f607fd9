"""`mini checkpoint`: show what a checkpoint holds, or write a smaller copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mini_fsod import console
from mini_fsod.commands.options import RunOrCheckpoint, app, out_option
from mini_fsod.errors import UserError

checkpoints = typer.Typer(
    no_args_is_help=True,
    help="Inspect checkpoints, or make them smaller.\n\nExample: mini checkpoint show runs/demo",
)
app.add_typer(checkpoints, name="checkpoint")


@checkpoints.command("show")
def show_command(file: RunOrCheckpoint) -> None:
    """Show what a checkpoint holds.

    Example: mini checkpoint show runs/demo
    """
    from mini_fsod import checkpoint

    path = checkpoint.find(file)
    header = checkpoint.read_header(path)
    settings, labels = header.settings, header.labels
    backbone = settings.backbone
    table = console.columns("", "")

    def row(name: str, value: object) -> None:
        table.add_row(f"[dim]{console.plain(name)}[/]", console.plain(value))

    row("file", path)
    row("size", console.size(path.stat().st_size))
    row(
        "backbone", f"{backbone.name}, {backbone.norm} norm, {backbone.frozen_stages} frozen stages"
    )
    row("classifier", settings.classifier + (", IoU branch" if settings.iou_branch else ""))
    row("test size", f"short side {settings.test.min_size}, long at most {settings.test.max_size}")
    row(f"base ({len(labels.base)})", ", ".join(labels.base) or "-")
    row(f"novel ({len(labels.novel)})", ", ".join(labels.novel) or "-")
    for name, value in sorted(header.about.items()):
        row(name, "-" if value is None else value)
    if header.left_out:
        tensors = console.count(len(header.left_out.tensors), "frozen tensor")
        row("left out", f"{tensors}, loaded from {header.about.get('weights')}")
    console.table(table)


@checkpoints.command("slim")
def slim_command(
    file: RunOrCheckpoint,
    out: Annotated[Path, out_option("The file to write.", "small.safetensors")],
) -> None:
    """Write a copy in float16, without frozen layers.

    Example: mini checkpoint slim runs/demo -o small.safetensors
    """
    from mini_fsod import checkpoint

    path = checkpoint.find(file)
    if out.suffix != ".safetensors":
        raise UserError(
            f"{out}: the name of a checkpoint must end with .safetensors.",
            "For example: -o small.safetensors",
        )
    done = checkpoint.slim(path, out)
    if done.kept:
        console.note(f"the frozen layers stay in the file. {done.kept}")
    for name in done.float32:
        console.note(f"{name} exceeds the range of float16 and is not converted")
    before, after = (console.size(p.stat().st_size) for p in (path, out))
    console.note(f"{out}: {after} instead of {before}")
    if done.left_out:
        weights = checkpoint.read_header(out).about["weights"]
        tensors = console.count(done.left_out, "frozen tensor")
        console.note(f"{tensors} left out; loading this file needs {weights}")
