"""Drawings: boxes with captions, and contact sheets of a data set.

Base classes share one pale colour and novel ones one strong colour in all drawings of the project.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from mini_fsod.data.dataset import Dataset
from mini_fsod.data.pictures import PictureError, drawn_size, picture_size
from mini_fsod.errors import UserError
from mini_fsod.fonts import Font, font_for
from mini_fsod.labels import LabelMap
from mini_fsod.loader.decode import decode

Rgb = tuple[int, int, int]
Rect = tuple[float, float, float, float]  # left, top, right, bottom

BASE_COLOUR: Rgb = (176, 190, 205)
NOVEL_COLOUR: Rgb = (255, 92, 40)
PAPER: Rgb = (20, 23, 28)
WELL: Rgb = (32, 36, 43)  # background of a cell
TEXT: Rgb = (240, 242, 245)
QUIET_TEXT: Rgb = (150, 159, 171)

HALO = (8, 10, 14, 100)  # dark edges of each line, so that pale lines show on pale images

MANY_BOXES = 12  # with so many boxes only novel ones get captions, which would hide the image


def draw_boxes(
    picture: Image.Image,
    xyxy: Any,
    captions: Sequence[str],
    colours: Sequence[Rgb],
    dashed: Sequence[bool] = (),
    line: int = 1,
) -> Image.Image:
    """A copy of the picture with B boxes drawn; with zero boxes the picture itself.

    xyxy: (B, 4) left, top, right, bottom in pixels. Lines run just outside the box, so that small
    objects stay visible; they are at least `line` pixels wide. An empty caption is not drawn, nor
    one that has no place beside those before it. Boxes that are not finite are left out.
    """
    boxes = np.asarray(xyxy, dtype=np.float64).reshape(-1, 4)
    if not len(boxes):
        return picture
    drawn = picture.convert("RGB") if picture.mode != "RGB" else picture.copy()
    canvas = ImageDraw.Draw(drawn, "RGBA")
    # Scaled by the longer side, so that all pictures of a sheet have one text size; strips aside.
    side = min(max(drawn.size), 3 * min(drawn.size))
    line = max(line, round(side / 160))
    font = font_for(max(10, round(8 + side / 45)), *captions)  # grows more slowly than the picture
    frames = [_frame(box, drawn.size, line) for box in boxes.tolist()]
    for k, frame in enumerate(frames):
        if frame:
            left, top, right, bottom = _inclusive(frame)
            halo = (left - 1, top - 1, right + 1, bottom + 1)
            canvas.rectangle(halo, outline=HALO, width=line + 2)
            _rectangle(canvas, frame, colours[k], line, bool(dashed) and dashed[k])
    shown = [frame for frame in frames if frame]
    chips: list[Rect] = []
    for k, frame in enumerate(frames):
        if frame and captions[k]:
            text = _shorten(captions[k], font, drawn.width - 8)
            chip = caption_position(frame, _chip_size(text, font), drawn.size, shown, chips)
            if chip is None:
                continue
            chips.append(chip)
            canvas.rectangle(_inclusive(chip), fill=colours[k])
            middle = ((chip[0] + chip[2]) / 2, (chip[1] + chip[3]) / 2)
            canvas.text(middle, text, fill=_text_on(colours[k]), font=font, anchor="mm")
    return drawn


def _frame(box: Sequence[float], size: tuple[int, int], line: int) -> Rect | None:
    """The outer edge of a box's line, clipped to the picture; None if nothing is visible."""
    if not np.isfinite(box).all():
        return None
    (left, right), (top, bottom) = sorted(box[0::2]), sorted(box[1::2])
    if right < 0 or bottom < 0 or left > size[0] or top > size[1]:
        return None
    room = 2 * line + 1  # least side, so that a box without area shows, even at the edge
    left = min(max(round(left) - line, 0), max(size[0] - room, 0))
    top = min(max(round(top) - line, 0), max(size[1] - room, 0))
    right = max(min(round(right) + line, size[0]), left + room)
    bottom = max(min(round(bottom) + line, size[1]), top + room)
    return left, top, right, bottom


def _inclusive(rect: Rect) -> Rect:
    return rect[0], rect[1], rect[2] - 1, rect[3] - 1


def _rectangle(
    canvas: ImageDraw.ImageDraw, frame: Rect, colour: Rgb, line: int, dashed: bool
) -> None:
    if not dashed:
        canvas.rectangle(_inclusive(frame), outline=colour, width=line)
        return
    left, top, right, bottom = frame
    dash = 4 * line
    for start in range(round(left), round(right), 2 * dash):
        for y in (top, bottom - line):
            end = min(start + dash, right)
            canvas.rectangle(_inclusive((start, y, end, y + line)), fill=colour)
    for start in range(round(top), round(bottom), 2 * dash):
        for x in (left, right - line):
            end = min(start + dash, bottom)
            canvas.rectangle(_inclusive((x, start, x + line, end)), fill=colour)


