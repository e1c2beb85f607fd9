"""The review of a run: its mined boxes, and the candidates that were not mined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mini_fsod import console
from mini_fsod.config.load import resolve
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.layout import is_sample
from mini_fsod.data.overlap import iou_of_two
from mini_fsod.data.subsets import is_of, united
from mini_fsod.errors import UserError
from mini_fsod.files import CONFIG_FILE, is_file, lock, real
from mini_fsod.mining.candidates import not_nested
from mini_fsod.mining.extra import EXTRA, extra_images, figures_in
from mini_fsod.mining.pool_io import CANDIDATES, read_candidates, read_pool
from mini_fsod.review.correct import SAME_PLACE, accepted_and_rejected
from mini_fsod.review.crops import Gallery
from mini_fsod.review.decisions import JOURNAL, Journal, Place, settled
from mini_fsod.review.drawing import write_shots
from mini_fsod.review.items import PAGE, Item, Review
from mini_fsod.review.order import SENTENCE, benefit
from mini_fsod.runs.data import RunData
from mini_fsod.runs.pool import EXTRA_POOL, POOL, pictures_in, refresh_pools

CANDIDATES_OFFERED = 3000  # most of a class beside the mined boxes, the best
REFERENCES = 5  # shots of a class that are shown


class MinedReview(Review):
    """A review of mined boxes, class by class, in the order of `review.order`."""

    mode, order = "mined", SENTENCE

    def __init__(self, run: Path, journal: Journal, links: bool = False) -> None:
        config = resolve(str(run / CONFIG_FILE))
        self.data = RunData(config, torch.device("cpu"))
        self.labels = self.data.labels
        self._nested = config.mine.drop_nested
        mined, shots = self.data.mined, self.data.novel_shots
        parts = [(mined, False, run / "mine", run / POOL)]
        images = figures_in(run / "mine").get(EXTRA, {}).get("folder")
        if images is not None:
            of_extra = run / "mine" / EXTRA
            others = extra_images(self.data, Path(images), pictures_in(of_extra / POOL))
            parts.append((others, True, of_extra, run / EXTRA_POOL))
        paths: list[Path] = []
        sizes: list[tuple[int, int]] = []
        roots = [shots.root]
        first: list[int] = []  # number of each part's first picture
        for data, *_ in parts:
            first.append(len(paths))
            paths += [data.path(i) for i in range(len(data))]
            sizes += [(int(w), int(h)) for w, h in data.sizes.tolist()]
            roots.append(data.root)
        first_shot = len(paths)
        paths += [shots.path(i) for i in range(len(shots))]
        sizes += [(int(w), int(h)) for w, h in shots.sizes.tolist()]
        gallery = Gallery(paths, roots, links)
        super().__init__(real(run).name, self.labels.novel, gallery, sizes, journal)
        self.references = self._shots(shots, first_shot)
        self._base: dict[str, list[Place]] = {}  # annotated boxes of each picture
        for place, _ in _annotated(mined, self.labels.base):
            self._base.setdefault(place.picture, []).append(place)
        for (data, extra, folder, pool), start in zip(parts, first, strict=True):
            self._read(data, extra, folder, pool, start)
        self._arrange()

    def _shots(self, shots: Dataset, first: int) -> dict[str, list[int]]:
        """Items that show the shots of each novel class; nothing is decided about them."""
        found: dict[str, list[int]] = {name: [] for name in self.labels.novel}
        for place, image in _annotated(shots, self.labels.novel):
            if len(found[place.name]) < REFERENCES:
                found[place.name].append(self.show_only(Item(place, first + image)))
        return found

    def _read(self, data: Dataset, extra: bool, folder: Path, pool: Path, first: int) -> None:
        """Items of what was decided, of the pool, and of candidates that were not mined."""
        index = {file: first + i for i, file in enumerate(data.files)}
        state = settled(self.journal.decisions)
        begun = {d.place: d for d in reversed(self.journal.decisions) if d.do != "undo"}
        answered: dict[tuple[str, str], list[Place]] = {}
        for place, decision in state.items():
            if place.extra != extra or place.picture not in index or place.name not in self.classes:
                continue
            score, mined = begun[place].score, begun[place].mined
            self.add(Item(place, index[place.picture], mined, score, decision))
            if decision is not None:
                places = (place, decision.accepted) if decision.do == "accept" else (place,)
                for at in places:
                    answered.setdefault((at.picture, at.name), []).append(at)

        def offer(place: Place, score: float, mined: bool) -> bool:
            near = answered.get((place.picture, place.name), ())
            is_new = all(iou_of_two(place.box, at.box) < SAME_PLACE for at in near)
            if is_new:
                self.add(Item(place, index[place.picture], mined, score))
            return is_new

        kept = read_pool(pool, data, self.labels)
        for place, score in _places(data, self.labels.novel, extra, kept):
            offer(place, score, True)
        if not is_file(folder / CANDIDATES):  # of a pool that was given without them
            return
        found = read_candidates(folder / CANDIDATES, data, self.labels)
        if self._nested:
            found = found.take(not_nested(found))
        found = found.take(np.argsort(-found.score, kind="stable"))
        offered = Counter[str]()
        for place, score in _places(data, self.labels.novel, extra, found):
            if place not in self._numbers and offered[place.name] < CANDIDATES_OFFERED:
                offered[place.name] += offer(place, score, False)

    def _arrange(self) -> None:
        """The columns that the order is computed from; items that are drawn later are not in it."""
        shots = {n for numbers in self.references.values() for n in numbers}
        rows = [n for n, item in enumerate(self.items) if item.score is not None and n not in shots]
        items = [self.items[n] for n in rows]
        self._row = {n: row for row, n in enumerate(rows)}
        self._number = np.array(rows, dtype=np.int64)
        self._label = np.array([self.classes.index(i.place.name) for i in items], dtype=np.int64)
        self._score = np.array([i.score for i in items], dtype=np.float64)
        self._mined = np.array([i.mined for i in items], dtype=np.bool_)
        self._is_decided = np.zeros(len(items), dtype=np.bool_)
        self._is_right = np.zeros(len(items), dtype=np.bool_)
        self._by_hand: set[int] = set()  # items that were drawn or relabelled
        self._decided([*rows, *(n for n, i in enumerate(self.items) if i.decision is not None)])

    def _decided(self, items: Sequence[int]) -> None:
        for number in items:
            row, decision = self._row.get(number), self.items[number].decision
            if row is not None:
                self._is_decided[row] = decision is not None
                self._is_right[row] = _is_right(self.items[number])
            if row is None or (decision and decision.accepted.name != decision.place.name):
                self._by_hand.add(number)

    def best(self, name: str, skip: Sequence[int] = ()) -> tuple[list[int], float]:
        """The items of a class to decide next, best first, and what a page of them is worth."""
        rows = np.flatnonzero(self._label == self.classes.index(name))
        worth = benefit(
            self._score[rows], self._mined[rows], self._is_decided[rows], self._is_right[rows]
        )
        order = np.argsort(-worth, kind="stable")
        order = order[~self._is_decided[rows[order]] & ~np.isin(self._number[rows[order]], skip)]
        order = order[:PAGE]
        return self._number[rows[order]].tolist(), float(worth[order].sum())

    def page(
        self, name: str | None, item: int | None = None, skip: Sequence[int] = ()
    ) -> dict[str, Any]:
        with self._lock:
            if item is not None:
                name = self.item(item).place.name
            names = (self._class(name),) if name else self.classes
            offered = {k: self.best(k, skip) for k in names}
            chosen = max(offered, key=lambda k: (bool(offered[k][0]), offered[k][1]))
            numbers = offered[chosen][0]
            if item is not None:
                numbers = [item, *(n for n in numbers if n != item)][:PAGE]
            return {
                "class": chosen,
                "items": [self.shown(n) for n in numbers],
                "references": [self.shown(n) for n in self.references[chosen]],
                "classes": self.progress(),
            }

    def progress(self) -> list[dict[str, Any]]:
        rows = []
        made = (self.items[n].decision for n in self._by_hand)
        drawn = [d.accepted.name for d in made if d is not None and d.do == "accept"]
        for k, name in enumerate(self.classes):
            of_class = self._label == k
            rows.append(
                {
                    "name": name,
                    "mined": int((of_class & self._mined).sum()),
                    "decided": int((of_class & self._mined & self._is_decided).sum()),
                    "accepted": int((of_class & self._is_right).sum()) + drawn.count(name),
                    "rejected": int((of_class & self._is_decided & ~self._is_right).sum()),
                    "candidates": int((of_class & ~self._mined & ~self._is_decided).sum()),
                }
            )
        return rows

    def write_shots(self, path: Path) -> None:
        """A file of the run's shots of novel classes and of all accepted boxes in its data."""
        shots, mined = self.data.novel_shots, self.data.mined
        accepted, _ = accepted_and_rejected(settled(self.journal.decisions))
        files = {*mined.files}
        found = [p for p in accepted if not p.extra and p.picture in files]
        of_shots = [
            place
            for place, _ in _annotated(shots, self.labels.novel)
            if not any(
                p[:3] == place[:3] and iou_of_two(p.box, place.box) >= SAME_PLACE for p in found
            )
        ]
        write_shots(path, united(mined, shots), self.labels.novel, [*of_shots, *found], "reviewed")

    def others(self, number: int) -> list[dict[str, Any]]:
        """The other boxes, with the annotated base boxes of the picture."""
        item = self.items[number]
        base = () if item.place.extra else self._base.get(item.place.picture, ())
        boxes = [{"id": None, "kind": "base", "class": p.name, "box": p.box} for p in base]
        return boxes + super().others(number)


