"""Letters for pictures: Pillow's own font where it has them, else one of the machine's.

Pillow's font knows ASCII and little more: "vélo", "Schlüssel" and "自行车" would be boxes.
"""

from __future__ import annotations

from functools import lru_cache

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Common fonts of Linux, Windows and macOS, which Pillow finds by name wherever the system keeps
# them: Latin, Greek and Cyrillic first, then Chinese, Japanese and Korean.
NAMES = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "arial.ttf",
    "Arial Unicode.ttf",
    "NotoSansCJK-Regular.ttc",
    "wqy-zenhei.ttc",
    "wqy-microhei.ttc",
    "DroidSansFallbackFull.ttf",
    "msyh.ttc",
    "simhei.ttf",
    "PingFang.ttc",
    "Hiragino Sans GB.ttc",
    "malgun.ttf",
    "NanumGothic.ttf",
)
NO_LETTER = "\uffff"  # no font draws it: what is drawn in its place stands for all that is missing


def font_for(size: int, *texts: str) -> Font:
    """The first font with all letters of these texts; where there is none, that with the most."""
    rare = frozenset(c for text in texts for c in text if not c.isascii() and not c.isspace())
    name = _with_most(rare) if rare else None
    return ImageFont.load_default(size) if name is None else ImageFont.truetype(name, size)


@lru_cache(maxsize=256)
def _with_most(letters: frozenset[str]) -> str | None:
    """Its name; None: Pillow's own."""
    best, fewest = None, len(_missing(ImageFont.load_default(16), letters))
    for name in NAMES:
        if not fewest:
            break
        font = _opened(name)
        if font is not None and (count := len(_missing(font, letters))) < fewest:
            best, fewest = name, count
    return best


@lru_cache
def _opened(name: str) -> Font | None:
    try:
        return ImageFont.truetype(name, 16)
    except OSError:
        return None


def _missing(font: Font, letters: frozenset[str]) -> list[str]:
    drawn = font.getmask(NO_LETTER)
    nothing = (drawn.size, bytes(drawn))
    return [c for c in letters if ((mask := font.getmask(c)).size, bytes(mask)) == nothing]
