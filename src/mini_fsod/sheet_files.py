"""Where sheets of pictures are written: one sheet never overwrites another one, or a photo.

A sheet is a PNG that says what it is of. It replaces an earlier sheet of the same.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from PIL import Image, PngImagePlugin

from mini_fsod.data.pictures import PictureError, open_picture
from mini_fsod.errors import UserError
from mini_fsod.files import mode, write_image

KEY = "mini sheet"  # of the PNG's text


def write_sheet(path: Path, sheet: Image.Image, about: str, chosen: bool = False) -> Path:
    """Write a sheet, and return its path: another name, such as NAME-2.png, where a file with that
    name is not an earlier sheet of the same.

    `chosen`: a person has chosen the name, so it is kept. A file there that is no sheet is not
    overwritten: a UserError.
    """
    about = about.encode("utf-8", "replace").decode()  # names of files may hold anything
    if chosen:
        if mode(path) and _sheet_of(path) is None:
            raise UserError(
                f"{path} exists, and is not a sheet that mini wrote.", "Choose another file."
            )
    else:
        numbered = (path.with_stem(f"{path.stem}-{n}") if n > 1 else path for n in count(1))
        path = next(free for free in numbered if not mode(free) or _sheet_of(free) == about)
    text = PngImagePlugin.PngInfo()
    text.add_itxt(KEY, about)
    write_image(path, sheet, pnginfo=text)
    return path


def _sheet_of(path: Path) -> str | None:
    """What a sheet is of; None where the file is none."""
    try:
        with open_picture(path) as picture:
            about = picture.info.get(KEY)
            return None if about is None else str(about)
    except PictureError:
        return None
