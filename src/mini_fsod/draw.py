"""Pictures for people: boxes with captions, and contact sheets of a data set.

Base classes share one quiet colour and novel ones one strong colour, everywhere in the project.
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
WELL: Rgb = (32, 36, 43)  # where a letterboxed picture leaves its cell empty
TEXT: Rgb = (240, 242, 245)
QUIET_TEXT: Rgb = (150, 159, 171)

HALO = (8, 10, 14, 100)  # a veil beside each line: a quiet colour shows on pale pictures too

MANY_BOXES = 12  # from here on only novel boxes get a caption: more would hide the picture


def draw_boxes(
    picture: Image.Image,
    xyxy: Any,
    captions: Sequence[str],
    colours: Sequence[Rgb],
    dashed: Sequence[bool] = (),
) -> Image.Image:
    """The picture with B boxes; zero boxes give back the picture itself.

    xyxy: (B, 4) left, top, right, bottom in pixels. Lines run just outside the box, so that small
    objects stay visible. An empty caption gets no chip. Boxes that are not finite are left out.
    """
    boxes = np.asarray(xyxy, dtype=np.float64).reshape(-1, 4)
    if not len(boxes):
        return picture
    drawn = picture.convert("RGB") if picture.mode != "RGB" else picture.copy()
    canvas = ImageDraw.Draw(drawn, "RGBA")
    # By the longer side, so that pictures of one sheet get one size of text; not for thin strips.
    side = min(max(drawn.size), 3 * min(drawn.size))
    line = max(1, round(side / 160))
    font = font_for(max(10, round(8 + side / 45)), *captions)  # large ones need not shout
    frames = [_frame(box, drawn.size, line) for box in boxes.tolist()]
    for k, frame in enumerate(frames):
        if frame:
            left, top, right, bottom = _inclusive(frame)
            halo = (left - 1, top - 1, right + 1, bottom + 1)
            canvas.rectangle(halo, outline=HALO, width=line + 2)
            _rectangle(canvas, frame, colours[k], line, bool(dashed) and dashed[k])
    taken = [frame for frame in frames if frame]
    for k, frame in enumerate(frames):
        if frame and captions[k]:
            text = _shorten(captions[k], font, drawn.width - 8)
            chip = _chip_place(frame, _chip_size(text, font), drawn.size, taken)
            taken.append(chip)
            canvas.rectangle(_inclusive(chip), fill=colours[k])
            middle = ((chip[0] + chip[2]) / 2, (chip[1] + chip[3]) / 2)
            canvas.text(middle, text, fill=_text_on(colours[k]), font=font, anchor="mm")
    return drawn


def _frame(box: Sequence[float], size: tuple[int, int], line: int) -> Rect | None:
    """The outer edge of a box's line, kept in the picture; None when there is nothing to draw."""
    if not np.isfinite(box).all():
        return None
    (left, right), (top, bottom) = sorted(box[0::2]), sorted(box[1::2])
    if right < 0 or bottom < 0 or left > size[0] or top > size[1]:
        return None
    room = 2 * line + 1  # a box without area still shows, at the picture's edge too
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
    for x in range(round(left), round(right), 2 * dash):
        end = min(x + dash, right)
        canvas.rectangle(_inclusive((x, top, end, top + line)), fill=colour)
        canvas.rectangle(_inclusive((x, bottom - line, end, bottom)), fill=colour)
    for y in range(round(top), round(bottom), 2 * dash):
        end = min(y + dash, bottom)
        canvas.rectangle(_inclusive((left, y, left + line, end)), fill=colour)
        canvas.rectangle(_inclusive((right - line, y, right, end)), fill=colour)


def _chip_size(text: str, font: Font) -> tuple[int, int]:
    """One height for all chips of a picture, whether or not the text has descenders."""
    height = font.getbbox("Ag")[3]
    return round(font.getlength(text) + 0.5 * height) + 2, round(1.15 * height)


