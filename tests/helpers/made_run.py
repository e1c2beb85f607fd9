"""Run folders made of small JSON files, as a healthy run leaves them: tests change one thing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NOVEL = ("bolt", "nut")
BASE = ("gear", "spring", "plate")
STEPS = range(25, 1001, 25)


def class_facts(novel: bool, **changes: Any) -> dict[str, Any]:
    sides = {"train_side": 90.0, "test_side": 88.0, "shot_side": 92.0}
    return {"novel": novel, "train": 300, "test": 150, "shots": 5, **sides, **changes}


def facts(**changes: Any) -> dict[str, Any]:
    """`data.json`; `bolt={"test": 0}` changes a class."""
    names = {name: name in NOVEL for name in (*BASE, *NOVEL)}
    of_class = {name: changes.pop(name, {}) for name in names}
    more = {name: changes.pop(name) for name in list(changes) if isinstance(changes[name], dict)}
    classes = {name: class_facts(novel, **of_class[name]) for name, novel in names.items()}
    classes |= {name: class_facts(False, **row) for name, row in more.items()}
    whole = {"train_images": 1000, "base_images": 900, "mined_images": 1000, "test_images": 400}
    return {**whole, "short": 416, "long": 832, "tiny": [], "classes": classes, **changes}


def class_errors(**changes: Any) -> dict[str, Any]:
    best = {"score": 0.41, "precision": 0.8, "recall": 0.75, "f1": 0.77}
    return {
        "boxes": 150,
        "recall_any": 0.9,
        "best": best,
        "detections": 140,
        "right": 112,
        "twice": 4,
        "false_on": {"background": 14, "gear": 6, "badly placed": 4},
        "missed_as": {"background": 20, "badly placed": 10, "gear": 8},
        **changes,
    }


def score(nap: float | None = 61.0, bap: float = 72.0, **changes: Any) -> dict[str, Any]:
    """A score file. `bolt={...}` changes its errors, `ap={"bolt": 20.0}` an AP."""
    names = BASE if nap is None else (*BASE, *NOVEL)
    ap = {name: bap if name in BASE else nap for name in names} | changes.pop("ap", {})
    errors = {name: class_errors(**changes.pop(name, {})) for name in names}
    interval = changes.pop("interval", {"nAP50": [56.0, 66.0], "bAP50": [70.0, 74.0]})
    return {
        "metric": "voc",
        "nAP50": nap,
        "bAP50": bap,
        "AP50": 68.0,
        "per_class": {name: {"AP50": value} for name, value in ap.items()},
        "images": 400,
        "detections": 4000,
        "test_set": "test",
        "errors": {"classes": errors, "interval95": interval},
        "test_seconds": 3.0,
        **changes,
    }


def thresholds(**kept: Any) -> dict[str, Any]:
    row = {"mean": 0.2, "deviation": 0.1, "alpha": 1.5, "N": 300, "delta": 0.35}
    rows = {name: {**row, "candidates": 900, "kept": 120} for name in NOVEL}
    for name, changes in kept.items():
        rows[name] = {**row, "candidates": 900, "kept": 120, **changes}
    return {"min_score": 0.05, "classes": rows}


def audit_row(**changes: Any) -> dict[str, Any]:
    ranks = {"10": 1.0, "30": 0.97, "100": 0.93}
    false_on = {"background": 6, "badly_placed": 2, "classes": {"gear": 2}}
    return {
        "hidden": 200,
        "kept": 120,
        "precision": 0.92,
        "recall": 0.55,
        "false_on": false_on,
        "candidates_recall": 0.85,
        "precision_by_rank": ranks,
        **changes,
    }


def audit(**changes: Any) -> dict[str, Any]:
    rows = {name: audit_row(**changes.get(name, {})) for name in NOVEL}
    pool = {"candidates": 1800, "kept": 240, "precision": 0.92, "recall": 0.55}
    return {"iou": 0.5, "pool": pool, "classes": rows}


def losses(shape: Sequence[float] = (1.0, 0.6, 0.55, 0.53, 0.52)) -> list[dict[str, Any]]:
    """A log whose loss goes through these values."""
    lines = []
    for n, step in enumerate(STEPS):
        value = shape[n * len(shape) // len(STEPS)]
        lines.append({"step": step, "loss": value, "loss_classifier": value / 2, "rate": 0.02})
    return lines


def gauges(**changes: float) -> list[dict[str, Any]]:
    """The log of `online` with a healthy teacher."""
    usual = {
        "mined": 1.2, "online": 0.5, "offline": 0.7, "base": 2.5, "pool": 0.9, "agreed": 0.6,
        "overlap": 0.48, "found": 1.1, "found_bolt": 0.6, "found_nut": 0.5, "confidence": 0.9,
        "right": 1.0, "mined_loss": 0.1,
    }  # fmt: skip
    return [line | usual | changes for line in losses((0.9, 0.7, 0.65, 0.63, 0.62))]


def write_run(folder: Path, **changes: Any) -> Path:
    """A run's folder. `keys` are lines of its configuration, `stages` replaces figures, scores and
    logs: {"online": {"score": ..., "log": ..., "metrics": ...}}; None leaves a file out.
    """
    folder.mkdir(parents=True)
    keys = {"data": {"root": "../parts", "novel": list(NOVEL)}, "shots": {"k": 5}}
    keys |= changes.get("keys", {})
    (folder / "config.yaml").write_text(json.dumps({"preset": "photos", **keys}))
    parts: dict[str, dict[str, Any]] = {
        "base": {"score": score(None, 74.0), "log": losses()},
        "transfer": {"score": score(40.0), "log": losses((0.5, 0.4, 0.38, 0.37, 0.37))},
        "scan": {"metrics": {"seconds": 5.0, "pairs": 1800}},
        "mine": {
            "metrics": {"seconds": 2.0, "kept": 240, "precision": 0.92, "candidates": 1800},
            "files": {"thresholds.json": thresholds(), "audit.json": audit()},
        },
        "online": {"score": score(), "log": gauges()},
    }
    for stage, part in changes.get("stages", {}).items():
        parts[stage] = {**parts.get(stage, {}), **part}
    results: dict[str, Any] = {}
    for stage, part in parts.items():
        if stage in changes.get("without", ()):
            continue
        figures = part.get("metrics", {"seconds": 60.0, "checkpoint_sha256": "0"})
        _write_stage(folder / stage, figures, part)
        if figures is not None:
            scored = {k: v for k, v in (part.get("score") or {}).items() if k != "errors"}
            results[stage] = {**figures, **scored}
    if (data := changes.get("facts", facts())) is not None:
        (folder / "data.json").write_text(json.dumps(data))
    if results:
        _write_results(folder / "results.json", results, changes)
    return folder


def _write_stage(folder: Path, figures: Mapping[str, Any] | None, part: Mapping[str, Any]) -> None:
    folder.mkdir()
    files = {**part.get("files", {}), "metrics.json": figures, "score-0.json": part.get("score")}
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    if log := part.get("log"):
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))


def _write_results(path: Path, stages: dict[str, Any], changes: Mapping[str, Any]) -> None:
    content = {
        "stages": stages,
        "results": {stage: stage for stage in stages},
        "pool": changes.get("pool", {"edited": False}),
        "seed": 0,
        "shots": {"k": 5, "seed": 0, "official": None, "file": None},
        "versions": {"mini": "0.2.0"},
        "device": "a CPU",
        "command": "mini run photos.yaml",
        "commit": None,
    }
    path.write_text(json.dumps(content))
