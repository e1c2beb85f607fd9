"""Contact sheets of mined boxes: the best and the worst that each class has in the pool.

The worst are more informative than the best: they are just above the threshold.
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
    ending,
)
from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes
from mini_fsod.fonts import font_for
from mini_fsod.labels import LabelMap
from mini_fsod.loader.decode import cores, decode
from mini_fsod.mining.audit import BACKGROUND, DUPLICATE, FALSE, LOOSE, SHOT, TRUE, Verdict
from mini_fsod.mining.candidates import Candidates

COLUMNS = 6
ROWS = 2  # of the best, and as many of the worst
CELL = 256  # pixels of a crop's side
FOOT = 54  # pixels below it, for two lines of text
MARGIN = 0.35  # shown on each side of the box, in shares of its longer side
MIN_CROP = 112  # pixels of a crop's side: enlarged more, nothing is recognised
SIZE = (CELL, CELL + FOOT)
MAX_SIDE = 2000  # pixels of an image's longer side as it is decoded

# Told apart by people with any kind of colour blindness; wrong boxes are dashed as well
RIGHT_COLOUR: Rgb = (86, 180, 255)
WRONG_COLOUR: Rgb = (255, 112, 48)
SHOT_COLOUR: Rgb = (205, 210, 218)
KINDS: dict[int, tuple[str, Rgb]] = {
    TRUE: ("right", RIGHT_COLOUR),
    DUPLICATE: ("found twice", (250, 196, 60)),
    FALSE: ("wrong", WRONG_COLOUR),
    SHOT: ("a shot", SHOT_COLOUR),
}


def write_sheets(
    folder: Path,
    data: Dataset,
    found: Candidates,
    kept: Bools,
    labels: LabelMap,
    verdict: Verdict | None = None,
) -> list[Path]:
    """A sheet of each novel class into a folder: `1-bird.png`, `2-bus.png`, ..."""

    def write(index: int) -> Path:
        content = BytesIO()
        class_sheet(data, found, kept, index, labels, verdict).save(content, "PNG")
        name = "".join(c if c.isalnum() else "-" for c in labels.novel[index].strip())
        path = folder / f"{index + 1}-{name[:50]}.png"
        write_bytes(path, content.getvalue())
        return path

    # decoders release the GIL; they warn of broken EXIF, and the filter is process-wide
    with warnings.catch_warnings(), ThreadPoolExecutor(cores()) as pool:
        warnings.simplefilter("ignore")
        return list(pool.map(write, range(len(labels.novel))))


def class_sheet(
    data: Dataset,
    found: Candidates,
    kept: Bools,
    index: int,
    labels: LabelMap,
    verdict: Verdict | None = None,
) -> Image.Image:
    """The best and the worst boxes that a novel class has in the pool.

    The audit's verdict on all candidates colours right and wrong ones. A class with nothing in the
    pool shows its best candidates: would a lower threshold help?
    """
    each = COLUMNS * ROWS
    candidates = np.flatnonzero(found.label == index)
    candidates = candidates[np.argsort(-found.score[candidates], kind="stable")]
    rows = candidates[kept[candidates]]
    title = f"{labels.novel[index]}: {len(rows):,} mined"
    if not len(rows):
        rows = candidates[:each]
        title = f"{labels.novel[index]}: nothing mined; "
        best = f"best candidates ({len(rows)} of {len(candidates):,})"
        title += best if len(rows) else "none found"
    legend = []
    if verdict is not None and len(rows):
        kinds = verdict.kind[rows]
        if (kinds != SHOT).any():
            title += f", {(kinds[kinds != SHOT] == TRUE).mean():.0%} right"
        legend = [KINDS[k] for k in KINDS if (kinds == k).any()]
    ranks = range(1, len(rows) + 1)
    parts = [(title, ranks, legend)]
    if len(rows) > 2 * each:
        parts = [
            (f"{title}; the {each} best", ranks[:each], legend),
            (f"the {each} worst", ranks[-each:], []),
        ]
    grids = []
    for heading, part, entries in parts:
        cells = [_cell(data, found, rows[r - 1], r, labels, verdict) for r in part]
        # a whole row at least: the title needs the width
        cells += [Image.new("RGB", SIZE, PAPER)] * (COLUMNS - len(cells))
        grids.append(contact_sheet(cells, COLUMNS, SIZE, heading, entries))
    return _stack(grids)


def _cell(
    data: Dataset, found: Candidates, row: int, rank: int, labels: LabelMap, verdict: Verdict | None
) -> Image.Image:
    cell = Image.new("RGB", SIZE, PAPER)
    colour = NOVEL_COLOUR if verdict is None else KINDS[int(verdict.kind[row])][1]
    canvas = ImageDraw.Draw(cell)
    font = font_for(16, *labels.classes)  # one for all cells
    try:
        wrong = verdict is not None and verdict.kind[row] == FALSE
        image, xywh = int(found.image[row]), found.xywh[row]
        cell.paste(crop_with_box(data, image, xywh, colour, dashed=bool(wrong)), (0, 0))
    except (PictureError, UserError):
        canvas.rectangle((0, 0, CELL - 1, CELL - 1), fill=WELL)
        middle = (CELL / 2, CELL / 2)
        canvas.text(middle, "cannot be read", fill=QUIET_TEXT, font=font, anchor="mm")
    line = CELL + 15
    number = f"{rank:,}"
    canvas.text((2, line), number, fill=QUIET_TEXT, font=font, anchor="lm")
    left = 2 + font.getlength(f"{number}  ")
    canvas.text((left, line), f"{found.score[row]:.3f}", fill=TEXT, font=font, anchor="lm")
    if verdict is not None:
        word = verdict_word(verdict, row, labels)
        canvas.text((CELL - 3, line), word, fill=colour, font=font, anchor="rm")
    name = data.path(int(found.image[row])).name
    font = font_for(14, name)
    canvas.text(
        (2, line + 22), ending(name, font, CELL - 4), fill=QUIET_TEXT, font=font, anchor="lm"
    )
    return cell


def verdict_word(verdict: Verdict, row: int, labels: LabelMap) -> str:
    """What a candidate's box shows, by the annotations."""
    if verdict.kind[row] != FALSE:
        return KINDS[int(verdict.kind[row])][0]
    on = int(verdict.on[row])
    return {BACKGROUND: "background", LOOSE: "badly placed"}.get(on) or labels.classes[on]


