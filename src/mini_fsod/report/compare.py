"""Runs side by side: their figures, their pools, and the keys in which they differ."""

from __future__ import annotations

from collections.abc import Sequence

from mini_fsod import console
from mini_fsod.config.load import KEYS
from mini_fsod.report.html import NONE, Html, aside, data_table, section, tag
from mini_fsod.report.run_files import RunFiles
from mini_fsod.report.sections_results import points
from mini_fsod.report.sections_training import values_of


def compare_section(runs: Sequence[RunFiles]) -> Html:
    """The first run is the report's own."""
    names = unique_names(runs)
    parts: list[object] = [_figures(runs, names), _classes(runs, names)]
    parts.append(_keys(runs, names))
    sets = {run.figures[run.last_scored].get("test_set") for run in runs if run.last_scored}
    if len(sets) > 1:
        parts.insert(0, aside("These runs were scored on different test sets or classes."))
    return section("compare", "Compared with other runs", *parts)


def unique_names(runs: Sequence[RunFiles]) -> list[str]:
    """The folders' names; with the folder above where two have the same."""
    short = [run.folder.resolve().name for run in runs]
    return [
        name if short.count(name) == 1 else "/".join(run.folder.resolve().parts[-2:])
        for name, run in zip(short, runs, strict=True)
    ]


def _figures(runs: Sequence[RunFiles], names: Sequence[str]) -> Html:
    def interval(run: RunFiles) -> str:
        ends = (run.errors or {}).get("interval95", {}).get("nAP50")
        return NONE if ends is None else f"{ends[0]:.0f} to {ends[1]:.0f}"

    def mined(run: RunFiles) -> str:
        kept = run.figures.get("mine", {}).get("kept")
        return NONE if kept is None else f"{kept:,}"

    def precision(run: RunFiles) -> str:
        value = run.figures.get("mine", {}).get("precision")
        return NONE if value is None else f"{value:.0%}"

    def time(run: RunFiles) -> str:
        return console.duration(sum(f.get("seconds") or 0 for f in run.figures.values()))

    rows = [
        ["nAP50, new classes", *(_best([run.headline("nAP50") for run in runs]))],
        ["95 % interval", *map(interval, runs)],
        ["bAP50, base classes", *(_best([run.headline("bAP50") for run in runs]))],
        ["last scored stage", *(run.last_scored or NONE for run in runs)],
        ["boxes mined", *map(mined, runs)],
        ["precision of mined boxes", *map(precision, runs)],
        ["computing time", *map(time, runs)],
        ["kind", *("oracle" if run.is_oracle else "" for run in runs)],
    ]
    rows = [row for row in rows if any(row[1:])]
    return data_table("Figures", ["", *names], rows)


def _best(values: Sequence[float | None]) -> list[Html | str]:
    """Numbers, the highest in bold and with a star."""
    best = max((v for v in values if v is not None), default=None)
    return [
        tag("strong", f"★ {points(v)}") if v is not None and v == best else points(v)
        for v in values
    ]


def _classes(runs: Sequence[RunFiles], names: Sequence[str]) -> Html:
    """AP50 of each new class after the last scored stage."""
    novel = list(dict.fromkeys(name for run in runs for name in run.novel))
    rows = [[name, *_best([run.ap(name) for run in runs])] for name in novel]
    return data_table("AP50 of each new class", ["class", *names], rows)


def _keys(runs: Sequence[RunFiles], names: Sequence[str]) -> Html:
    values = [{} if run.config is None else values_of(run.config) for run in runs]
    rows = []
    for key in KEYS:
        of_runs = [value.get(key, NONE) for value in values]
        if len(set(of_runs)) > 1:
            rows.append([tag("code", key), *(tag("code", one) for one in of_runs)])
    if not rows:
        return tag("p", "The configurations are identical.")
    return data_table("Keys that differ", ["key", *names], rows, numbers=99)
