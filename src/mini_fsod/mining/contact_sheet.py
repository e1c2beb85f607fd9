"""A sheet of mined boxes for eyes: the best and the worst that one class has in the pool.

The worst tell more than the best: they stand right above the threshold.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from mini_fsod.data.dataset import Bools, Dataset, Floats
from mini_fsod.data.pictures import PictureError, drawn_size, picture_size
from mini_fsod.draw import (
    NOVEL_COLOUR,
    PAPER,
    QUIET_TEXT,
    TEXT,
    WELL,
    Rgb,
    contact_sheet,
    draw_boxes,
)
from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes
from mini_fsod.fonts import Font, font_for
from mini_fsod.labels import LabelMap
from mini_fsod.loader.decode import cores, decode
from mini_fsod.mining.audit import BACKGROUND, DUPLICATE, FALSE, LOOSE, SHOWN, TRUE, Verdict
from mini_fsod.mining.candidates import Candidates

COLUMNS = 6
ROWS = 2  # of the best, and as many of the worst
CELL = 256  # pixels of a crop's side
FOOT = 54  # below it, for two lines of words
AROUND = 0.35  # of the box's longer side is shown on each side of it
SMALLEST = 112  # pixels of the picture in a crop at least: enlarged more, nothing is recognised
SIZE = (CELL, CELL + FOOT)
LARGEST = 2000  # pixels of a picture's longer side as it is read

RIGHT_COLOUR: Rgb = (64, 200, 140)
WRONG_COLOUR: Rgb = (255, 78, 92)
TWICE_COLOUR: Rgb = (250, 196, 60)
SHOWN_COLOUR: Rgb = (120, 170, 255)
WORDS = {TRUE: "right", DUPLICATE: "found twice", FALSE: "wrong", SHOWN: "a shot"}
COLOURS = {
    TRUE: RIGHT_COLOUR,
    DUPLICATE: TWICE_COLOUR,
    FALSE: WRONG_COLOUR,
    SHOWN: SHOWN_COLOUR,
}


def write_sheets(
    folder: Path,
    data: Dataset,
    found: Candidates,
    kept: Bools,
    labels: LabelMap,
    verdict: Verdict | None = None,
) -> list[Path]:
    """A sheet of each novel class in a folder: `1-bird.png`, `2-bus.png`, ..."""

    def write(place: int) -> Path:
        content = BytesIO()
        sheet(data, found, kept, place, labels, verdict).save(content, "PNG")
        name = "".join(c if c.isalnum() else "-" for c in labels.novel[place].strip())
        path = folder / f"{place + 1}-{name[:50]}.png"
        write_bytes(path, content.getvalue())
        return path

    # decoders let go of the lock; they warn of broken EXIF, and the filter is process-wide
    with warnings.catch_warnings(), ThreadPoolExecutor(cores()) as pool:
        warnings.simplefilter("ignore")
        return list(pool.map(write, range(len(labels.novel))))


def sheet(
    data: Dataset,
    found: Candidates,
    kept: Bools,
    place: int,
    labels: LabelMap,
    verdict: Verdict | None = None,
) -> Image.Image:
    """The best and the worst boxes that novel class `place` has in the pool.

    With the audit's verdict on all candidates, right and wrong ones are told apart. Of a class that
    has nothing in the pool the best candidates are shown: would a lower threshold help?
    """
    each = COLUMNS * ROWS
    all_own = np.flatnonzero(found.label == place)
    all_own = all_own[np.argsort(-found.score[all_own], kind="stable")]
    own = all_own[kept[all_own]]
    title = f"{labels.novel[place]}: {len(own):,} mined"
    if not len(own):
        own = all_own[:each]
        title = f"{labels.novel[place]}: nothing mined; "
        title += f"best candidates ({len(own)} of {len(all_own):,})" if len(own) else "none found"
    legend = []
    if verdict is not None and len(own):
        kinds = verdict.kind[own]
        if (kinds != SHOWN).any():
            title += f", {(kinds[kinds != SHOWN] == TRUE).mean():.0%} right"
        legend = [(WORDS[k], COLOURS[k]) for k in WORDS if (kinds == k).any()]
    ranks = range(1, len(own) + 1)
    parts = [(title, ranks, legend)]
    if len(own) > 2 * each:
        best = (f"{title}; the {each} best", ranks[:each], legend)
        parts = [best, (f"the {each} worst", ranks[-each:], [])]
    grids = []
    for words, part, entries in parts:
        cells = [_cell(data, found, own[r - 1], r, labels, verdict) for r in part]
        # a whole row at least: the title needs the width
        cells += [Image.new("RGB", SIZE, PAPER)] * (COLUMNS - len(cells))
        grids.append(contact_sheet(cells, COLUMNS, SIZE, words, entries))
    return _stacked(grids)


def _cell(
    data: Dataset,
    found: Candidates,
    own: int,
    rank: int,
    labels: LabelMap,
    verdict: Verdict | None,
) -> Image.Image:
    cell = Image.new("RGB", SIZE, PAPER)
    kind = None if verdict is None else int(verdict.kind[own])
    colour = NOVEL_COLOUR if kind is None else COLOURS[kind]
    canvas = ImageDraw.Draw(cell)
    font = font_for(16, *labels.classes)  # one for all cells
    try:
        cell.paste(_crop(data, int(found.image[own]), found.xywh[own], colour), (0, 0))
    except (PictureError, UserError):
        canvas.rectangle((0, 0, CELL - 1, CELL - 1), fill=WELL)
        middle = (CELL / 2, CELL / 2)
        canvas.text(middle, "cannot be read", fill=QUIET_TEXT, font=font, anchor="mm")
    line = CELL + 15
    number = f"{rank:,}"
    canvas.text((2, line), number, fill=QUIET_TEXT, font=font, anchor="lm")
    left = 2 + font.getlength(f"{number}  ")
    canvas.text((left, line), f"{found.score[own]:.3f}", fill=TEXT, font=font, anchor="lm")
    if verdict is not None:
        word = _word(verdict, own, labels)
        canvas.text((CELL - 3, line), word, fill=colour, font=font, anchor="rm")
    name = data.path(int(found.image[own])).name
    small = font_for(14, name)
    canvas.text((2, line + 22), _ending(name, small), fill=QUIET_TEXT, font=small, anchor="lm")
    return cell


def _ending(name: str, font: Font) -> str:
    """A file's name, or its end, in which names differ, where it is wider than a cell."""
    if font.getlength(name) <= CELL - 4:
        return name
    while font.getlength(f"...{name}") > CELL - 4:
        name = name[1:]
    return f"...{name}"