def crop_with_box(
    data: Dataset, image: int, xywh: Floats, colour: Rgb, cell: int = CELL, dashed: bool = False
) -> Image.Image:
    """A square of the image around the box, with the box drawn on it, `cell` pixels wide."""
    path = data.path(image)
    width, height = drawn_size(*picture_size(path), tuple(data.sizes[image].tolist()))
    picture = Image.fromarray(decode(path, MAX_SIDE, MAX_SIDE, (height, width)))
    x, y, w, h = (xywh * picture.width / width).tolist()
    side = max((1 + 2 * MARGIN) * max(w, h), MIN_CROP)
    side = min(side, max(picture.size))  # the rest would be empty
    left, top = (  # inside the image where that is large enough
        min(max(middle - side / 2, 0), extent - side) if side <= extent else (extent - side) / 2
        for middle, extent in ((x + w / 2, picture.width), (y + h / 2, picture.height))
    )
    square = Image.new("RGB", (cell, cell), WELL)
    scale = cell / side
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + side, picture.width), min(top + side, picture.height)
    size = (max(1, round((x1 - x0) * scale)), max(1, round((y1 - y0) * scale)))
    part = picture.resize(size, Image.Resampling.BICUBIC, box=(x0, y0, x1, y1))
    square.paste(part, (round((x0 - left) * scale), round((y0 - top) * scale)))
    box = ((x - left) * scale, (y - top) * scale, (x + w - left) * scale, (y + h - top) * scale)
    return draw_boxes(square, [box], [""], [colour], [dashed], line=2)


def _stack(pictures: list[Image.Image]) -> Image.Image:
    width = max(p.width for p in pictures)
    whole = Image.new("RGB", (width, sum(p.height for p in pictures)), PAPER)
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    return whole
