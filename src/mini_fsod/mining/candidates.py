"""From the pairs a scan has found to candidates: the population that thresholds are made of.

`Raw` is kept on disk, so that other settings of mining take seconds.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_fsod.data.dataset import Bools, Boxes, Floats, Ints
from mini_fsod.errors import UserError
from mini_fsod.eval.detections import Detections
from mini_fsod.files import open_regular, write_bytes
from mini_fsod.mining.calibration import calibrated, centred, cosine
from mini_fsod.mining.crop_similarity import FEATURES, Seen
from mini_fsod.mining.overlap import NESTED, greedy_nms, iou, nesting, pairs_within

Singles = npt.NDArray[np.float32]

FORMAT = 4  # of raw.npz
NMS_IOU = 0.5
MOST_AN_IMAGE = 100
ON_BASE_IOU = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Dots:
    """What cosines need of the features f of m proposals, of C prototypes p, and of the mean."""

    prototype: Singles  # (m, C) f . p
    mean: Singles  # (m,) f . mean
    square: Singles  # (m,) |f|^2
    prototype_mean: Floats  # (C,) p . mean
    prototype_square: Floats  # (C,) |p|^2
    mean_square: float  # |mean|^2

    @classmethod
    def of(cls, features: Any, prototypes: Any, mean: Any) -> Dots:
        """From `calibration.products` of the proposals (m, C + 2), of the prototypes (C, C + 2) and
        of the mean feature of base boxes (1, C + 2).
        """
        rows = np.asarray(features, dtype=np.float32)
        own = np.asarray(prototypes, dtype=np.float64)
        centre = np.asarray(mean, dtype=np.float64)
        return cls(rows[:, :-2], rows[:, -2], rows[:, -1], own[:, -2], own[:, -1], centre[0, -1])

    def cosine(self, proposal: Ints, label: Ints, tau: float, centre: bool) -> Floats:
        """Eq. 3 for n pairs of a proposal and a class, clamped at 0."""
        dot = self.prototype[proposal, label].astype(np.float64)
        square = self.square[proposal].astype(np.float64)
        prototype_square = self.prototype_square[label]
        if centre:
            dot, square, prototype_square = centred(
                dot,
                square,
                prototype_square,
                self.mean[proposal].astype(np.float64),
                self.prototype_mean[label],
                self.mean_square,
            )
        return np.maximum(cosine(dot, square, prototype_square, tau), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """n pairs of a proposal and a novel class that the detector scores above the cut, in any order.

    Scores and boxes are single precision, as detectors give them.
    """

    image: npt.NDArray[np.int32]  # (n,) index of the image in the data set
    label: npt.NDArray[np.int32]  # (n,) place among the novel classes
    score: Singles  # (n,) the detector's
    xywh: Singles  # (n, 4) the final box of that class, in the picture's own pixels
    proposal: Ints  # (n,) row of `dots`; pairs of one proposal share it
    cut: float
    dots: Dots | None = None  # None without a discriminator, and where pairs are `seen`
    seen: Seen | None = None  # a row for each pair: they are candidates, cut out one by one
    source: str = ""  # what the scan was made with: where it differs, scan again

    def __len__(self) -> int:
        return len(self.image)

    @classmethod
    def of(
        cls,
        image: Any,
        label: Any,
        score: Any,
        xywh: Any,
        proposal: Any,
        cut: float,
        dots: Dots | None = None,
    ) -> Raw:
        """From columns of any numeric type."""
        return cls(
            np.asarray(image, dtype=np.int32),
            np.asarray(label, dtype=np.int32),
            np.asarray(score, dtype=np.float32),
            np.asarray(xywh, dtype=np.float32).reshape(-1, 4),
            np.asarray(proposal, dtype=np.int64),
            cut,
            dots,
        )

    def save(self, path: Path) -> None:
        """Write `raw.npz`, whole or not at all."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        if self.dots is not None:
            columns |= {f"dots_{name}": getattr(self.dots, name) for name in Dots.__slots__}
        if self.seen is not None:
            columns |= {f"seen_{name}": getattr(self.seen, name) for name in Seen.__slots__}
            # as a network has given them: nothing is lost
            columns |= {
                f"seen_{name}": columns[f"seen_{name}"].astype(np.float32) for name in FEATURES
            }
        content = io.BytesIO()
        np.savez(content, format=FORMAT, **columns)
        write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Raw | None:
        """Read `raw.npz`. A damaged file is a UserError, not a pool of nonsense; None where another
        version of this program wrote it.
        """
        try:
            with open_regular(path) as file, np.load(file, allow_pickle=False) as stored:
                columns = {name: stored[name] for name in stored.files}
            if columns.pop("format") != FORMAT:
                return None
            own = {name: columns.pop(f"dots_{name}", None) for name in Dots.__slots__}
            dots = None
            if own["square"] is not None:
                own["mean_square"] = float(own["mean_square"])
                dots = Dots(**own)
            looks = {name: columns.pop(f"seen_{name}", None) for name in Seen.__slots__}
            seen = None
            if looks["candidates"] is not None:
                # the same sums as before the file: a pool does not depend on who has scanned
                wide = {name: looks[name].astype(np.float64) for name in FEATURES}
                seen = Seen(**looks | wide)
            columns["cut"], columns["source"] = float(columns["cut"]), str(columns["source"])
            raw = cls(**columns, dots=dots, seen=seen)
            _check(raw)
        except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile, EOFError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(
                f"{path}: not what a scan has left ({why}).",
                "Remove the file: the scan is made again.",
            ) from None
        return raw


