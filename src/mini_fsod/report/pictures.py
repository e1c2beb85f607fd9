"""The pictures of a report: what is left of a run's data, and small pictures to inline."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from io import BytesIO
from typing import TypeVar

import torch
from PIL import Image

from mini_fsod import console
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.pictures import PictureError
from mini_fsod.data.subsets import arranged
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap
from mini_fsod.loader.decode import cores
from mini_fsod.report.html import Html, data_uri, tag
from mini_fsod.report.run_files import RunFiles
from mini_fsod.runs.data import RunData

MOST_BYTES = 10 << 20  # of all pictures of a report, as base64
QUALITY = 72  # of WebP
UNREADABLE = "The picture cannot be read."
LEFT_OUT = "Left out: the report would be too large."

T = TypeVar("T")
Draw = Callable[[], Image.Image]
Encoded = tuple[bytes, tuple[int, int]]  # a WebP file, and its width and height


class RunPictures:
    """The data sets of a run. Each is None where the data is not here any more; `problem` says why.

    Reading them writes nothing and needs no GPU.
    """

    def __init__(self, run: RunFiles) -> None:
        self.problem = ""
        self._data: RunData | None = None
        self._left = MOST_BYTES
        if run.config is None or run.config.data.root is None:
            self.problem = "The configuration names no data."
            return
        self._data = RunData(run.config, torch.device("cpu"))

    @cached_property
    def labels(self) -> LabelMap | None:
        return self._read(lambda data: data.labels)

    @cached_property
    def shots(self) -> Dataset | None:
        return self._read(lambda data: data.novel_shots)

    @cached_property
    def mined(self) -> Dataset | None:
        return self._read(lambda data: data.mined)

    @cached_property
    def test(self) -> Dataset | None:
        """The test images, with the classes in the detector's order."""
        labels = self.labels
        return None if labels is None else self.test_of(labels)

    def test_of(self, labels: LabelMap) -> Dataset | None:
        """The test images with other classes, such as those of a base detector."""
        return self._read(lambda data: None if data.test is None else arranged(data.test, labels))

    def _read(self, read: Callable[[RunData], T]) -> T | None:
        if self._data is None or self.problem:
            return None
        quiet, console.err.quiet = console.err.quiet, True  # the run has said its notes already
        try:
            return read(self._data)
        except UserError as error:
            self.problem = error.what
            return None
        finally:
            console.err.quiet = quiet

    def draw(self, jobs: Sequence[tuple[Draw, str]]) -> list[Html]:
        """An <img> for each job, a picture and its alternative text; or a note in its place."""

        def encode(job: tuple[Draw, str]) -> Encoded | None:
            try:
                content, picture = BytesIO(), job[0]()
                picture.save(content, "WEBP", quality=QUALITY, method=4)
                return content.getvalue(), picture.size
            except (PictureError, UserError, OSError):
                return None

        # decoders release the GIL; they warn of broken EXIF, and the filter is process-wide
        with warnings.catch_warnings(), ThreadPoolExecutor(cores()) as pool:
            warnings.simplefilter("ignore")
            contents = list(pool.map(encode, jobs))
        return [self._image(content, alt) for content, (_, alt) in zip(contents, jobs, strict=True)]

    def _image(self, encoded: Encoded | None, alt: str) -> Html:
        if encoded is None:
            return tag("span", UNREADABLE, class_="no-picture")
        content, (width, height) = encoded
        uri = data_uri(content, "image/webp")
        if len(uri) > self._left:
            return tag("span", LEFT_OUT, class_="no-picture")
        self._left -= len(uri)
        return tag("img", src=uri, alt=alt, width=width, height=height, decoding="async")