def _chip_place(
    frame: Rect, chip: tuple[int, int], size: tuple[int, int], taken: Sequence[Rect]
) -> Rect:
    """Where the chip hides least of other boxes and chips: above the box, or around it."""
    left, top, right, bottom = frame
    width, height = chip
    corners = [
        (left, top - height),
        (right - width, top - height),
        (left, bottom),
        (right - width, bottom),
        (right, top),
        (left - width, top),
        (right, bottom - height),
        (left - width, bottom - height),
        (left, top),
    ]
    places = []
    for x, y in corners:
        x = max(0, min(x, size[0] - width))
        y = max(0, min(y, size[1] - height))
        places.append((x, y, x + width, y + height))
    return min(places, key=lambda place: sum(_shared(place, other) for other in taken))


def _shared(a: Rect, b: Rect) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0.0) * max(height, 0.0)


def _text_on(colour: Rgb) -> Rgb:
    light = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    return (16, 18, 22) if light > 120 else (255, 255, 255)


def _shorten(text: str, font: Font, width: float) -> str:
    """The text, cut so that it is no wider than this."""
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
    """Pictures in an even grid, each fitted into its cell, under a title line and a legend."""
    unit = max(cell) / 100
    gap, margin = round(4 * unit), round(12 * unit)
    columns = max(1, min(columns, len(cells)))
    rows = -(-len(cells) // columns)
    width = 2 * margin + columns * (cell[0] + gap) - gap
    words = (title, *(text for text, _ in legend))
    large, small = (font_for(max(9, round(points * unit)), *words) for points in (10.5, 6))
    entries = _legend_rows(legend, small, width - 2 * margin)
    row_height = round(10 * unit)
    header = round(17 * unit) * bool(title) + row_height * len(entries)
    header += round(5 * unit) * bool(header)
    height = 2 * margin + header + max(rows, 0) * (cell[1] + gap) - gap * bool(rows)
    sheet = Image.new("RGB", (width, height), PAPER)
    canvas = ImageDraw.Draw(sheet)

    y = margin
    if title:
        text = _shorten(title, large, width - 2 * margin)
        canvas.text((margin, y - 2 * unit), text, fill=TEXT, font=large, anchor="la")
        y += round(17 * unit)
    swatch = round(4.5 * unit)
    for row in entries:
        x, middle = float(margin), y + row_height / 2 - unit
        for text, colour in row:
            spot = (x, middle - swatch / 2, x + swatch, middle + swatch / 2)
            canvas.rounded_rectangle(spot, radius=unit, fill=colour)
            canvas.text((x + 1.6 * swatch, middle), text, fill=QUIET_TEXT, font=small, anchor="lm")
            x += _entry_width(text, small)
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
    """Swatch, text, and the space up to the next entry; one em is about 6/100 of a cell."""
    return font.getlength(text) + 3.2 * font.getlength("M")


def _legend_rows(
    legend: Sequence[tuple[str, Rgb]], font: Font, width: float
) -> list[list[tuple[str, Rgb]]]:
    """The legend's entries, broken into lines that fit."""
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
    """The whole picture, as large as the cell allows."""
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
    title: str = "",
) -> Image.Image:
    """A contact sheet of these images (indices) with their boxes and class names.

    Difficult, crowd and ignored boxes are dashed. A picture that cannot be read becomes a grey
    cell that says so.
    """
    offsets = dataset.offsets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # decoders warn of broken EXIF and the like
        cells = [
            _cell_of(dataset, labels, i, slice(offsets[i], offsets[i + 1]), cell) for i in images
        ]
    return contact_sheet(cells, columns, cell, title, _legend(dataset, labels))


