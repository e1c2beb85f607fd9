"""`mini predict`: run a detector on images and videos; a table, files of detections, drawings."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import AsJson, Device, app
from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes, write_json
from mini_fsod.labels import LabelMap

if TYPE_CHECKING:
    from mini_fsod.predict.model import Model
    from mini_fsod.predict.pictures import Picture, Unreadable
    from mini_fsod.predict.prediction import Prediction


@app.command("predict")
def predict_command(
    detector: Annotated[
        Path,
        Argument(
            metavar="DETECTOR",
            help="A run's folder (its last finished stage), a checkpoint, or the file of "
            "`mini export`. Example: runs/demo",
        ),
    ],
    images: Annotated[
        list[Path],
        Argument(metavar="IMAGES...", help="Images, folders, or videos. Example: photos"),
    ],
    as_json: AsJson = False,
    coco: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write a COCO file with scores. Example: --coco found.json"),
    ] = None,
    csv: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write a line per detection. Example: --csv found.csv"),
    ] = None,
    draw: Annotated[
        Path | None,
        Option(metavar="DIR", help="Write copies with the boxes drawn. Example: --draw drawn"),
    ] = None,
    sheet: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Write an overview of the detections. Example: --sheet found.png"
        ),
    ] = None,
    score: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            min=0.0,
            max=1.0,
            help="Score threshold; default: 0.5, for --json, --coco and --csv none. "
            "Example: --score 0.3",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Detect objects in images and videos.

    The exit code is 2 if any image cannot be read.
    Example: mini predict runs/demo photos --draw drawn
    """
    from mini_fsod.commands.drawings import refuse_overwriting, write_overview
    from mini_fsod.data.folder import unread_formats
    from mini_fsod.predict.load import load_model
    from mini_fsod.predict.model import SCORE
    from mini_fsod.predict.pictures import find_pictures
    from mini_fsod.predict.records import coco_content, csv_text, to_json

    unread: list[str] = []
    pictures, unreadable = find_pictures(images, without=draw, skip=unread.append)
    for line in unread_formats(unread):
        console.note(line)
    for path, option, suffix in (
        (coco, "--coco", ".json"),
        (csv, "--csv", ".csv"),
        (sheet, "--sheet", ".png"),
    ):
        if path is not None and path.suffix.lower() != suffix:
            raise UserError(f"{option} {path}: not a {suffix} file.", f"Name it {path}{suffix}.")
    if draw is not None:
        refuse_overwriting(draw, pictures)
    model = load_model(detector, device)
    if model.source != detector:
        console.note(f"detector: {model.source}")
    threshold = SCORE if score is None else score
    if threshold < model.score_threshold:
        console.note(f"the detector drops detections with a score below {model.score_threshold:g}")
    named, failed = _detect(model, pictures, draw, threshold)
    predictions = [prediction for prediction, _ in named]
    names = [name for _, name in named]
    shown = predictions if score is None else [p.above(score) for p in predictions]
    if as_json:
        records = ",\n ".join(json.dumps(to_json(p), allow_nan=False) for p in shown)
        print(f"[{records}]")  # one image per line
    elif predictions:
        console.table(detections_table(predictions, model.labels, threshold))
    if coco is not None:
        write_json(coco, coco_content(shown, names, model.labels))
        console.note(f"{coco}: {console.count(sum(map(len, shown)), 'detection')}")
    if csv is not None:
        write_bytes(csv, csv_text(shown, names).encode("utf-8", "backslashreplace"))
        console.note(f"{csv}: {console.count(sum(map(len, shown)), 'detection')}")
    if sheet is not None and predictions:
        write_overview(sheet, predictions, model.labels, threshold)
        console.note(f"overview: {sheet}")
    if draw is not None and predictions:
        filled = sum(len(p.above(threshold)) > 0 for p in predictions)
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
    model: Model, pictures: Sequence[Picture], draw: Path | None, threshold: float
) -> tuple[list[tuple[Prediction, str]], list[Unreadable]]:
    """Detections of every picture and frame with the file's name; unreadable pictures.

    They are drawn into the folder `draw` meanwhile.
    """
    from mini_fsod.commands.drawings import drawing_path, in_threads, write_drawing
    from mini_fsod.predict.pictures import Unreadable
    from mini_fsod.predict.video import is_video

    still = [picture for picture in pictures if not is_video(picture.path)]
    found: list[tuple[Prediction, str]] = []
    unreadable: list[Unreadable] = []
    with (
        warnings.catch_warnings(action="ignore"),  # image decoders warn of broken EXIF and the like
        in_threads() as submit,
        console.progress("detecting", len(still)) as progress,
    ):
        results = model.predict_files([picture.path for picture in still])
        for n, (picture, result) in enumerate(zip(still, results, strict=True), start=1):
            if isinstance(result, Unreadable):
                unreadable.append(result)
            else:
                found.append((result, picture.name))
                if draw is not None:
                    target = drawing_path(draw, picture)
                    submit(write_drawing, result.above(threshold), model.labels, target)
            progress(n)
    for picture in pictures:
        if is_video(picture.path):
            found += [(frame, picture.name) for frame in _in_video(model, picture, draw, threshold)]
    return found, unreadable


def _in_video(
    model: Model, picture: Picture, draw: Path | None, threshold: float
) -> list[Prediction]:
    """The detections in all frames of a video, drawn into a copy of it in the folder `draw`."""
    from PIL import Image

    from mini_fsod.commands.drawings import drawing_path, drawn_at
    from mini_fsod.predict.video import Video, VideoWriter

    video = Video(picture.path)
    found = []
    with ExitStack() as stack:
        progress = stack.enter_context(console.progress(picture.name, video.frames))
        writer = None
        if draw is not None:
            target = drawing_path(draw, picture)
            writer = stack.enter_context(VideoWriter(target, video.size, video.rate))
        for frame, prediction in model.predict_video(video):
            found.append(prediction)
            if writer is not None:
                image = Image.fromarray(frame)
                shown = prediction.above(threshold)
                writer.add(drawn_at(image, image.size, shown, model.labels))
            progress(len(found))
    if not found:
        raise UserError(
            f"{picture.path}: no frame of this video can be read.", "Convert it to MP4."
        )
    return found


def detections_table(
    predictions: Sequence[Prediction], labels: LabelMap, threshold: float
) -> Table:
    """One row per file: detections per class above the threshold, and the best score.

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
    best: dict[str, float] = {}
    counted: dict[str, Counter[str]] = {}
    for prediction in predictions:  # of a video, all frames are one row
        name = str(prediction.path)
        counted.setdefault(name, Counter()).update(prediction.above(threshold).names)
        best[name] = max([best.get(name, -1.0), *prediction.scores[:1].tolist()])
    for name, counts in counted.items():
        total += counts
        row(console.plain(name), counts, f"{best[name]:.2f}" if best[name] >= 0 else "-")
    if len(counted) > 1:
        row("all", total, "", style="bold")
    return table
