"""`mini demo` and `mini demo-data`: MINI on an embedded data set that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.check import check_command
from mini_fsod.commands.mine import mined_table
from mini_fsod.commands.options import app, command_line, out_option
from mini_fsod.commands.run import note_report

# Ablations that MINI is compared with
OFFLINE = ("online.teacher=false", "online.iou_branch=false")
OTHER_ROWS = {"offline": OFFLINE, "oracle": (*OFFLINE, "online.oracle=true")}


@app.command("demo")
def demo_command(
    out: Annotated[Path, out_option("The run's folder.", "runs/demo")] = Path("runs/demo"),
    seed: Annotated[
        int,
        Option(
            metavar="NUMBER", min=0, help="Seed of training and of the shots. Example: --seed 1"
        ),
    ] = 0,
) -> None:
    """Try MINI on handwritten digits; no GPU, no download.

    Checks the data, trains MINI and two ablations, and compares them.
    Example: mini demo
    """
    from mini_fsod.config.load import resolve
    from mini_fsod.demo import NOVEL
    from mini_fsod.runs import stages

    data = out.parent / "demo-data"
    _write_data(data)
    console.out.rule("[bold]mini check[/]: the training images", align="left")
    check_command(data, novel=list(NOVEL), subset="train", sheet=out / "train.png")
    console.out.rule("[bold]mini run demo[/]: 7 base digits, then 3 new ones", align="left")
    sets = [f"data.root={data}", f"seed={seed}", f"shots.seed={seed}"]
    figures = {"MINI": stages.run(resolve("demo", sets), out, command=command_line())["stages"]}
    console.table(mined_table(out / "mine"))
    for row, changes in OTHER_ROWS.items():
        # base, transfer, scan and mine are those of MINI: they are not computed again
        folder = out.parent / f"{out.name}-{row}"
        config = resolve("demo", [*sets, *changes])
        results = stages.run(config, folder, last="online", command=command_line())
        figures[row] = results["stages"]
    note_report(out)
    console.out.rule("[bold]Three new digits, five boxes of each[/]", align="left")
    console.table(comparison_table(figures))
    console.out.rule("[bold]What to look at[/]", align="left")
    for name, what in (
        ("train.png", "training images; novel digits (orange) were not labelled for training"),
        ("mine/1-three.png", "mined boxes of a class, the best and the worst"),
        ("report.html", "everything about the run on one page: open it in a browser"),
        ("detections.png", "test images, the truth beside what was found"),
        ("results.json", "all figures"),
    ):
        console.out.print(f"{console.plain(out / name)}  {what}")
    console.out.print(
        f"mini predict {console.plain(out)} IMAGES --draw drawn  detects digits in your images"
    )


@app.command("demo-data")
def demo_data_command(
    out: Annotated[Path, Argument(metavar="OUT", help="A new folder. Example: digits")],
    scale: Annotated[
        float,
        Option(
            metavar="NUMBER",
            help="How many pictures: 1 means 1,400; five shots of each class are always there. "
            "Example: --scale 0.1 for a quick look",
        ),
    ] = 1.0,
) -> None:
    """Write the data set of the demo.

    Handwritten digits on photographs, as COCO files; no download.
    Example: mini demo-data digits
    """
    _write_data(out, scale)


def _write_data(out: Path, scale: float = 1.0) -> None:
    from mini_fsod.demo import write_demo_data

    with console.progress("writing demo data") as done:
        is_new = write_demo_data(out, scale, progress=done)
    console.note(f"demo data {'written to' if is_new else 'exists in'} {out}")


def comparison_table(figures: dict[str, dict[str, Any]]) -> Table:
    """TFA, what mining adds to it, and the upper bound."""
    rows = (
        ("TFA", "fine-tuned on five boxes of each class", "MINI", "transfer"),
        ("offline mining", "re-trained on mined boxes", "offline", "online"),
        ("MINI", "re-trained with a teacher that mines online", "MINI", "tune"),
        ("oracle", "upper bound: re-trained on all hidden boxes", "oracle", "online"),
    )
    table = console.columns("", ">nAP50", ">bAP50", "")
    for name, what, row, stage in rows:
        style = "bold" if name == "MINI" else ""
        cells = [f"{figures[row][stage][key]:.1f}" for key in ("nAP50", "bAP50")]
        table.add_row(name, *cells, f"[dim]{what}[/]", style=style)
    return table