_COLUMNS = tuple(name for name in Raw.__slots__ if name not in ("dots", "seen"))


def _check(raw: Raw) -> None:
    """ValueError where columns do not belong together."""
    n = len(raw.image)
    shapes: list[tuple[npt.NDArray[Any], tuple[int, ...]]] = [
        (raw.image, (n,)),
        (raw.label, (n,)),
        (raw.score, (n,)),
        (raw.xywh, (n, 4)),
        (raw.proposal, (n,)),
    ]
    dots = raw.dots
    if dots is not None:
        m, c = dots.prototype.shape
        shapes += [(dots.mean, (m,)), (dots.square, (m,))]
        shapes += [(dots.prototype_mean, (c,)), (dots.prototype_square, (c,))]
        if n and not (raw.proposal.max() < m and raw.label.max() < c):
            raise ValueError("pairs of unknown proposals or classes")
    seen = raw.seen
    if seen is not None:
        d = seen.candidates.shape[-1]
        shapes += [(seen.candidates, (n, d)), (seen.base, (len(seen.base_label), d))]
        shapes += [(seen.shots, (len(seen.shots_label), d))]
        shapes += [(seen.stretch, (len(seen.stretch), 3))]
        known = min(seen.shots_label.max(initial=-1), len(seen.stretch) - 1)
        if n and raw.label.max() > known:
            raise ValueError("pairs of unknown classes")
    for values, shape in shapes:
        if values.shape != shape:
            raise ValueError(f"columns of different lengths: {values.shape} and {shape}")
        if not np.isfinite(values).all():
            raise ValueError("numbers that are not finite")
    if n and min(raw.image.min(), raw.label.min(), raw.proposal.min()) < 0:
        raise ValueError("negative indices")


def from_detections(
    found: Detections, classes: tuple[str, ...], novel: tuple[str, ...], cut: float
) -> Raw:
    """Another tool's detections as pairs: those of novel classes above the cut.

    `classes` are the data set's, to which labels point. Each detection is its own proposal: a
    discriminator may look at its box, and its row of `dots` is its place here.
    """
    if len(found) and not 0 <= found.score.min() <= found.score.max() <= 1:
        low, high = float(found.score.min()), float(found.score.max())
        raise UserError(
            f"The detections have scores of {low:g} to {high:g}, not from 0 to 1.",
            "Scale the scores: the cut, and their product with cosines, mean such.",
        )
    place = np.array([novel.index(c) if c in novel else -1 for c in classes], dtype=np.int32)
    label = place[found.label] if len(found) else found.label
    own = np.flatnonzero((label >= 0) & (found.score.astype(np.float32) > cut))
    return Raw.of(
        found.image[own], label[own], found.score[own], found.xywh[own], np.arange(len(own)), cut
    )


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """n candidates, by image and, within an image, best first."""

    image: Ints  # (n,) index of the image in the data set
    label: Ints  # (n,) place among the novel classes
    xywh: Floats  # (n, 4) in the picture's own pixels
    score: Floats  # (n,) calibrated; the detector's own without a discriminator
    score_detector: Floats  # (n,)
    cosine: Floats | None  # (n,) Eq. 3, clamped at 0

    def __len__(self) -> int:
        return len(self.image)

    def take(self, index: npt.NDArray[Any]) -> Candidates:
        """The candidates at these indices, or where this mask is true."""
        cosine = None if self.cosine is None else self.cosine[index]
        others = {n: getattr(self, n)[index] for n in self.__slots__ if n != "cosine"}
        return Candidates(**others, cosine=cosine)