def _chip_size(text: str, font: Font) -> tuple[int, int]:
    """Size of a caption's background; one height for all captions of a picture."""
    height = font.getbbox("Ag")[3]
    return round(font.getlength(text) + 0.5 * height) + 2, round(1.15 * height)


def caption_position(
    frame: Rect,
    chip: tuple[int, int],
    size: tuple[int, int],
    boxes: Sequence[Rect],
    chips: Sequence[Rect],
) -> Rect | None:
    """Where the caption covers no other caption, and least of the boxes: above its own, or around.

    None where there is no such place: in a crowd, two captions on each other say nothing.
    """
    left, top, right, bottom = frame
    width, height = chip
    middle_x, middle_y = (left + right - width) / 2, (top + bottom - height) / 2
    corners = [
        *((x, y) for y in (top - height, bottom) for x in (left, right - width, middle_x)),
        *((x, y) for x in (right, left - width) for y in (top, bottom - height, middle_y)),
        (left, top),
        (left, bottom - height),
    ]
    best: tuple[float, Rect] | None = None
    for x, y in corners:
        x = max(0, min(x, size[0] - width))
        y = max(0, min(y, size[1] - height))
        place = (x, y, x + width, y + height)
        if any(_intersection(place, other) for other in chips):
            continue
        covered = sum(_intersection(place, other) for other in boxes)
        if best is None or covered < best[0]:
            best = covered, place
    return None if best is None else best[1]


def _intersection(a: Rect, b: Rect) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0.0) * max(height, 0.0)


def _text_on(colour: Rgb) -> Rgb:
    light = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    return (16, 18, 22) if light > 120 else (255, 255, 255)


def _shorten(text: str, font: Font, width: float) -> str:
    """The text, cut to this width."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text.rstrip() + "..."


def contact_sheet(
    cells: Sequence[Image.Image],
    columns: int,
    cell: tuple[int, int],
    title: str,
    legend: Sequence[tuple[str, Rgb]] = (),
) -> Image.Image:
    """Pictures in a grid, each scaled to its cell (width, height), under a title and a legend."""
    unit = max(cell) / 100
    gap, margin = round(4 * unit), round(12 * unit)
    columns = max(1, min(columns, len(cells)))
    rows = -(-len(cells) // columns)
    width = 2 * margin + columns * (cell[0] + gap) - gap
    texts = (title, *(text for text, _ in legend))
    title_font, font = (font_for(max(9, round(points * unit)), *texts) for points in (10.5, 6))
    entries = _legend_rows(legend, font, width - 2 * margin)
    row_height = round(10 * unit)
    header = round(17 * unit) * bool(title) + row_height * len(entries)
    header += round(5 * unit) * bool(header)
    height = 2 * margin + header + rows * (cell[1] + gap) - gap * bool(rows)
    sheet = Image.new("RGB", (width, height), PAPER)
    canvas = ImageDraw.Draw(sheet)

    y = margin
    if title:
        text = _shorten(title, title_font, width - 2 * margin)
        canvas.text((margin, y - 2 * unit), text, fill=TEXT, font=title_font, anchor="la")
        y += round(17 * unit)
    swatch = round(4.5 * unit)
    for row in entries:
        x, middle = float(margin), y + row_height / 2 - unit
        for text, colour in row:
            spot = (x, middle - swatch / 2, x + swatch, middle + swatch / 2)
            canvas.rounded_rectangle(spot, radius=unit, fill=colour)
            canvas.text((x + 1.6 * swatch, middle), text, fill=QUIET_TEXT, font=font, anchor="lm")
            x += _entry_width(text, font)
        y += row_height
    for k, picture in enumerate(cells):
        left = margin + k % columns * (cell[0] + gap)
        top = margin + header + k // columns * (cell[1] + gap)
        canvas.rectangle((left, top, left + cell[0] - 1, top + cell[1] - 1), fill=WELL)
        fitted = _fit(picture, cell)
        at = (left + (cell[0] - fitted.width) // 2, top + (cell[1] - fitted.height) // 2)
        sheet.paste(fitted, at)
    return sheet


def _entry_width(text: str, font: Font) -> float:
    """Width of a legend entry: swatch, text, and the gap to the next entry."""
    return font.getlength(text) + 3.2 * font.getlength("M")


def _legend_rows(
    legend: Sequence[tuple[str, Rgb]], font: Font, width: float
) -> list[list[tuple[str, Rgb]]]:
    """The legend's entries, in rows that fit the width."""
    rows: list[list[tuple[str, Rgb]]] = []
    room = 0.0
    for text, colour in legend:
        text = _shorten(text, font, width - _entry_width("", font))
        needed = _entry_width(text, font)
        if not rows or needed > room:
            rows.append([])
            room = width
        rows[-1].append((text, colour))
        room -= needed
    return rows


def _fit(picture: Image.Image, cell: tuple[int, int]) -> Image.Image:
    """The picture scaled to fit the cell (width, height)."""
    scale = min(cell[0] / picture.width, cell[1] / picture.height)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    if size == picture.size:
        return picture.convert("RGB")
    return picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)