def _legend(dataset: Dataset, labels: LabelMap) -> list[tuple[str, Rgb]]:
    def entry(word: str, names: Sequence[str]) -> str:
        return f"{word}: {', '.join(names)}" if len(names) <= 10 else f"{len(names)} {word} classes"

    base = [name for name in dataset.classes if name not in labels.novel]
    novel = [name for name in labels.novel if name in dataset.classes]
    boxes = dataset.boxes
    flags = {"difficult": boxes.difficult, "crowd": boxes.crowd, "ignored": boxes.ignore}
    dashed = [word for word, flag in flags.items() if flag.any()]
    return [
        (entry(word, names), colour)
        for word, names, colour in (
            ("novel", novel, NOVEL_COLOUR),
            ("base", base, BASE_COLOUR),
            ("dashed", dashed, QUIET_TEXT),
        )
        if names
    ]


def _cell_of(
    dataset: Dataset, labels: LabelMap, image: int, boxes: slice, cell: tuple[int, int]
) -> Image.Image:
    try:
        picture, width = _read(dataset, image, cell)
    except (PictureError, UserError) as error:
        return _note(cell, Path(dataset.files[image]).name, error.what)
    # Enlarged before the boxes are drawn: lines and captions come out crisp however small it was.
    fitted = _fit(picture, cell)
    held = dataset.boxes.take(np.arange(boxes.start, boxes.stop))
    names = [dataset.classes[label] for label in held.label]
    novel = [name in labels.novel for name in names]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = held.xyxy * (fitted.width / width)
    return draw_boxes(
        fitted,
        scaled,
        [n if len(names) < MANY_BOXES or v else "" for n, v in zip(names, novel, strict=True)],
        [NOVEL_COLOUR if v else BASE_COLOUR for v in novel],
        (held.difficult | held.crowd | held.ignore).tolist(),
    )


def _read(dataset: Dataset, image: int, cell: tuple[int, int]) -> tuple[Image.Image, int]:
    """The picture as its boxes mean it, about as large as the cell, and its width in full."""
    path = dataset.path(image)
    width, height = drawn_size(*picture_size(path), tuple(dataset.sizes[image].tolist()))
    pixels = decode(path, max(cell), 8 * max(cell), (height, width))
    return Image.fromarray(pixels), width


def _note(cell: tuple[int, int], *lines: str) -> Image.Image:
    """A grey cell with words in the middle."""
    note = Image.new("RGB", cell, (58, 63, 71))
    font = font_for(max(9, round(min(cell) / 20)), *lines)
    text = "\n".join(_shorten(line, font, 0.9 * cell[0]) for line in lines)
    middle = (cell[0] / 2, cell[1] / 2)
    ImageDraw.Draw(note).multiline_text(
        middle, text, fill=QUIET_TEXT, font=font, anchor="mm", align="center"
    )
    return note


def pick_images(dataset: Dataset, labels: LabelMap, count: int = 24) -> list[int]:
    """Indices of up to `count` images that show the data set well, always the same ones.

    Each class gets an image as long as there is room, novel classes first; the rest are spread
    evenly over the images with boxes, then over those without. Images with novel boxes come first.
    """
    image, label = dataset.boxes.image, dataset.boxes.label
    is_novel = np.isin(label, [k for k, c in enumerate(dataset.classes) if c in labels.novel])
    holding = set(image[is_novel].tolist())
    chosen: set[int] = set()
    for name in (*labels.novel, *(c for c in dataset.classes if c not in labels.novel)):
        if len(chosen) < count and name in dataset.classes:
            having = np.unique(image[label == dataset.classes.index(name)])
            if len(having) and not chosen.intersection(having.tolist()):
                # Not always the first image: a class's place is its share of the way through.
                chosen.add(int(having[len(having) * len(chosen) // count]))
    with_boxes = np.unique(image)
    without = np.setdiff1d(np.arange(len(dataset)), with_boxes)
    for group in (with_boxes, without):
        left = np.setdiff1d(group, sorted(chosen))
        wanted = min(count - len(chosen), len(left))
        chosen.update(left[np.arange(wanted) * len(left) // max(wanted, 1)].tolist())
    return sorted(chosen, key=lambda i: (i not in holding, i))
