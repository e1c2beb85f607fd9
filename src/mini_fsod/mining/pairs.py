"""What a scan finds: pairs of a proposal and a novel class above the score threshold.

They are stored in the folder of the stage `scan`, so that other settings of the stage `mine` take
seconds.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_fsod.data.dataset import Ints
from mini_fsod.errors import UserError
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.files import open_regular, write_bytes
from mini_fsod.limits import PAIRS_BYTES
from mini_fsod.mining.calibration import DotProducts, Singles
from mini_fsod.mining.crop_similarity import FEATURES, CropFeatures

FORMAT = 5  # of the npz file
INDICES = ("image", "label", "proposal", "base_label", "shots_label")  # the others are floats


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """n pairs of a proposal and a novel class whose detector score is above `mine.min_score`.

    In any order; n may be 0. Scores and boxes are single precision, as detectors give them.
    """

    image: npt.NDArray[np.int32]  # (n,) index of the image in the data set
    label: npt.NDArray[np.int32]  # (n,) index among the novel classes
    score: Singles  # (n,) the detector's
    xywh: Singles  # (n, 4) the detector's box for that class, in the image's own pixels
    proposal: Ints  # (n,) row of `products`; pairs of one proposal share it
    products: DotProducts | None = None  # with a discriminator that pools features of the image
    crops: CropFeatures | None = None  # with one that looks at crops: after NMS, a row per pair
    files: tuple[str, ...] = ()  # names of the images that were scanned

    def __len__(self) -> int:
        return len(self.image)

    @classmethod
    def of(cls, image: Any, label: Any, score: Any, xywh: Any, proposal: Any) -> Pairs:
        """Pairs from columns of any numeric type."""
        return cls(
            np.asarray(image, dtype=np.int32),
            np.asarray(label, dtype=np.int32),
            np.asarray(score, dtype=np.float32),
            np.asarray(xywh, dtype=np.float32).reshape(-1, 4),
            np.asarray(proposal, dtype=np.int64),
        )

    @classmethod
    def joined(cls, parts: Sequence[Pairs]) -> Pairs:
        """The pairs of several parts of the images, without features of crops."""
        counts = [int(part.proposal.max(initial=-1)) + 1 for part in parts]
        products = None
        if (first := parts[0].products) is not None:
            each = [part.products for part in parts if part.products is not None]
            counts = [len(part.square) for part in each]
            products = DotProducts(
                np.concatenate([part.prototype for part in each]),
                np.concatenate([part.square for part in each]),
                first.prototype_square,
            )
        starts = np.cumsum([0, *counts[:-1]])
        moved = [part.proposal + start for part, start in zip(parts, starts, strict=True)]
        pairs = cls(
            np.concatenate([part.image for part in parts]),
            np.concatenate([part.label for part in parts]),
            np.concatenate([part.score for part in parts]),
            np.concatenate([part.xywh for part in parts]),
            np.concatenate(moved),
        )
        return replace(pairs, products=products)

    def save(self, path: Path) -> None:
        """Write an npz file, whole or not at all."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        if self.products is not None:
            names = DotProducts.__slots__
            columns |= {f"products_{name}": getattr(self.products, name) for name in names}
        if self.crops is not None:
            for name in CropFeatures.__slots__:
                values = getattr(self.crops, name)
                # float32 is what the network gave: nothing is lost
                values = values.astype(np.float32) if name in FEATURES else values
                columns[f"crops_{name}"] = values
        content = io.BytesIO()
        np.savez(content, format=FORMAT, files=np.array(self.files, dtype=np.str_), **columns)
        write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Pairs:
        """Read what `save` wrote. A damaged file, or one of another version, is a UserError."""
        try:
            columns = _read_columns(path)
            if columns.pop("format") != FORMAT:
                raise ValueError("written by another version of mini")
            found = {name: columns.pop(f"products_{name}", None) for name in DotProducts.__slots__}
            products = None if found["square"] is None else DotProducts(**found)
            found = {name: columns.pop(f"crops_{name}", None) for name in CropFeatures.__slots__}
            crops = None
            if found["pairs"] is not None:
                # summed in float64, as before the file
                wide = {name: found[name].astype(np.float64) for name in FEATURES}
                crops = CropFeatures(**found | wide)
            files = tuple(columns.pop("files").tolist())
            pairs = cls(**columns, products=products, crops=crops, files=files)
            _check(pairs)
        except Exception as error:  # zipfile and NumPy raise anything on damaged files
            known = isinstance(error, OSError | ValueError)
            why = getattr(error, "strerror", None) or (error if known else type(error).__name__)
            raise UserError(
                f"{path}: not the result of a scan ({why}).",
                f"Delete the folder {path.parent} and repeat the command: it scans again.",
            ) from None
        return pairs


