"""`mini demo-data` and `mini demo`: the embedded data set, and the project at work on it."""

from __future__ import annotations

from pathlib import Path

from mini_fsod import show
from mini_fsod.commands import check, sample
from mini_fsod.data.read import read
from mini_fsod.demo import LABELS, NOVEL, write_demo_data

SHOTS = 5


def write_data(out: Path) -> None:
    with show.progress("writing scenes") as done:
        written = write_demo_data(out, progress=done)
    show.note(f"demo data {'written to' if written else 'is there already:'} {out}")


def run(out: Path) -> None:
    """Data, check, sample and a sheet of pictures, into `out` and a data folder beside it."""
    data = out.parent / "demo-data"
    novel = ",".join(NOVEL)
    write_data(data)
    show.out.rule("[bold]mini check[/]: what the training images hold", align="left")
    check.run(data, novel, None, "train", None, False, None, out / "train.png", False)
    show.out.rule(
        f"[bold]mini sample[/]: {SHOTS} boxes of each digit, from other pictures", align="left"
    )
    shots = out / "shots.json"
    sample.run(data, novel, None, "shots", None, SHOTS, 0, shots)
    sample_set = read(shots, root=data)
    check.write_sheet(out / "shots.png", sample_set, LABELS, list(range(len(sample_set))))
    show.out.rule("[bold]What to look at[/]", align="left")
    show.out.print(
        f"{show.plain(out / 'train.png')}  training scenes; novel digits (orange) will be hidden"
    )
    show.out.print(f"{show.plain(out / 'shots.png')}  the {SHOTS} shots of each digit")
    show.out.print(f"{show.plain(shots)}  the sample, as COCO JSON")
