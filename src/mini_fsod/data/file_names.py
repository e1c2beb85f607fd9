"""Names of files in data sets: pictures, annotations, and what would lead outside."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".avif")

ANNOTATIONS = (".json", ".xml", ".txt", ".yaml", ".yml", ".names", ".data")

# Unsupported formats: folders are not searched for them. Pillow reads some of them all the same, so
# they may be named by annotations.
UNREAD = (
    *(".heic", ".heif", ".hif", ".gif", ".jp2", ".j2k", ".jxl", ".jfif", ".svg"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2", ".pef", ".srw"),
)

PLAIN = re.compile(r"[^/\\:\0]+")  # the name of a file without folders


def is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def is_unread(name: str) -> bool:
    """Whether its suffix is that of an unsupported picture format."""
    return name.lower().endswith(UNREAD)


def stays_inside(name: str, up: int = 0) -> bool:
    """Whether a file name from an annotation stays in the data folder.

    `up` is the depth of the folder that it is relative to.
    """
    if PLAIN.fullmatch(name):  # most names, and millions of them in a list
        return name != ".." or up > 0
    if not name or "\0" in name or PureWindowsPath(name).drive or name.startswith(("/", "\\")):
        return False
    depth = up
    for part in PurePosixPath(name.replace("\\", "/")).parts:
        depth += -1 if part == ".." else part != "."
        if depth < 0:
            return False
    return True
