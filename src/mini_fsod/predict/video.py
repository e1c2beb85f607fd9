"""Frames of videos, where OpenCV is installed. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image

from mini_fsod.errors import UserError
from mini_fsod.files import is_file, open_regular
from mini_fsod.limits import PICTURE_PIXELS
from mini_fsod.loader.decode import Bytes

SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
# What is at the beginning of these kinds: (position, bytes). The content chooses OpenCV's reader,
# and some are asked for further files and addresses by it, as by lists of films in text.
HEADS = (
    *((4, kind) for kind in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),  # MP4
    *((0, kind) for kind in (b"RIFF", b"\x1aE\xdf\xa3", b"\0\0\1\xba", b"\0\0\1\xb3")),
)
CODEC = "mp4v"  # of drawn videos: OpenCV writes it without further libraries


def is_video(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def import_opencv() -> Any:
    try:
        import cv2
    except ImportError:
        raise UserError(
            "Videos need OpenCV, which is not installed.",
            "Run: pip install opencv-python-headless, or give pictures.",
        ) from None
    return cv2


class Video:
    """A video file that can be read frame by frame."""

    def __init__(self, path: Path) -> None:
        self._cv2 = import_opencv()
        if not is_file(path):
            raise UserError(f"{path}: this video does not exist.", "Check the path.")
        with open_regular(path) as file:
            head = file.read(8)
        if not any(head[at:].startswith(kind) for at, kind in HEADS):
            raise UserError(f"{path}: not a video in a supported format.", "Convert it to MP4.")
        self._capture = self._cv2.VideoCapture(str(path))
        width, height, rate, frames = (
            self._capture.get(getattr(self._cv2, f"CAP_PROP_{name}"))
            for name in ("FRAME_WIDTH", "FRAME_HEIGHT", "FPS", "FRAME_COUNT")
        )
        if not self._capture.isOpened() or width < 1 or height < 1:
            raise UserError(f"{path}: OpenCV cannot read this video.", "Convert it to MP4.")
        if width * height > PICTURE_PIXELS:
            raise UserError(f"{path}: its frames are too large.", "Make them smaller.")
        self.path = path
        self.size = int(width), int(height)
        self.rate = rate if 0 < rate <= 1000 else 25.0  # frames per second
        self.frames = max(0, int(frames))  # as the file says; 0 where it does not

    def __iter__(self) -> Iterator[Bytes]:
        """The frames (H, W, 3), RGB."""
        while True:
            found, frame = self._capture.read()
            if not found:
                self._capture.release()
                return
            yield np.ascontiguousarray(frame[..., ::-1])


class VideoWriter:
    """Writes frames to an MP4 file, which gets its name when it is complete."""

    def __init__(self, path: Path, size: tuple[int, int], rate: float) -> None:
        self._cv2 = import_opencv()
        self.path, self._part = path, path.with_name(f".{path.stem}.part.mp4")
        path.parent.mkdir(parents=True, exist_ok=True)
        codec = self._cv2.VideoWriter_fourcc(*CODEC)
        self._writer = self._cv2.VideoWriter(str(self._part), codec, rate, size)
        if not self._writer.isOpened():
            self._part.unlink(missing_ok=True)
            raise UserError(f"{path}: OpenCV cannot write this video.", "Choose another folder.")

    def add(self, frame: Image.Image) -> None:
        self._writer.write(np.ascontiguousarray(np.asarray(frame)[..., ::-1]))

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._writer.release()
        if kind is None:
            self._part.replace(self.path)
        self._part.unlink(missing_ok=True)
