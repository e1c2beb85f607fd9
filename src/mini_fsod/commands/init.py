"""`mini init`: from photos and a few boxes to a configuration that `mini run` takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import app, command_line, flag, out_option
from mini_fsod.data.layout import name_of
from mini_fsod.errors import UserError
from mini_fsod.files import mode, write_bytes

if TYPE_CHECKING:
    from mini_fsod.config.schema import Config
    from mini_fsod.runs.estimate import RunEstimate
    from mini_fsod.start.choose import Choice
    from mini_fsod.start.look import Found

FACT = 9  # columns before a fact
SHORT_VALUE = 20  # characters of a value that a reason may stand beside


@app.command("init")
def init_command(
    photos: Annotated[
        Path | None,
        Argument(
            metavar="PHOTOS",
            help="A folder of photos, with labels of other classes or without any; not with "
            "--from, whose photos are taken. Example: photos",
        ),
    ] = None,
    boxes: Annotated[
        Path | None,
        Option(
            help="A few boxes of the new classes: a file, folder or .zip as labelling tools export "
            "them; not needed where the photos' own labels have them. Example: --boxes five.json"
        ),
    ] = None,
    novel: Annotated[
        list[str] | None,
        Option(
            metavar="CLASS",
            help="A new class; repeatable. Default: all classes of --boxes that the photos' labels "
            "do not have. Example: --novel bolt",
        ),
    ] = None,
    add: Annotated[
        list[str] | None,
        Option(
            metavar="CLASS",
            help="A further class after a run; repeatable; with --from. Example: --add nut",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        Option(
            "--from",
            metavar="RUN",
            help="A finished run: what it found stays, as labels. Example: --from runs/bolts",
        ),
    ] = None,
    out: Annotated[
        Path | None, out_option("The configuration to write; default: PHOTOS.yaml.", "bolts.yaml")
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite the configuration.")] = False,
    no_estimate: Annotated[
        bool, flag("--no-estimate", "Do not measure what the run will cost.")
    ] = False,
) -> None:
    """Look at photos and a few boxes, and write a configuration that runs.

    Says what was chosen and why, what the run will cost here, and what may go wrong.
    Example: mini init photos --boxes five.json
    """
    name = _refuse_odd_options(photos, boxes, novel, add, run)
    out = out or Path(f"{name}.yaml")
    if mode(out) and not force:
        raise UserError(
            f"{out} exists.", "Overwrite it with --force, or choose another file with -o."
        )

    import torch

    from mini_fsod.config.load import resolve
    from mini_fsod.start.choose import as_in_file, choose
    from mini_fsod.start.look import look
    from mini_fsod.start.warn import warnings
    from mini_fsod.start.write import text_of

    gpu = torch.cuda.is_available()
    if run is not None:
        found, choices = _after(run, add or (), boxes, out, gpu)
    else:
        assert photos is not None
        found = look(photos, boxes, novel or ())
        choices = choose(found, gpu)
    choices = as_in_file(choices, out.parent)
    written = shlex.quote(str(out))
    write_bytes(out, text_of(choices, command_line(), written).encode())
    config = resolve(out)
    _show_found(found, gpu)
    _show_choices(choices)
    lines = [] if no_estimate else _show_costs(config)
    _show_warnings([*lines, *warnings(found, config)])
    console.out.print(f"\n[bold green]Written to {console.plain(out)}.[/] Next:", soft_wrap=True)
    console.out.print(f"  [bold]mini run {console.plain(written)}[/]", soft_wrap=True)


def _refuse_odd_options(
    photos: Path | None,
    boxes: Path | None,
    novel: Sequence[str] | None,
    add: Sequence[str] | None,
    run: Path | None,
) -> str:
    """The name of the configuration; a UserError where options do not go together."""
    if run is None and add:
        raise UserError("--add needs a run.", "Name it: --from runs/bolts.")
    if run is not None:
        if not add or boxes is None:
            raise UserError(
                "--from needs a class and its boxes.", "Give them: --add nut --boxes nut.json."
            )
        if photos is not None or novel:
            raise UserError(
                "--from takes the photos and classes of its run.", "Leave out PHOTOS and --novel."
            )
        words = re.findall(r"[^\W_]+", " ".join(add)) or ["more"]
        return f"{name_of(run)}-{'-'.join(words)}"
    if photos is None:
        raise UserError("No photos.", "Name their folder: mini init photos --boxes five.json.")
    return Path(name_of(photos)).stem


def _after(
    run: Path, add: Sequence[str], boxes: Path | None, out: Path, gpu: bool
) -> tuple[Found, list[Choice]]:
    """Write what the run found as labels, beside the configuration, and choose from there."""
    from mini_fsod.start import add as adding
    from mini_fsod.start.choose import choose
    from mini_fsod.start.look import look

    before = adding.earlier(run)
    adding.refuse_known(add, before.labels)
    folder = out.with_suffix("").with_name(f"{out.stem}-labels")
    adding.write_labels(before, folder)
    found = look(folder, boxes, add, adding.photos_of(before))
    choices = choose(found, gpu, before.detector)
    chosen = {choice.key for choice in choices}
    over = [c for c in adding.taken_over(before.config, choices[0].value) if c.key not in chosen]
    kept = f"{console.count(before.mined, 'mined box')} and {console.count(before.shots, 'shot')}"
    console.note(f"{folder}: labels of the photos, with {kept} of {run}")
    return found, [*choices, *over]


def _show_found(found: Found, gpu: bool) -> None:
    import numpy as np
    import torch

    from mini_fsod.commands.check import KINDS
    from mini_fsod.data.subsets import is_of
    from mini_fsod.loader.decode import cores

    kind = "without labels"
    if found.photos.kind != "folder":
        kind = f"with labels ({KINDS[found.photos.kind]})"
    long, short = found.sizes.max(axis=1), found.sizes.min(axis=1)
    width, height = int(np.median(long)), int(np.median(short))
    _fact("Photos", f"{console.count(len(found.photos), 'photo')} {kind}")
    if found.unlisted:
        _fact("", f"{len(found.unlisted):,} of them not in the annotations: without labels")
    _fact("", f"median {width} x {height} pixels, short sides {short.min()} to {short.max()}")
    boxes, shots = console.count(sum(found.boxes_of.values()), "box"), found.shots
    _fact("Boxes", f"{boxes} in {console.count(len(shots), 'photo')} ({KINDS[shots.kind]})")
    side = np.sqrt(shots.boxes.xywh[:, 2:].prod(axis=1))  # `area` may be that of a mask, or wrong
    table = console.columns(" " * FACT + "new class", ">boxes", ">photos", ">median side")
    for name, count in found.boxes_of.items():
        mask = is_of(shots, (name,))
        images = len(np.unique(shots.boxes.image[mask]))
        cells = (f"{count:,}", f"{images:,}", f"{float(np.median(side[mask])):.0f} px")
        table.add_row(f"{' ' * FACT}[magenta]{console.plain(name)}[/]", *cells)
    console.table(table)
    device = torch.cuda.get_device_name() if gpu else "no GPU"
    _fact("Machine", f"{device}, {console.count(cores(), 'core')}")


def _fact(title: str, text: str) -> None:
    console.out.print(f"[bold]{title:<{FACT}}[/]{console.plain(text)}", soft_wrap=True)


def _show_choices(choices: Sequence[Choice]) -> None:
    """Key, value and reason; a reason that does not fit beside its value stands below it."""
    console.out.print("\n[bold]Chosen[/]")
    texts = [
        ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for _, value, _ in choices
    ]
    first = max(len(choice.key) for choice in choices) + 4
    second = max((len(text) for text in texts if len(text) <= SHORT_VALUE), default=0) + 2
    for (key, _, why), text in zip(choices, texts, strict=True):
        head = f"  {key:<{first - 2}}[cyan]{console.plain(text)}[/]"
        gap = " " * (second - len(text))
        if len(text) <= SHORT_VALUE and first + second + len(why) <= console.out.width:
            console.out.print(f"{head}{gap}[dim]{console.plain(why)}[/]".rstrip(), soft_wrap=True)
            continue
        console.out.print(head, soft_wrap=True)
        console.out.print(Padding(Text(why, style="dim"), (0, 0, 0, first)))


def _show_costs(config: Config) -> list[str]:
    """Time and memory of each stage, measured with a few iterations of each; what that means."""
    from mini_fsod.device import device_memory, torch_device
    from mini_fsod.runs.estimate import estimate_run
    from mini_fsod.start.warn import cost_warnings

    began, device = monotonic(), torch_device(config.device)
    try:
        with console.err.status("measuring what the run will cost, about half a minute"):
            costs = estimate_run(config, device)
    except UserError as error:
        console.out.print("\n[bold]Cost[/]  [dim]not measured[/]")
        why = console.plain(f"{error.what} {error.fix}")
        console.out.print(Padding(why, (0, 0, 0, 2)))
        return []
    console.out.print(f"\n[bold]Cost[/]  [dim]measured here in {monotonic() - began:.0f} s[/]")
    console.table(cost_table(costs))
    return cost_warnings(costs, config, device_memory(device))


def cost_table(costs: RunEstimate) -> Table:
    """One row per stage, and the sum."""
    table = console.columns("  stage", ">time", ">iterations", ">img/s", ">memory")
    if costs.decoding:
        table.add_row("  decoding", console.duration(60 * costs.decoding), "", "", "")
    for stage in costs.stages:
        if not stage.minutes:
            continue
        speed = stage.images_per_second
        table.add_row(
            f"  {stage.stage}",
            console.duration(60 * stage.minutes),
            "" if stage.iterations is None else f"{stage.iterations:,}",
            "" if speed is None else f"{speed:,.{int(speed < 10)}f}",
            console.size(stage.memory),
        )
    memory = console.size(costs.memory)
    table.add_row("  all", console.duration(60 * costs.minutes), "", "", memory, style="bold")
    return table


def _show_warnings(lines: Sequence[str]) -> None:
    if not lines:
        return
    console.out.print("\n[bold]What may go wrong[/]")
    table = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row("  [bold yellow]![/]", console.plain(line))
    console.out.print(table)