def candidates(
    raw: Raw,
    cut: float,
    tau: float = 1.0,
    centre: bool = False,
    on_base: Boxes | None = None,
    nms_iou: float = NMS_IOU,
    most: int = MOST_AN_IMAGE,
    whiten: bool = False,
    refine: int = 0,
) -> Candidates:
    """The population of the statistics (protocol.md, section 3).

    Pairs above the cut by the detector's score, scored by Eq. 4; NMS by class; the best `most` of
    an image; without those on a box of `on_base` (IoU 0.5), base ground truth of the same images.
    These go last, so that what they suppressed goes with them: the second best box around a horse
    is no cow either. Where pairs were seen one by one, `whiten` and `refine` (so many of the best
    become prototypes) say how they are compared. Where scores are equal the detector's decides,
    then class and box, never the order of the pairs. Zero pairs give zero candidates.
    """
    if cut < raw.cut:
        raise UserError(
            f"The scan has kept scores above {raw.cut:g}, mine.cut is {cut:g}.", "Scan again."
        )
    rows = np.flatnonzero((raw.score > cut) & (raw.xywh[:, 2:] > 0).all(axis=1))
    image, label = raw.image[rows].astype(np.int64), raw.label[rows].astype(np.int64)
    detector = raw.score[rows].astype(np.float64)
    seen = raw.seen.whitened() if raw.seen is not None and whiten else raw.seen
    similar = None
    if raw.dots is not None:
        similar = raw.dots.cosine(raw.proposal[rows], label, tau, centre)
    elif seen is not None:
        similar = seen.likeness(rows, label, tau)
    found = Candidates(
        image,
        label,
        raw.xywh[rows].astype(np.float64),
        detector if similar is None else calibrated(detector, similar),
        detector,
        similar,
    )
    group = image * (label.max(initial=0) + 1) + label
    order = _best_first(found, group)
    kept = order[greedy_nms(found.xywh[order], group[order], nms_iou, most)]
    found, rows = found.take(kept), rows[kept]
    order = _best_first(found, found.image)
    found, rows = found.take(order), rows[order]
    place = np.arange(len(found)) - np.searchsorted(found.image, found.image)
    found, rows = found.take(place < most), rows[place < most]
    if on_base is not None:
        off = ~_lies_on(found, on_base)
        found, rows = found.take(off), rows[off]
    if seen is not None and refine:
        similar = seen.refined(rows, found.label, found.score, refine, tau)
        found = replace(found, score=calibrated(found.score_detector, similar), cosine=similar)
        found = found.take(_best_first(found, found.image))
    return found


def apart(found: Candidates) -> Bools:
    """(n,) which candidates lie in no better one of their class, nor around one: a wheel is no
    motorbike, nor is a flock a bird.
    """
    group = found.image * (found.label.max(initial=0) + 1) + found.label
    order = _best_first(found, group)
    kept = greedy_nms(found.xywh[order], group[order], NESTED, len(found), nesting)
    mask = np.zeros(len(found), dtype=np.bool_)
    mask[order[kept]] = True
    return mask


def _best_first(found: Candidates, group: Ints) -> Ints:
    """Indices that sort by group, then score, then whatever tells two candidates apart."""
    order = np.lexsort((-found.score, group))
    same = (np.diff(group[order]) == 0) & (np.diff(found.score[order]) == 0)
    tied = np.zeros(len(order), dtype=np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    # nearly all scores differ, and six more keys for a million pairs take their time
    few = order[tied]
    x, y, width, height = found.xywh[few].T
    keys = (height, width, y, x, found.label[few], -found.score_detector[few])
    order[tied] = few[np.lexsort((*keys, -found.score[few], group[few]))]
    return order


def _lies_on(found: Candidates, boxes: Boxes) -> Bools:
    """(n,) whether each candidate overlaps one of the boxes of its image."""
    boxes = boxes.take(boxes.sound)
    own, other = pairs_within(found.image, boxes.image)
    hit = iou(found.xywh[own], boxes.xywh[other]) >= ON_BASE_IOU
    on = np.zeros(len(found), dtype=np.bool_)
    on[own[hit]] = True
    return on
