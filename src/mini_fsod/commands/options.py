"""The Typer application, and what several commands share: options, and reading a data set."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from mini_fsod import console
from mini_fsod.errors import UserError

if TYPE_CHECKING:
    from mini_fsod.data.dataset import Dataset

# `mini --help`: the commands by topic, in this order
CONTENTS = {
    "Start": ("init", "demo", "presets"),
    "Data": ("check", "sample", "convert", "data", "demo-data"),
    "Training": ("run", "mine", "review", "runs", "pretrain", "study"),
    "Results": ("report", "doctor"),
    "Detectors": ("predict", "eval", "export", "checkpoint"),
}


class TableOfContents(TyperGroup):
    """Lists commands by topic."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in CONTENTS.values() for name in names if name in self.commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = self.commands.get(cmd_name)
        for topic, names in CONTENTS.items():
            if command is not None and cmd_name in names:
                command.rich_help_panel = topic
        if command is not None:
            for one in (command, *getattr(command, "commands", {}).values()):
                one.help = flowing(one.help or "")
        return command


def flowing(text: str) -> str:
    """A docstring with the lines of each paragraph joined, for terminals of any width; examples
    keep their own lines.
    """
    joined: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if joined and line and joined[-1] and not line.startswith("Example:"):
            joined[-1] += f" {line}"
        else:
            joined.append(line)
    return "\n".join(joined).strip()


app = typer.Typer(
    name="mini",
    cls=TableOfContents,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def flag(name: str, meaning: str) -> Any:
    return Option(name, help=f"{meaning} Example: {name}")


def out_option(meaning: str, example: str) -> Any:
    return Option("-o", "--out", help=f"{meaning} Example: -o {example}")


Data = Annotated[
    Path,
    Argument(
        metavar="DATA",
        help="A folder, a .json, or a .zip as CVAT, Label Studio or FiftyOne export it: COCO, VOC, "
        "YOLO or their own formats; or a folder of images. Example: data/VOCdevkit",
    ),
]
Novel = Annotated[
    list[str] | None,
    Option(
        metavar="CLASS",
        help="Novel classes, all others are base classes; repeatable, for names with commas. "
        "Example: --novel bird,bus",
    ),
]
Split = Annotated[
    str | None,
    Option(
        help="A published split instead of --novel: voc-split1, voc-split2, voc-split3 or coco. "
        "Example: --split voc-split1"
    ),
]
Subset = Annotated[
    str | None, Option(help="Use one image set of the data only. Example: --subset test")
]
AsJson = Annotated[bool, flag("--json", "Print JSON to standard output.")]
Device = Annotated[str, Option(help="auto, cpu, cuda or cuda:1. Example: --device cpu")]
RunOrCheckpoint = Annotated[
    Path,
    Argument(
        metavar="RUN_OR_CHECKPOINT",
        help="A run's folder (its last finished stage) or a checkpoint. Example: runs/demo",
    ),
]
Sets = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a configuration key; repeatable. Example: --set data.root=data/VOCdevkit",
    ),
]
ConfigSplit = Annotated[
    str | None, Option(help="Short for --set data.split=SPLIT. Example: --split voc-split2")
]
ConfigShots = Annotated[
    int | None, Option(metavar="NUMBER", help="Short for --set shots.k=K. Example: --shots 5")
]
ConfigSeed = Annotated[
    int | None, Option(metavar="NUMBER", help="Seed of the shots (shots.seed). Example: --seed 1")
]


def read_data(path: Path, subset: str | None, unlabelled: str = "") -> Dataset:
    """A data set, with its notes shown.

    Images without annotations are refused if `unlabelled` says why they are of no use.
    """
    from mini_fsod.data.read import read

    dataset = read(path, subset)
    if unlabelled and dataset.kind == "folder":
        raise UserError(
            f"{path}: a folder of images without annotations {unlabelled}.",
            "Give a data set with annotations.",
        )
    for line in dataset.notes:
        console.note(line)
    return dataset


def command_line() -> str:
    """The command as it was typed, for `results.json`."""
    return shlex.join(["mini", *sys.argv[1:]])