def _word(verdict: Verdict, own: int, labels: LabelMap) -> str:
    """What the box really shows."""
    if verdict.kind[own] != FALSE:
        return WORDS[int(verdict.kind[own])]
    on = int(verdict.on[own])
    return {BACKGROUND: "background", LOOSE: "badly placed"}.get(on) or labels.classes[on]


def _crop(data: Dataset, image: int, xywh: Floats, colour: Rgb) -> Image.Image:
    """A square of the picture around the box, which is drawn."""
    path = data.path(image)
    width, height = drawn_size(*picture_size(path), tuple(data.sizes[image].tolist()))
    picture = Image.fromarray(decode(path, LARGEST, LARGEST, (height, width)))
    x, y, w, h = (xywh * picture.width / width).tolist()
    side = max((1 + 2 * AROUND) * max(w, h), SMALLEST)
    side = min(side, max(picture.size))  # more would only be empty
    left, top = (  # inside the picture, where it is large enough
        min(max(middle - side / 2, 0), extent - side) if side <= extent else (extent - side) / 2
        for middle, extent in ((x + w / 2, picture.width), (y + h / 2, picture.height))
    )
    square = Image.new("RGB", (CELL, CELL), WELL)
    scale = CELL / side
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + side, picture.width), min(top + side, picture.height)
    size = (max(1, round((x1 - x0) * scale)), max(1, round((y1 - y0) * scale)))
    part = picture.resize(size, Image.Resampling.BICUBIC, box=(x0, y0, x1, y1))
    square.paste(part, (round((x0 - left) * scale), round((y0 - top) * scale)))
    box = ((x - left) * scale, (y - top) * scale, (x + w - left) * scale, (y + h - top) * scale)
    return draw_boxes(square, [box], [""], [colour])


def _stacked(pictures: list[Image.Image]) -> Image.Image:
    width = max(p.width for p in pictures)
    whole = Image.new("RGB", (width, sum(p.height for p in pictures)), PAPER)
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    return whole
