"""What a study is: rows of settings over splits, K and seeds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mini_fsod.errors import UserError

MOST_NUMBERS = 1000  # per option: a typing error should not plan a million runs
FULL_SCHEDULE = {"voc-320": "paper"}  # presets, and what --full takes instead
SHORT_SCHEDULE = "online.iterations=auto"  # in rows: left out with --full


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: its settings (key=value) and the last stage that is run.

    `paper` names the rows of the paper's tables that are printed below it.
    """

    label: str
    sets: tuple[str, ...] = ()
    last: str = "transfer"
    paper: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """The label as part of a folder's name."""
        return re.sub(r"[\W_]+", "-", self.label.casefold()).strip("-")[:60]


@dataclass(frozen=True, slots=True)
class Study:
    """`source` is a preset or a config file; `sets` hold for all rows, before the row's own.

    Empty `splits`, `shots` or `seeds`: what the configuration says. `figures` are names of scores,
    or of classes for their AP.
    """

    name: str
    source: str
    rows: tuple[Row, ...]
    shots: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    splits: tuple[int, ...] = ()
    sets: tuple[str, ...] = ()
    figures: tuple[str, ...] = ("nAP50", "bAP50")
    about: str = ""


def narrow(
    study: Study, splits: str | None, shots: str | None, seeds: str | None, full: bool
) -> Study:
    """The study with the splits, shots, seeds and schedule of the command line."""
    if full:
        if study.source not in FULL_SCHEDULE:
            raise UserError(
                f"--full: {study.source}, which study {study.name} uses, has no full schedule.",
                "Leave --full out.",
            )
        rows = tuple(
            replace(row, sets=tuple(text for text in row.sets if text != SHORT_SCHEDULE))
            for row in study.rows
        )
        study = replace(study, source=FULL_SCHEDULE[study.source], rows=rows)
    return replace(
        study,
        splits=study.splits if splits is None else parse_numbers(splits, "--split", least=1),
        shots=study.shots if shots is None else parse_numbers(shots, "--shots", least=1),
        seeds=study.seeds if seeds is None else parse_numbers(seeds, "--seeds"),
    )


def choose_rows(study: Study, text: str) -> tuple[Row, ...]:
    """The rows that --rows names by number; the first row is 1."""
    wanted = parse_numbers(text, "--rows", least=1)
    if wanted[-1] > len(study.rows):
        raise UserError(
            f"--rows: study {study.name} has {len(study.rows)} rows, there is no {wanted[-1]}.",
            f"They are {', '.join(f'{n} {row.label}' for n, row in enumerate(study.rows, 1))}.",
        )
    return tuple(study.rows[n - 1] for n in wanted)


def parse_numbers(text: str, where: str, least: int = 0) -> tuple[int, ...]:
    """ "0..4" is 0 to 4, "0,3,7" these three, "0..2,7" both; sorted, without repetitions."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise UserError(
                f'{where}: "{text}" is not a list of numbers.', "Write 0..4 or 0,3,7, for example."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UserError(f"{where}: {first}..{last} is descending.", f"Write {last}..{first}.")
        if first < least:
            raise UserError(f"{where}: {first} is too small.", f"Start at {least}.")
        if last - first >= MOST_NUMBERS or len(found) > MOST_NUMBERS:
            raise UserError(f"{where}: {text} are more than {MOST_NUMBERS:,}.", "Name fewer.")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
