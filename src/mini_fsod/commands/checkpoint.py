"""`mini checkpoint show` and `mini checkpoint slim`: what a checkpoint is, and a smaller copy."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from mini_fsod import checkpoint, console
from mini_fsod.errors import UserError


def run_show(run_or_checkpoint: Path) -> None:
    path = checkpoint.find(run_or_checkpoint)
    header = checkpoint.read_header(path)
    settings, labels = header.settings, header.labels
    body = settings.backbone
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim")
    table.add_column()

    def row(name: str, value: object) -> None:
        table.add_row(console.plain(name), console.plain(value))

    row("file", path)
    row("size", f"{path.stat().st_size / 2**20:.1f} MiB")
    row("backbone", f"{body.name}, {body.norm} norm, {body.frozen_stages} stages frozen")
    row("classifier", settings.classifier + (", IoU branch" if settings.iou_branch else ""))
    row("test size", f"short side {settings.test.min_size}, long at most {settings.test.max_size}")
    row(f"base ({len(labels.base)})", ", ".join(labels.base) or "-")
    row(f"novel ({len(labels.novel)})", ", ".join(labels.novel) or "-")
    for name, value in sorted(header.about.items()):
        row(name, "-" if value is None else value)
    if header.left_out:
        left = console.count(len(header.left_out.tensors), "frozen tensor")
        row("left out", f"{left}, to come from {header.about.get('weights')}")
    console.table(table)


def run_slim(run_or_checkpoint: Path, out: Path) -> None:
    path = checkpoint.find(run_or_checkpoint)
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: not the name of a checkpoint.", "Let it end with .safetensors.")
    done = checkpoint.slim(path, out)
    if done.kept:
        console.note(f"the frozen layers stay in the file. {done.kept}")
    for name in done.float32:
        console.note(f"{name} is beyond float16's range and stays as it is")
    before, after = (f"{p.stat().st_size / 2**20:.1f}" for p in (path, out))
    console.note(f"{out}: {after} MiB instead of {before}")
    if done.left_out:
        weights = checkpoint.read_header(out).about["weights"]
        frozen = console.count(done.left_out, "frozen tensor")
        console.note(f"{frozen} left out: whoever loads it needs {weights}")