def sheet_of(
    dataset: Dataset,
    labels: LabelMap,
    images: Sequence[int],
    columns: int = 6,
    cell: tuple[int, int] = (320, 320),
) -> Image.Image:
    """A contact sheet of these images (indices) with their boxes, class names and file names.

    Difficult, crowd and ignored boxes are dashed. An image that cannot be read is a grey cell with
    the reason.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # image decoders warn of broken EXIF and the like
        cells = [
            with_name(image_cell(dataset, labels, image, cell), dataset.path(image).name, cell)
            for image in images
        ]
    named = (cell[0], cell[1] + name_height(cell))
    return contact_sheet(cells, columns, named, "", class_legend(dataset, labels))


def name_height(cell: tuple[int, int]) -> int:
    """Pixels below a cell (width, height) for the name of its file."""
    return max(14, round(max(cell) / 14))


def with_name(picture: Image.Image, name: str, cell: tuple[int, int]) -> Image.Image:
    """The picture in its cell (width, height), and below it its name."""
    height = name_height(cell)
    named = Image.new("RGB", (cell[0], cell[1] + height), PAPER)
    canvas = ImageDraw.Draw(named)
    canvas.rectangle((0, 0, cell[0] - 1, cell[1] - 1), fill=WELL)
    fitted = _fit(picture, cell)
    named.paste(fitted, ((cell[0] - fitted.width) // 2, (cell[1] - fitted.height) // 2))
    font = font_for(max(9, round(0.72 * height)), name)
    text = ending(" ".join(name.split()), font, cell[0] - 4)
    canvas.text((2, cell[1] + height / 2), text, fill=QUIET_TEXT, font=font, anchor="lm")
    return named


def ending(text: str, font: Font, width: float) -> str:
    """The text; its end alone, in which names of files differ, where it is wider than this."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"...{text}") > width:
        text = text[1:]
    return f"...{text}"


def class_legend(dataset: Dataset, labels: LabelMap) -> list[tuple[str, Rgb]]:
    """Entries for novel classes, base classes and dashed boxes, as far as the data set has them."""

    def entry(word: str, names: Sequence[str]) -> str:
        return f"{word}: {', '.join(names)}" if len(names) <= 10 else f"{len(names)} {word} classes"

    base = [name for name in dataset.classes if name not in labels.novel]
    novel = [name for name in labels.novel if name in dataset.classes]
    boxes = dataset.boxes
    flags = {"difficult": boxes.difficult, "crowd": boxes.crowd, "ignored": boxes.ignore}
    dashed = [word for word, flag in flags.items() if flag.any()]
    entries = {
        "novel": (novel, NOVEL_COLOUR),
        "base": (base, BASE_COLOUR),
        "dashed": (dashed, QUIET_TEXT),
    }
    return [(entry(word, names), colour) for word, (names, colour) in entries.items() if names]


def image_cell(
    dataset: Dataset, labels: LabelMap, image: int, cell: tuple[int, int]
) -> Image.Image:
    """The image (index) with its boxes, scaled to fit the cell (width, height)."""
    try:
        fitted, scale = read_fitted(dataset, image, cell)
    except (PictureError, UserError) as error:
        return _note(cell, Path(dataset.files[image]).name, error.what)
    drawn = dataset.boxes.take(np.arange(*dataset.offsets[image : image + 2]))
    names = [dataset.classes[label] for label in drawn.label]
    novel = [name in labels.novel for name in names]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = drawn.xyxy * scale
    return draw_boxes(
        fitted,
        scaled,
        [n if len(names) < MANY_BOXES or v else "" for n, v in zip(names, novel, strict=True)],
        [NOVEL_COLOUR if v else BASE_COLOUR for v in novel],
        (drawn.difficult | drawn.crowd | drawn.ignore).tolist(),
    )


def read_fitted(dataset: Dataset, image: int, cell: tuple[int, int]) -> tuple[Image.Image, float]:
    """The image, turned as its boxes expect and scaled to fit the cell (width, height), and the
    scale.

    It is scaled before boxes are drawn, so that lines and captions are crisp.
    """
    path = dataset.path(image)
    width, height = drawn_size(*picture_size(path), tuple(dataset.sizes[image].tolist()))
    pixels = decode(path, max(cell), 8 * max(cell), (height, width))
    fitted = _fit(Image.fromarray(pixels), cell)
    return fitted, fitted.width / width


def _note(cell: tuple[int, int], *lines: str) -> Image.Image:
    """A grey cell with text in the middle."""
    note = Image.new("RGB", cell, (58, 63, 71))
    font = font_for(max(9, round(min(cell) / 20)), *lines)
    text = "\n".join(_shorten(line, font, 0.9 * cell[0]) for line in lines)
    middle = (cell[0] / 2, cell[1] / 2)
    ImageDraw.Draw(note).multiline_text(
        middle, text, fill=QUIET_TEXT, font=font, anchor="mm", align="center"
    )
    return note