_COLUMNS = tuple(name for name in Pairs.__slots__ if name not in ("products", "crops", "files"))


def _read_columns(path: Path) -> dict[str, Any]:
    """The arrays of an npz file as `save` writes it: their parts are not compressed, because a
    few kilobytes could stand for any amount of memory.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > PAIRS_BYTES:
            raise ValueError(f"larger than {PAIRS_BYTES >> 20:,} MB")
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
        stored_all = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
        if not stored_all or sum(part.file_size for part in parts) > size:
            raise ValueError("its parts are compressed, or overlap")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in stored.files}
    if any(values.size and not values.itemsize for values in columns.values()):
        raise ValueError("values of no bytes")  # any number of them fits into the file
    return columns


def _check(pairs: Pairs) -> None:
    """ValueError where columns do not belong together, or hold no numbers of their kind."""
    for part in (pairs, pairs.products, pairs.crops):
        for name in () if part is None else part.__slots__:
            values = getattr(part, name)
            kind = "i" if name in INDICES else "f"
            if isinstance(values, np.ndarray) and values.dtype.kind != kind:
                raise ValueError(f"{name} has values of type {values.dtype}")
    n = len(pairs.image)
    columns = ("image", "label", "score", "proposal")
    shapes: list[tuple[npt.NDArray[Any], tuple[int, ...]]]
    shapes = [(getattr(pairs, name), (n,)) for name in columns]
    shapes.append((pairs.xywh, (n, 4)))
    classes: int | None = None
    if pairs.products is not None:
        proposals, classes = pairs.products.prototype.shape
        shapes += [(pairs.products.square, (proposals,))]
        shapes += [(pairs.products.prototype_square, (classes,))]
        if n and pairs.proposal.max() >= proposals:
            raise ValueError("pairs of unknown proposals")
    if pairs.crops is not None:
        crops, d = pairs.crops, pairs.crops.pairs.shape[-1]
        shapes += [(crops.pairs, (n, d)), (crops.base, (len(crops.base_label), d))]
        shapes += [(crops.shots, (len(crops.shots_label), d))]
        shapes += [(crops.correction, (len(crops.correction), 3))]
        classes = min(int(crops.shots_label.max(initial=-1)) + 1, len(crops.correction))
    for values, shape in shapes:
        if values.shape != shape:
            raise ValueError(f"columns of different lengths: {values.shape} and {shape}")
        if not np.isfinite(values).all():
            raise ValueError("numbers that are not finite")
    if n and min(pairs.image.min(), pairs.label.min(), pairs.proposal.min()) < 0:
        raise ValueError("negative indices")
    if n and classes is not None and pairs.label.max() >= classes:
        raise ValueError("pairs of unknown classes")


def pairs_from_detections(
    found: DatasetDetections, classes: tuple[str, ...], novel: tuple[str, ...], min_score: float
) -> Pairs:
    """Detections as pairs: those of the classes `novel` above the score threshold.

    `classes` are the data set's, to which labels of detections point. Each detection is its own
    proposal. Zero detections give zero pairs; scores beyond 0 to 1 are a UserError.
    """
    if len(found) and not 0 <= found.score.min() <= found.score.max() <= 1:
        low, high = float(found.score.min()), float(found.score.max())
        raise UserError(
            f"The detections have scores of {low:g} to {high:g}, not from 0 to 1.",
            "Rescale the scores to [0, 1]: mine.min_score and the calibration need that.",
        )
    index = np.array([novel.index(c) if c in novel else -1 for c in classes], dtype=np.int32)
    label = index[found.label] if len(found) else found.label
    kept = np.flatnonzero((label >= 0) & (found.score.astype(np.float32) > min_score))
    return Pairs.of(
        found.image[kept], label[kept], found.score[kept], found.xywh[kept], np.arange(len(kept))
    )
