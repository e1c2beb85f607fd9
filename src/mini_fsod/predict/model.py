"""What a loaded detector can do, whichever library computes it. Does not import torch."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, overload

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.errors import UserError
from mini_fsod.files import is_folder
from mini_fsod.labels import LabelMap
from mini_fsod.loader.decode import Bytes, cores
from mini_fsod.predict.pictures import Decoded, ImageLike, Unreadable, find_pictures, read_picture
from mini_fsod.predict.prediction import Prediction
from mini_fsod.predict.video import Video

CHUNK = 64  # pictures decoded at a time; 200 MiB at 800 x 1333, and as much again decoded ahead
SCORE = 0.5  # default score threshold

T = TypeVar("T")
Found = tuple[Floats, Ints, Floats]  # xywh (N, 4) in pixels of the original, labels, scores


class Model(ABC):
    """A detector that was loaded, on its device."""

    source: Path  # the checkpoint or ONNX file
    labels: LabelMap
    device: str
    min_size: int  # pictures are resized to this short side ...
    max_size: int  # ... unless the long side would exceed this
    score_threshold: float  # the detector drops detections with lower scores

    @abstractmethod
    def detect(self, pictures: Sequence[Decoded]) -> list[Found]:
        """The detections in each picture, best first, down to the detector's own threshold."""

    @property
    def names(self) -> tuple[str, ...]:
        """The class names; a detection's label is an index of them."""
        return self.labels.classes

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:10]) + ", ..." * (len(self.names) > 10)
        return f"{type(self).__name__}({self.source}, on {self.device}: {shown})"

    # a str is a sequence of str, but stands for one picture
    @overload
    def predict(  # type: ignore[overload-overlap]
        self, images: ImageLike, score: float = SCORE
    ) -> Prediction: ...

    @overload
    def predict(self, images: Sequence[ImageLike], score: float = SCORE) -> list[Prediction]: ...

    def predict(self, images: Any, score: float = SCORE) -> Prediction | list[Prediction]:
        """The detections of one picture, or of a list of pictures in their order.

        A picture is the path of a file, a PIL image, or an array (height, width, 3) of uint8 RGB.
        Detections below `score` are dropped; 0 gives all that the detector keeps. A picture that
        cannot be read is a `UserError`.
        """
        if not 0 <= score <= 1:
            raise UserError(f"score is {score}.", "Give a number from 0 to 1.")
        if not isinstance(images, list | tuple):
            return self._all([images], score)[0]
        return self._all(images, score)

    def predict_folder(self, folder: str | Path, score: float = SCORE) -> Iterator[Prediction]:
        """The detections of all pictures below a folder, one after another, by name.

        A picture that cannot be read is a warning.
        """
        pictures, failed = find_pictures([Path(folder)])
        for result in chain(failed, self.predict_files([picture.path for picture in pictures])):
            if isinstance(result, Unreadable):
                warnings.warn(f"{result.path}: {result.why}", stacklevel=2)
            else:
                yield result.above(score)

    def predict_files(self, paths: Sequence[Path]) -> Iterator[Prediction | Unreadable]:
        """All detections of each file, in order, or why it cannot be read."""

        def read(path: Path) -> Decoded | Unreadable:
            try:
                return self._read(path)
            except UserError as error:
                return Unreadable(path, error.what.removeprefix(f"{path}: "))

        return self._stream(paths, read)

    def predict_decoded(self, pictures: Sequence[Decoded]) -> list[Prediction]:
        """All detections of pictures that were read before."""
        found = self.detect(pictures) if pictures else []
        return [
            Prediction(
                path=picture.path,
                size=(picture.size[1], picture.size[0]),
                xywh=xywh,
                labels=labels,
                scores=scores,
                names=tuple(self.names[label] for label in labels.tolist()),
            )
            for picture, (xywh, labels, scores) in zip(pictures, found, strict=True)
        ]

    def predict_video(self, video: Video) -> Iterator[tuple[Bytes, Prediction]]:
        """Each frame (H, W, 3) with all detections in it."""
        for n, frame in enumerate(video):
            (found,) = self.predict_decoded([self._read(frame)])
            yield frame, replace(found, path=video.path, frame=n)

    def _read(self, image: ImageLike) -> Decoded:
        return read_picture(image, self.min_size, self.max_size)

    def _all(self, images: Sequence[ImageLike], score: float) -> list[Prediction]:
        for image in images:
            if isinstance(image, str | Path) and is_folder(Path(image)):
                raise UserError(f"{image} is a folder.", "Use predict_folder for it.")
        return [prediction.above(score) for prediction in self._stream(images, self._read)]

    def _stream(
        self, images: Iterable[ImageLike], read: Callable[[Any], Decoded | T]
    ) -> Iterator[Prediction | T]:
        """The detections of each picture that `read` gives, in order, and its other results.

        Threads decode the next pictures while the detector runs.
        """
        rest = iter(images)
        pool = ThreadPoolExecutor(cores())
        try:
            ahead = pool.map(read, islice(rest, CHUNK))
            while chunk := list(ahead):
                ahead = pool.map(read, islice(rest, CHUNK))
                decoded = [picture for picture in chunk if isinstance(picture, Decoded)]
                predictions = iter(self.predict_decoded(decoded))
                for picture in chunk:
                    yield next(predictions) if isinstance(picture, Decoded) else picture
        finally:
            pool.shutdown(cancel_futures=True)
