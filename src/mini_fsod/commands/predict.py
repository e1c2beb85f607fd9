"""`mini predict`: what a trained detector sees in anybody's pictures."""

from __future__ import annotations

import json
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.table import Table

from mini_fsod import checkpoint, console
from mini_fsod.data.folder import unread_formats
from mini_fsod.device import torch_device
from mini_fsod.draw import BASE_COLOUR, MANY_BOXES, NOVEL_COLOUR, draw_boxes
from mini_fsod.errors import UserError
from mini_fsod.files import is_folder, mode, real, write_bytes
from mini_fsod.labels import LabelMap
from mini_fsod.loader.decode import cores
from mini_fsod.predict import Picture, Prediction, Unreadable, pictures_of, predict, upright

SCORE = 0.5  # the least score in the table and in drawings
READABLE = 800  # pixels: drawings of smaller pictures are enlarged, captions would hide them

KEPT_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".avif")
SOFTWARE, DRAWN = 0x0131, "mini predict"  # EXIF tag and its value in drawings


def run(
    run_or_checkpoint: Path,
    images: Sequence[Path],
    as_json: bool,
    draw: Path | None,
    score: float | None,
    device: str,
) -> bool:
    """Whether all pictures could be read."""
    where = torch_device(device)
    unread: list[str] = []
    found, failed = pictures_of(images, without=draw, skip=unread.append)
    for line in unread_formats(unread):
        console.note(line)
    if draw is not None:
        _refuse_losses(draw, found)
    path = checkpoint.find(run_or_checkpoint)
    if path != run_or_checkpoint:
        console.note(f"the detector of {path}")
    saved = checkpoint.load(path)
    labels = saved.labels
    detector = saved.detector.to(where)
    if where.type == "cuda":
        detector.to(memory_format=torch.channels_last)
    least = SCORE if score is None else score
    cut = detector.settings.test.score_cut
    if least < cut:
        console.note(f"the detector itself gives nothing below a score of {cut:g}")
    done: list[Prediction] = []
    with (
        warnings.catch_warnings(action="ignore"),  # decoders warn of broken EXIF and the like
        _in_threads() as later,
        console.progress("detecting", len(found)) as progress,
    ):
        paths = [p.path for p in found]
        for n, (picture, seen) in enumerate(
            zip(found, predict(detector, labels, paths, where), strict=True)
        ):
            if isinstance(seen, Unreadable):
                failed.append(seen)
            else:
                done.append(seen)
                if draw is not None:
                    later(_draw, seen.above(least), labels, _target(draw, picture))
            progress(n + 1)
    if as_json:
        shown = done if score is None else [p.above(score) for p in done]
        records = ",\n ".join(json.dumps(to_json(p), allow_nan=False) for p in shown)
        print(f"[{records}]")
    elif done:
        console.table(result_table(done, labels, least))
    if draw is not None and done:
        pictures = console.count(len(done), "drawing")
        filled = sum(len(p.above(least).names) > 0 for p in done)
        console.note(
            f"{draw}: {pictures}, {filled:,} with detections of a score of {least:g} and above"
        )
    for bad in failed:
        console.error(UserError(f"{bad.path}: {bad.why.rstrip('.')}."))
    return not failed


def to_json(prediction: Prediction) -> dict[str, Any]:
    width, height = prediction.size
    return {
        "file": str(prediction.path),
        "width": width,
        "height": height,
        "detections": [
            {"category": name, "bbox": [round(v, 3) for v in box], "score": round(score, 6)}
            for name, box, score in zip(
                prediction.names,
                prediction.xywh.tolist(),
                prediction.scores.tolist(),
                strict=True,
            )
        ],
    }


def result_table(done: Sequence[Prediction], labels: LabelMap, least: float) -> Table:
    """A line a picture: how many of which class at this score and above, and the best score of all,
    which may be below: it tells whether another --score would show something.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(console.count(len(done), "picture"))
    table.add_column(f"detections of score {least:g} and above (--score)")
    table.add_column("best", justify="right")

    def row(name: str, counts: Counter[str], best: str, style: str = "") -> None:
        parts = [
            f"[magenta]{n:,} {console.plain(c)}[/]"
            if c in labels.novel
            else f"{n:,} {console.plain(c)}"
            for c in labels.novel + labels.base
            if (n := counts[c])
        ]
        table.add_row(name, ", ".join(parts) or "[dim]none[/]", best, style=style)

    total: Counter[str] = Counter()
    for p in done:
        counts = Counter(p.above(least).names)
        total += counts
        best = f"{p.scores[0]:.2f}" if len(p.scores) else "-"
        row(console.plain(p.path), counts, best)
    if len(done) > 1:
        row("all", total, "", style="bold")
    return table


# Drawings


def _target(folder: Path, picture: Picture) -> Path:
    """Where the drawing goes. What cannot carry our mark, such as BMP, becomes a PNG."""
    name = picture.name
    return folder / (name if name.lower().endswith(KEPT_SUFFIXES) else f"{name}.png")


def _refuse_losses(folder: Path, pictures: Sequence[Picture]) -> None:
    """Nothing is written over but older drawings, and these only if they are no source."""
    if mode(folder) and not is_folder(folder):
        raise UserError(f"{folder} is no folder.", "Choose another place for --draw.")
    sources = {real(p.path) for p in pictures}
    for picture in pictures:
        target = _target(folder, picture)
        if mode(target) and (real(target) in sources or not _is_drawing(target)):
            raise UserError(
                f"{target} is there already and would be lost.",
                "Choose another folder for --draw.",
            )


def _is_drawing(path: Path) -> bool:
    try:
        with Image.open(path) as picture:
            return bool(picture.getexif().get(SOFTWARE) == DRAWN)
    except Exception:  # decoders raise what they like: it is no picture of ours
        return False


def _draw(prediction: Prediction, labels: LabelMap, target: Path) -> None:
    novel = [name in labels.novel for name in prediction.names]
    picture = upright(prediction.path)
    times = min(ceil(READABLE / max(picture.size)), 4)
    if times > 1:
        size = (times * picture.width, times * picture.height)
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    drawn = draw_boxes(
        picture,
        times * prediction.xyxy,
        [
            f"{name} {prediction.scores[n]:.2f}" if novel[n] or n < MANY_BOXES else ""
            for n, name in enumerate(prediction.names)
        ],
        [NOVEL_COLOUR if n else BASE_COLOUR for n in novel],
    )
    mark = Image.Exif()
    mark[SOFTWARE] = DRAWN
    content = BytesIO()
    kind = Image.registered_extensions()[target.suffix.lower()]
    drawn.save(content, kind, exif=mark, quality=92)
    write_bytes(target, content.getvalue())


@contextmanager
def _in_threads() -> Iterator[Callable[..., None]]:
    """A function that calls others later, in threads; a few wait at a time, errors come out."""
    most = 2 * cores()
    waiting: deque[Future[None]] = deque()
    pool = ThreadPoolExecutor(cores())

    def later(function: Callable[..., None], *values: Any) -> None:
        waiting.append(pool.submit(function, *values))
        while len(waiting) > most:
            waiting.popleft().result()

    try:
        yield later
        while waiting:
            waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
