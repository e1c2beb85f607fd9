"""How the run was trained: losses and other metrics, cost, configuration, command and versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_fsod import console
from mini_fsod.config.load import KEYS, resolve
from mini_fsod.config.presets import PRESETS
from mini_fsod.config.schema import TRAINED, Config
from mini_fsod.report.charts import Series, lines
from mini_fsod.report.html import NONE, Html, aside, data_table, details, section, tag
from mini_fsod.report.run_files import RunFiles

# Metrics of the stage `online`: title, and (name in the log, name in the chart)
GAUGES = (
    (
        "Boxes per picture",
        (("base", "base"), ("mined", "mined"), ("online", "teacher's"), ("offline", "pool's")),
    ),
    (
        "The teacher against the pool",
        (("agreement", "agreement"), ("placement", "placement"), ("precision", "precision")),
    ),
    (
        "Confidence and share of the loss",
        (("confidence", "confidence"), ("mined_share", "mined share")),
    ),
)
GAUGE_WORDS = (
    "Agreement: share of the pool's boxes that the teacher finds too. Placement: mean IoU of these "
    "pairs. Precision: of the mined boxes trained on, if hidden objects are annotated. Confidence: "
    "the teacher's highest score in a picture; near 0 when it has collapsed. Mined share: the part "
    "of the loss that comes from mined boxes."
)


def training_section(run: RunFiles) -> Html | None:
    charts = [
        lines(f"Loss of the stage {stage}", _losses(files.log))
        for stage, files in run.stages.items()
        if stage in TRAINED and files.log
    ]
    gauges: list[Html] = []
    if "online" in run.stages and any("confidence" in line for line in run.stages["online"].log):
        log = run.stages["online"].log
        gauges = [lines(title, _series(log, names)) for title, names in GAUGES]
    if not charts:
        return None
    parts: list[object] = [tag("div", charts, class_="charts")]
    if gauges:
        parts += [tag("h3", "The teacher"), aside(GAUGE_WORDS), tag("div", gauges, class_="charts")]
    return section("training", "Training", *parts)


def _losses(log: Sequence[Mapping[str, Any]]) -> list[Series]:
    names = (("loss", "all"), ("loss_classifier", "classes"), ("loss_box_reg", "boxes"))
    return _series(log, names)


def _series(log: Sequence[Mapping[str, Any]], names: Sequence[tuple[str, str]]) -> list[Series]:
    return [
        Series(label, [(line["step"], line[name]) for line in log if name in line])
        for name, label in names
        if any(name in line for line in log)
    ]


def cost_section(run: RunFiles) -> Html | None:
    rows: list[list[object]] = []
    computing, all_testing = 0.0, 0.0
    for stage, figures in run.figures.items():
        seconds = figures.get("seconds") or 0.0
        testing = figures.get("test_seconds")
        computing += seconds
        all_testing += testing or 0.0
        speed = figures.get("images_per_second")
        given = figures.get("checkpoint") or figures.get("given")
        rows.append(
            [
                f"{stage}, from {given}" if given else stage,
                console.duration(seconds),
                NONE if testing is None else console.duration(testing),
                NONE if not figures.get("iterations") else f"{figures['iterations']:,}",
                NONE if speed is None else f"{speed:,.{int(speed < 10)}f}",
            ]
        )
    if not rows:
        return None
    totals = (console.duration(computing), console.duration(all_testing) if all_testing else NONE)
    rows.append([tag("strong", "all"), *(tag("strong", one) for one in totals), "", ""])
    head = ["stage", "computing", "testing", "iterations", "images per second"]
    parts: list[object] = [data_table("Time of each stage", head, rows)]
    device = run.results.get("device")
    words = f"Device: {device}. " if device else ""
    words += "Reused stages show the time of their original computation."
    return section("cost", "Cost", aside(words), *parts)


def config_section(run: RunFiles) -> Html:
    parts: list[object] = []
    command = run.results.get("command")
    if command:
        parts += [tag("h3", "Command"), tag("pre", tag("code", command))]
    if run.config is not None:
        name, changed = differences(run.config)
        parts.append(tag("h3", f"Keys that differ from the preset {name}"))
        if changed:
            rows = [[tag("code", k), tag("code", v), tag("code", p)] for k, v, p in changed]
            parts.append(data_table("Configuration", ["key", "this run", name], rows, numbers=9))
        else:
            parts.append(tag("p", "None."))
        whole = tag("pre", tag("code", run.config.to_yaml()))
        parts.append(details("The whole configuration", whole))
    versions = dict(run.results.get("versions", {}))
    if run.results.get("commit"):
        versions["commit"] = run.results["commit"]
    kept = run.results.get("results", {})
    if versions:
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        parts += [tag("h3", "Versions"), tag("p", listed)]
    if kept:
        listed = ", ".join(kept.values())
        parts += [tag("h3", "Kept results"), tag("p", tag("code", listed), class_="long")]
    if run.problems:
        parts += [tag("h3", "Files that could not be read"), tag("ul", _items(run.problems))]
    return section("config", "Configuration", *parts)


def _items(texts: Sequence[str]) -> list[Html]:
    return [tag("li", one) for one in texts]


def differences(config: Config) -> tuple[str, list[tuple[str, str, str]]]:
    """The preset that a configuration is nearest to, and each key that differs from it: the key,
    its value, and the preset's.
    """
    values = values_of(config)
    best: tuple[str, list[tuple[str, str, str]]] | None = None
    for name in PRESETS:
        its = preset_values(name, config.shots.k)
        changed = [(key, values[key], its[key]) for key in KEYS if values[key] != its[key]]
        if best is None or len(changed) < len(best[1]):
            best = name, changed
    assert best is not None  # there are presets
    return best


def preset_values(name: str, k: int | None) -> dict[str, str]:
    """The values of a preset for K shots, which some keys depend on."""
    return values_of(resolve(name, shots=k))


def values_of(config: Config) -> dict[str, str]:
    """Every key with its value as text."""
    found: dict[str, str] = {}
    for key in KEYS:
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        found[key] = _shown(value)
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_shown(one) for one in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
