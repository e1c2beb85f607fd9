"""`detections.png` of a run: some test pictures, the truth beside what was found, with scores."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from mini_fsod.data.pick import pick_images
from mini_fsod.data.pictures import PictureError
from mini_fsod.draw import (
    BASE_COLOUR,
    WELL,
    Rgb,
    contact_sheet,
    name_height,
    with_name,
)
from mini_fsod.errors import UserError
from mini_fsod.mining.contact_sheet import RIGHT_COLOUR, WRONG_COLOUR
from mini_fsod.report.detected import Detected, draw_found, draw_truth, read_detected
from mini_fsod.report.pictures import RunPictures
from mini_fsod.report.run_files import read_run
from mini_fsod.sheet_files import write_sheet

SHEET = "detections.png"
IMAGES = 18
COLUMNS = 3
CELL = (320, 260)  # pixels that a picture fits; there are two side by side
WIDE = (2 * CELL[0] + 4, CELL[1])
LEGEND: list[tuple[str, Rgb]] = [
    ("left: ground truth, right: detections; blue: correct", RIGHT_COLOUR),
    ("dashed orange: missed, or wrong", WRONG_COLOUR),
    ("pale: base classes", BASE_COLOUR),
]


def sheet_of_run(run: Path) -> Path | None:
    """Write the sheet of a run into its folder; None where there are no detections to show."""
    files = read_run(run)
    detected = read_detected(files, RunPictures(files))
    if detected is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # image decoders warn of broken EXIF and the like
        cells = [_pair(detected, image) for image in _images(detected)]
    cell = (WIDE[0], WIDE[1] + name_height(WIDE))
    title = f"{run.resolve().name}: detections above the best threshold of each class"
    sheet = contact_sheet(cells, COLUMNS, cell, title, LEGEND)
    return write_sheet(run / SHEET, sheet, f"detections of {run.resolve().name}")


def _images(detected: Detected) -> list[int]:
    """Images with new objects, as far as there are any."""
    data, labels = detected.data, detected.labels
    is_new = data.boxes.label >= (len(labels.base) if labels.novel else 0)
    with_new = np.unique(data.boxes.image[is_new])
    some = with_new if len(with_new) else np.arange(len(data))
    return [int(some[i]) for i in pick_images(data.select(some), labels, IMAGES)]


def _pair(detected: Detected, image: int) -> Image.Image:
    pair = Image.new("RGB", WIDE, WELL)
    for n, drawing in enumerate((draw_truth, draw_found)):
        try:
            picture = drawing(detected, image, CELL)
        except (PictureError, UserError):
            continue
        left = n * (CELL[0] + 4) + (CELL[0] - picture.width) // 2
        pair.paste(picture, (left, (CELL[1] - picture.height) // 2))
    return with_name(pair, detected.data.path(image).name, WIDE)
