"""Fonts for captions: Pillow's own, or a system font for characters that it lacks.

Pillow's font has little more than ASCII: "vélo", "Schlüssel" and "自行车" would be drawn as boxes.
"""

from __future__ import annotations

from functools import lru_cache

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Common fonts of Linux, Windows and macOS, which Pillow finds by name: first Latin, Greek and
# Cyrillic, then Chinese, Japanese and Korean.
NAMES = (
    *("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf"),
    *("arial.ttf", "Arial Unicode.ttf"),
    *("NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "wqy-microhei.ttc", "DroidSansFallbackFull.ttf"),
    *("msyh.ttc", "simhei.ttf", "PingFang.ttc", "Hiragino Sans GB.ttc"),
    *("malgun.ttf", "NanumGothic.ttf"),
)
MISSING = "\uffff"  # in no font: drawn as the font draws every missing character


def font_for(size: int, *texts: str) -> Font:
    """The first font with all characters of these texts, or the one that lacks the fewest."""
    special = frozenset(c for text in texts for c in text if not c.isascii() and not c.isspace())
    name = best_font(special) if special else None
    return ImageFont.load_default(size) if name is None else ImageFont.truetype(name, size)


@lru_cache(maxsize=256)
def best_font(characters: frozenset[str]) -> str | None:
    """Name of the font that lacks the fewest of the characters; None: Pillow's own."""
    best, fewest = None, len(missing_characters(ImageFont.load_default(16), characters))
    for name in NAMES:
        font = open_font(name) if fewest else None
        if font is not None and (count := len(missing_characters(font, characters))) < fewest:
            best, fewest = name, count
    return best


@lru_cache
def open_font(name: str) -> Font | None:
    try:
        return ImageFont.truetype(name, 16)
    except OSError:
        return None


def missing_characters(font: Font, characters: frozenset[str]) -> list[str]:
    drawn = font.getmask(MISSING)
    missing = (drawn.size, bytes(drawn))
    return [c for c in characters if ((mask := font.getmask(c)).size, bytes(mask)) == missing]