def _is_right(item: Item) -> bool:
    """Whether the decision says that the offered class is there."""
    decision = item.decision
    if decision is None or decision.do != "accept":
        return False
    return decision.accepted.name == item.place.name


def _places(
    data: Dataset, novel: Sequence[str], extra: bool, boxes: Any
) -> Iterator[tuple[Place, float]]:
    """The places of a pool or of candidates, with their scores."""
    columns = (boxes.image, boxes.label, boxes.xywh, boxes.score)
    for image, label, box, score in zip(*(c.tolist() for c in columns), strict=True):
        yield Place(data.files[image], extra, novel[label], tuple(box)), score


def _annotated(data: Dataset, names: tuple[str, ...]) -> Iterator[tuple[Place, int]]:
    """The annotated boxes of some classes, with the number of their picture."""
    boxes = data.boxes.take(is_of(data, names) & data.boxes.sound)
    for image, label, (x, y, width, height) in zip(
        boxes.image.tolist(), boxes.label.tolist(), boxes.xywh.tolist(), strict=True
    ):
        box = (x, y, width, height)
        yield Place(data.files[image], False, data.classes[label], box), image


@contextmanager
def reviewed_run(run: Path, out: Path | None = None, links: bool = False) -> Iterator[MinedReview]:
    """The review of a run; afterwards its pool has the decisions.

    `out` is a file of shots: those of the run, and the accepted boxes.
    """
    if out is not None and is_file(out) and not is_sample(out):
        raise UserError(
            f"{out}: exists, and is not a file of shots.", "Choose another file for -o."
        )
    if not is_file(run / CONFIG_FILE):
        raise UserError(
            f"{run}: not the folder of a run (it has no {CONFIG_FILE}).",
            "Create a run with `mini run` first. To draw boxes on photos, name the class: --novel.",
        )
    if not is_file(run / "mine" / "pool.json"):
        raise UserError(
            f"{run}: nothing has been mined in this run yet.",
            f"Type mini run {run} --to mine first.",
        )
    with lock(run / ".review.lock") as alone:
        if not alone:
            raise UserError(
                f"{run}: another `mini review` of this run is open.",
                "Use its page, or stop it first.",
            )
        _refresh(run)
        journal = Journal(run / JOURNAL)
        try:
            review = MinedReview(run, journal, links)
            yield review
            if out is not None:
                review.write_shots(out)
        finally:
            journal.close()
            _refresh(run)


def _refresh(run: Path) -> None:
    with lock(run / ".lock") as alone:
        if alone:
            refresh_pools(run, real(run / "mine"))
        else:
            console.note(
                f"{run}: a run works in this folder; the next `mini run` brings {POOL} up to date"
            )
