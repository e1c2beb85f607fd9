"""`mini predict`: run a detector on images; a table or JSON, and drawings."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import AsJson, Device, RunOrCheckpoint, app
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap

if TYPE_CHECKING:
    import torch

    from mini_fsod.checkpoint import Saved
    from mini_fsod.predict import Picture, Prediction, Unreadable

SCORE = 0.5  # default score threshold of the table and of drawings


@app.command("predict")
def predict_command(
    run_or_checkpoint: RunOrCheckpoint,
    images: Annotated[
        list[Path], Argument(metavar="IMAGES...", help="Images, or folders. Example: photos")
    ],
    as_json: AsJson = False,
    draw: Annotated[
        Path | None,
        Option(metavar="DIR", help="Write copies with the boxes drawn. Example: --draw drawn"),
    ] = None,
    score: Annotated[
        float | None,
        Option(
            min=0.0,
            max=1.0,
            help="Score threshold; default: 0.5, for --json none. Example: --score 0.3",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Detect objects in images.

    The exit code is 2 if any image cannot be read.
    Example: mini predict runs/demo photos --draw drawn
    """
    from mini_fsod import checkpoint
    from mini_fsod.commands.drawings import refuse_overwriting
    from mini_fsod.data.folder import unread_formats
    from mini_fsod.device import torch_device
    from mini_fsod.predict import pictures_of

    torch_dev = torch_device(device)
    unread: list[str] = []
    pictures, unreadable = pictures_of(images, without=draw, skip=unread.append)
    for line in unread_formats(unread):
        console.note(line)
    if draw is not None:
        refuse_overwriting(draw, pictures)
    path = checkpoint.find(run_or_checkpoint)
    if path != run_or_checkpoint:
        console.note(f"detector: {path}")
    saved = checkpoint.load(path)
    threshold = SCORE if score is None else score
    detector_threshold = saved.detector.settings.test.score_cut
    if threshold < detector_threshold:
        console.note(f"the detector drops detections with a score below {detector_threshold:g}")
    predictions, failed = _detect(saved, pictures, torch_dev, draw, threshold)
    if as_json:
        shown = predictions if score is None else [p.above(score) for p in predictions]
        records = ",\n ".join(json.dumps(to_json(p), allow_nan=False) for p in shown)
        print(f"[{records}]")  # one image per line
    elif predictions:
        console.table(detections_table(predictions, saved.labels, threshold))
    if draw is not None and predictions:
        filled = sum(len(p.above(threshold).names) > 0 for p in predictions)
        console.note(
            f"{draw}: {console.count(len(predictions), 'image')}, {filled:,} with detections of "
            f"score {threshold:g} or more"
        )
    unreadable += failed
    for picture in unreadable:
        console.error(UserError(f"{picture.path}: {picture.why.rstrip('.')}."))
    if unreadable:
        raise typer.Exit(2)


def _detect(
    saved: Saved,
    pictures: Sequence[Picture],
    device: torch.device,
    draw: Path | None,
    threshold: float,
) -> tuple[list[Prediction], list[Unreadable]]:
    """Detections of every picture, drawn into the folder `draw` meanwhile; unreadable pictures."""
    import torch

    from mini_fsod.commands.drawings import drawing_path, in_threads, write_drawing
    from mini_fsod.predict import Unreadable, predict

    detector = saved.detector.to(device)
    detector.to(memory_format=torch.channels_last)
    predictions: list[Prediction] = []
    unreadable: list[Unreadable] = []
    paths = [picture.path for picture in pictures]
    with (
        warnings.catch_warnings(action="ignore"),  # image decoders warn of broken EXIF and the like
        in_threads() as submit,
        console.progress("detecting", len(pictures)) as progress,
    ):
        results = predict(detector, saved.labels, paths, device)
        for n, (picture, result) in enumerate(zip(pictures, results, strict=True), start=1):
            if isinstance(result, Unreadable):
                unreadable.append(result)
            else:
                predictions.append(result)
                if draw is not None:
                    target = drawing_path(draw, picture)
                    submit(write_drawing, result.above(threshold), saved.labels, target)
            progress(n)
    return predictions, unreadable


def to_json(prediction: Prediction) -> dict[str, Any]:
    width, height = prediction.size
    return {
        "file": str(prediction.path),
        "width": width,
        "height": height,
        "detections": [
            {"category": name, "bbox": [round(v, 3) for v in box], "score": round(score, 6)}
            for name, box, score in zip(
                prediction.names, prediction.xywh.tolist(), prediction.scores.tolist(), strict=True
            )
        ],
    }


def detections_table(
    predictions: Sequence[Prediction], labels: LabelMap, threshold: float
) -> Table:
    """One row per image: detections per class above the threshold, and the best score.

    The best score may be below the threshold: it says whether a lower --score would show more.
    """
    images = console.count(len(predictions), "image")
    detections = f"detections of score {threshold:g} or more (--score)"
    table = console.columns(images, detections, ">best score")

    def row(name: str, counts: Counter[str], best: str, style: str = "") -> None:
        texts = {c: f"{counts[c]:,} {console.plain(c)}" for c in counts}
        cells = [f"[magenta]{texts[c]}[/]" for c in labels.novel if c in texts]
        cells += [texts[c] for c in labels.base if c in texts]
        table.add_row(name, ", ".join(cells) or "[dim]none[/]", best, style=style)

    total: Counter[str] = Counter()
    for prediction in predictions:
        counts = Counter(prediction.above(threshold).names)
        total += counts
        best = f"{prediction.scores[0]:.2f}" if len(prediction.scores) else "-"
        row(console.plain(prediction.path), counts, best)
    if len(predictions) > 1:
        row("all", total, "", style="bold")
    return table
