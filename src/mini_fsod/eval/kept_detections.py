"""The detections on a test set, kept beside their score: `score-HASH.json`, `detections-HASH.npz`.

Reports draw them. They are in single precision, as the detector gives them, so nothing is lost.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from mini_fsod.data.dataset import Dataset
from mini_fsod.errors import UserError
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.files import mode, open_regular, write_bytes
from mini_fsod.limits import KEPT_DETECTIONS_BYTES

FORMAT = 1  # of the npz file
COLUMNS = {"image": np.int32, "label": np.int32, "xywh": np.float32, "score": np.float32}


def detections_file(score: Path) -> Path:
    """The file of the detections that a score file is about."""
    return score.with_name(score.stem.replace("score-", "detections-", 1) + ".npz")


def write_detections(path: Path, found: DatasetDetections, data: Dataset) -> None:
    """Whole or not at all; `data` is the test set, to which `found` refers."""
    columns = {name: getattr(found, name).astype(kind) for name, kind in COLUMNS.items()}
    content = io.BytesIO()
    sizes = np.array([len(data), len(data.classes)])
    np.savez_compressed(content, format=np.int64(FORMAT), sizes=sizes, **columns)
    write_bytes(path, content.getvalue())


def read_kept_detections(path: Path, data: Dataset) -> DatasetDetections | None:
    """What `write_detections` wrote for this test set; None where there is no file.

    A damaged file, or one of other images, is a UserError.
    """
    if not mode(path):
        return None
    try:
        with open_regular(path) as file:
            with zipfile.ZipFile(file) as packed:
                if sum(part.file_size for part in packed.infolist()) > KEPT_DETECTIONS_BYTES:
                    raise ValueError(f"more than {KEPT_DETECTIONS_BYTES:,} bytes")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                columns = {name: stored[name] for name in (*COLUMNS, "format", "sizes")}
        _check(columns, data)
    except Exception as error:  # zipfile and NumPy raise anything on damaged files
        known = isinstance(error, OSError | ValueError)
        why = getattr(error, "strerror", None) or (error if known else type(error).__name__)
        raise UserError(
            f"{path}: not the detections on this test set ({why}).",
            "Delete it and the score file beside it; `mini run` then scores the detector again.",
        ) from None
    return DatasetDetections.of(*(columns[name] for name in COLUMNS))


def _check(columns: dict[str, np.ndarray], data: Dataset) -> None:
    """ValueError where columns do not belong together, or to this data set."""
    if int(columns["format"]) != FORMAT:
        raise ValueError("written by another version of mini")
    if columns["sizes"].tolist() != [len(data), len(data.classes)]:
        raise ValueError("it has other images or classes")
    n = len(columns["image"])
    for name, kind in COLUMNS.items():
        values = columns[name]
        if values.dtype != kind or values.shape != ((n, 4) if name == "xywh" else (n,)):
            raise ValueError(f"the column {name} has the wrong type or length")
        if not np.isfinite(values).all():
            raise ValueError("numbers that are not finite")
    for name, size in (("image", len(data)), ("label", len(data.classes))):
        if n and not 0 <= columns[name].min() <= columns[name].max() < size:
            raise ValueError(f"the column {name} is out of range")
