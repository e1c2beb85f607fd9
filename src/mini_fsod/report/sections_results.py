"""The top of the report: the headline, what to change first, and the results by stage and class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_fsod import console
from mini_fsod.report.charts import bar
from mini_fsod.report.doctor import NOTHING
from mini_fsod.report.finding import Finding
from mini_fsod.report.html import NONE, Html, aside, data_table, details, join, section, tag
from mini_fsod.report.oracle import Oracle
from mini_fsod.report.run_files import RunFiles

SHOWN = 3  # findings that are open; the others are folded
STAGE_WORDS = {
    "base": "the base detector",
    "transfer": "the few-shot detector, which mines",
    "online": "re-trained on the mined boxes",
    "tune": "after the last fine-tuning",
}
METRICS = {
    "voc07": "VOC 2007 metric",
    "voc": "VOC 2010 metric",
    "coco": "COCO metric",
}
MANY_BASE = 12  # base classes, from which on they are folded


def points(value: float | None) -> str:
    """An AP, or a dash."""
    return NONE if value is None else f"{value:.1f}"


def headline(run: RunFiles, oracle: Oracle | None) -> Html:
    stage = run.last_scored
    interval = (run.errors or {}).get("interval95", {}) if stage else {}
    figures = []
    for key, label in (("nAP50", "new classes, nAP50"), ("bAP50", "base classes, bAP50")):
        value = run.headline(key)
        if value is None:
            continue
        below = []
        if key in interval:
            low, high = interval[key]
            below.append(f"{low:.0f} to {high:.0f} (95 %, test pictures)")
        if oracle is not None and oracle.figures.get(key) is not None:
            below.append(f"oracle {oracle.figures[key]:.1f}")
        figures.append(_figure(f"{value:.1f}", label, below))
    mined = run.figures.get("mine", {}).get("kept")
    if mined is not None:
        precision = run.figures["mine"].get("precision")
        known = [] if precision is None else [f"precision {precision:.0%}, by the annotations"]
        figures.append(_figure(f"{mined:,}", "boxes mined", known))
    seconds = sum(f.get("seconds") or 0 for f in run.figures.values())
    if seconds:
        figures.append(_figure(console.duration(seconds), "computing time", []))
    return tag(
        "header",
        tag("p", "Report of a run", class_="kicker"),
        tag("h1", run.folder.resolve().name),
        tag("p", _state(run), class_="lead"),
        tag("dl", figures, class_="figures") if figures else None,
    )


def _figure(value: str, label: str, below: Sequence[str]) -> Html:
    return tag(
        "div",
        tag("dt", label),
        tag("dd", tag("span", value, class_="big"), [tag("span", line) for line in below]),
    )


def _state(run: RunFiles) -> str:
    """In one or two sentences: what this run is, and how far it came."""
    shots = run.results.get("shots", {}).get("k")
    novel = run.novel
    parts = []
    if novel:
        listed = ", ".join(novel[:8]) + (f" and {len(novel) - 8} more" if len(novel) > 8 else "")
        k = f", {console.count(shots, 'labelled box')} of each" if shots else ""
        word = "New classes" if len(novel) > 1 else "New class"
        parts.append(f"{word}: {listed}{k}.")
    if run.is_oracle:
        parts.append("Oracle: trained with the ground truth of all hidden objects, an upper bound.")
    if run.unfinished:
        parts.append(f"Not finished: stopped in the stage {run.unfinished}, or still running.")
    if not run.stages:
        parts.append("No stage has begun.")
    elif run.last_scored is None and not run.unfinished:
        parts.append("There is no test set, so there is no AP.")
    return " ".join(parts)


def findings_section(run: RunFiles, findings: Sequence[Finding]) -> Html:
    """What `mini doctor` says."""
    if not findings:
        words = f"{NOTHING} Nothing in the files of this run explains a low AP."
        return section("doctor", "What to change first", tag("p", words))
    listed = [_finding(one) for one in findings]
    parts: list[Html] = [tag("ol", listed[:SHOWN], class_="findings")]
    if len(listed) > SHOWN:
        rest = tag("ol", listed[SHOWN:], class_="findings", start=SHOWN + 1)
        more = console.count(len(listed) - SHOWN, "more finding")
        parts.append(details(more, rest, printed=True))
    how = aside(
        "The most serious cause comes first. To try a setting, type ",
        tag("code", f"mini run {run.folder} --set KEY=VALUE"),
        "; stages that do not depend on it are reused.",
    )
    return section("doctor", "What to change first", *parts, how)


def _finding(finding: Finding) -> Html:
    tries = [
        tag("li", tag("code", one) if "=" in one or one.startswith("mini ") else one)
        for one in finding.changes
    ]
    return tag(
        "li",
        tag("p", tag("strong", finding.what), " ", tag("span", finding.rank, class_="rank")),
        tag("p", finding.evidence, class_="evidence"),
        tag("ul", tries, class_="tries", aria_label="What to try") if tries else None,
    )


def results_section(run: RunFiles, oracle: Oracle | None) -> Html:
    figures = {s: f for s, f in run.figures.items() if f.get("per_class")}
    if not figures:
        words = "No stage of this run has a score."
        if "base" in run.figures and run.facts and run.facts["test_images"] is None:
            words += " It has no test set: name one in data.test."
        return section("results", "Results", tag("p", words))
    last = run.last_scored or next(reversed(figures))
    metric = figures[last].get("metric", "")
    interval = (run.errors or {}).get("interval95", {})
    novel = [name for name in run.novel if name in figures[last]["per_class"]]
    base = [name for name in figures[last]["per_class"] if name not in run.novel]
    head: list[object] = ["class", "test boxes"]
    head += list(figures)
    head += ["", "95 % interval"] if interval else [""]
    head += ["oracle"] if oracle else []

    def row(name: str, shown: object, mean: str | None = None) -> list[object]:
        cells: list[object] = [shown, _boxes(run, name, mean)]
        values = [f.get(mean) if mean else _ap(f, name) for f in figures.values()]
        cells += [points(value) for value in values]
        best = None if oracle is None else oracle.value(name, mean)
        cells.append(bar(values[-1], mark=best))
        if interval:
            ends = interval.get(mean or name)
            cells.append(NONE if ends is None else f"{ends[0]:.0f} to {ends[1]:.0f}")
        if oracle is not None:
            cells.append(points(best))
        return cells

    rows: list[list[object]] = []
    for key, label, names in (
        ("nAP50", "new classes, mean", novel),
        ("bAP50", "base classes, mean", []),
    ):
        if any(f.get(key) is not None for f in figures.values()):
            rows.append(row(key, tag("strong", label), key))
        rows += [row(name, name) for name in names]
    base_rows = [row(name, name) for name in base]
    images = figures[last]["images"]
    caption = f"AP50 by stage ({METRICS.get(metric, metric)}) on {images:,} test pictures"
    parts = [data_table(caption, head, rows)]
    if base_rows:
        of_base = data_table("AP50 of the base classes", head, base_rows)
        title = f"{console.count(len(base), 'base class')} one by one"
        is_open = len(base) <= MANY_BASE and not novel
        parts.append(details(title, of_base, open_=is_open, printed=True))
    words = "; ".join(f"{stage}: {STAGE_WORDS[stage]}" for stage in figures)
    parts.append(aside(f"Stages: {words}."))
    parts.append(_explained(oracle, bool(interval)))
    return section("results", "Results", *parts)


def _explained(oracle: Oracle | None, interval: bool) -> Html:
    lines = []
    if oracle is not None:
        lines.append(
            f"The oracle is the run {oracle.run}, trained with the ground truth of all hidden "
            "objects. The mark in each bar is its AP."
        )
    if interval:
        lines.append(
            "The interval shows how much the AP would vary with other test pictures. Other shots "
            "and seeds add to that."
        )
    return join([aside(line) for line in lines])


def _ap(figures: Mapping[str, Any], name: str) -> float | None:
    value: float | None = figures["per_class"].get(name, {}).get("AP50")
    return value


def _boxes(run: RunFiles, name: str, mean: str | None) -> str:
    """Test boxes that count of a class, or of all new or all base classes."""
    table = (run.errors or {}).get("classes", {})
    if not table:
        return NONE
    if mean is None:
        return f"{table[name]['boxes']:,}" if name in table else NONE
    is_novel = mean.startswith("n")
    return f"{sum(row['boxes'] for n, row in table.items() if (n in run.novel) == is_novel):,}"
