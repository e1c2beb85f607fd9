"""Ways of comparing crops with shots, judged by rankings and pools of real crops.

    python benchmarks/rank_crops.py crops.npz [--seeds 6] [--only rankings pools ...]

`crops.npz` is from `benchmarks/crops_of_voc.py`. There is no detector: every crop may be of every
new class, with the same detector score. Two sets of new classes: split 1's, and the same with
horse, sheep and train moved from base to novel, so that new classes look alike. Crops of a shot's
picture are left out, and so are annotated base objects (`mine.drop_on_base`).

- rankings: average precision of each class among objects, parts and background
- pools: of the 100 and 200 best of a class, how many are right, and how many another new class
- tiny: shots with a side below 48 pixels are cropped with twice their sides; all 30 seeds
- five: rankings with five shots
- classes: how many objects of new classes are most like their own class, a re-classifier's limit
- estimate: does the mean similarity of the 100 best of a class tell how many are right? Its rank
  correlation with their precision over classes and seeds
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mini_fsod.data.dataset import Bools, Floats, Ints
from mini_fsod.labels import VOC_CLASSES
from mini_fsod.mining.crop_similarity import AXES, CropFeatures, unit_vectors

SPLIT1 = ("bird", "bus", "cow", "motorbike", "sofa")
SETS = {"split 1": SPLIT1, "moved": (*SPLIT1, "horse", "sheep", "train")}
ANNOTATED = ("object", "background", "part")
DRIFTED = ("moved", "background", "part")
PER_BASE_CLASS, BEST, TINY = 60, 100, 48
PARTS = ("rankings", "five", "pools", "classes", "estimate", "tiny")


class Case(NamedTuple):
    """n candidates and the shots of one draw."""

    crops: CropFeatures  # features of the candidates
    truth: Ints  # (n,) index of the new class, -1: none
    classes: int

    def similarities(self, way: Callable[[CropFeatures, Ints, Ints], Floats]) -> Floats:
        """(n, C) every crop as a candidate of every class."""
        n, c = len(self.truth), self.classes
        row, label = np.repeat(np.arange(n), c), np.tile(np.arange(c), n)
        return way(self.crops, row, label).reshape(n, c)


def shots_alone(crops: CropFeatures, row: Ints, label: Ints) -> Floats:
    return crops.similarity_to_shots(row, label)


def refined(rounds: int) -> Callable[[CropFeatures, Ints, Ints], Floats]:
    def way(crops: CropFeatures, row: Ints, label: Ints) -> Floats:
        score = crops.similarity_to_shots(row, label)
        for _ in range(rounds):
            score = crops.similarity_to_best(row, label, score, BEST)
        return score

    return way


def competing(share: float) -> Callable[[CropFeatures, Ints, Ints], Floats]:
    def way(crops: CropFeatures, row: Ints, label: Ints) -> Floats:
        return crops.competing_similarity(row, label, np.ones(len(row)), BEST, share)

    return way


def graph(crops: CropFeatures, row: Ints, label: Ints) -> Floats:
    """Labels of shots, and "none" of base boxes, spread over the 20 nearest neighbours."""
    classes, neighbours, keep = int(label.max()) + 1, 20, 0.99
    x = unit_vectors(np.concatenate([crops.shots, crops.base, crops.pairs])).astype(np.float32)
    shots, known = len(crops.shots), len(crops.shots) + len(crops.base)
    like = x @ x.T
    np.fill_diagonal(like, -1)
    near = np.argpartition(-like, neighbours, axis=1)[:, :neighbours]
    weight = np.zeros_like(like)
    np.put_along_axis(weight, near, np.maximum(np.take_along_axis(like, near, 1), 0) ** 3, 1)
    weight = (weight + weight.T) / 2
    root = np.sqrt(np.maximum(weight.sum(1), 1e-12))
    weight /= root[:, None] * root
    start = np.zeros((len(x), classes + 1), dtype=np.float32)
    start[np.arange(shots), crops.shots_label] = 1
    start[shots:known, classes] = 1
    start /= start.sum(0)
    spread = start
    for _ in range(100):
        spread = keep * (weight @ spread) + (1 - keep) * start
    return np.asarray((spread / root[:, None])[known:][row, label], dtype=np.float64)


WAYS: dict[str, Callable[[CropFeatures, Ints, Ints], Floats]] = {
    "shots": shots_alone,
    "refined": refined(1),
    "refined, 3 rounds": refined(3),
    "graph": graph,
    "competing, 0.25": competing(0.25),
    "competing, 0.5": competing(0.5),
    "competing, 0.75": competing(0.75),
}


class Crops:
    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.all = {name: file[name] for name in file.files}
        self._bases: dict[tuple[str, ...], tuple[Ints, Floats, Floats]] = {}

    def case(
        self,
        novel: tuple[str, ...],
        seed: int,
        kinds: tuple[str, ...],
        shot: str = "shot",
        wide: bool = False,
    ) -> Case:
        """The candidates of these kinds and the shots of a seed; `wide`: tiny ones with context."""
        kind, label = self.all["kind"], self.all["label"]
        index = [VOC_CLASSES.index(name) for name in novel]
        is_novel = np.isin(label, index)
        base, mean, axes = self._base(novel, is_novel)
        shots = self._rows((kind == shot) & (self.all["seed"] == seed) & is_novel)
        found = self._rows(np.isin(kind, kinds) & (is_novel | (label < 0)))
        found = found[~np.isin(self.all["image"][found], self.all["image"][shots])]
        seen = shots.copy()
        if wide:
            others = self._rows((kind == "shot2") & (self.all["seed"] == seed) & is_novel)
            tiny = self.all["xywh"][shots, 2:].min(1) < TINY
            at = [int(np.flatnonzero(label[others] == label[s])[0]) for s in shots]
            seen = np.where(tiny, others[at], shots)
        pairs, of_base, of_shots = (
            (self.all["features"][rows] - mean) @ axes for rows in (found, base, seen)
        )
        known = np.array([index.index(c) for c in label[shots]])
        correction = np.ones((len(novel), 3))
        crops = CropFeatures(pairs, of_base, label[base], of_shots, known, correction)
        is_object = np.isin(kind[found], ("object", "moved")) & (label[found] >= 0)
        truth = np.array(
            [index.index(c) if o else -1 for c, o in zip(label[found], is_object, strict=True)]
        )
        return Case(crops.whitened(), truth, len(novel))

    def _rows(self, mask: Bools) -> Ints:
        return np.flatnonzero(mask)

    def _base(self, novel: tuple[str, ...], is_novel: Bools) -> tuple[Ints, Floats, Floats]:
        """Annotated base boxes, their mean feature and its principal axes."""
        if novel not in self._bases:
            kind, label = self.all["kind"], self.all["label"]
            of_base = [
                np.flatnonzero((kind == "object") & (label == c) & ~is_novel)[:PER_BASE_CLASS]
                for c in range(len(VOC_CLASSES))
            ]
            rows = np.concatenate(of_base)
            features = self.all["features"][rows].astype(np.float64)
            mean = features.mean(0)
            _, _, axes = np.linalg.svd(features - mean, full_matrices=False)
            self._bases[novel] = rows, mean, axes[:AXES].T
        return self._bases[novel]


def average_precision(score: Floats, right: Bools) -> float:
    hits = right[np.argsort(-score, kind="stable")]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def line(name: str, table: Floats) -> None:
    by_class = " ".join(f"{v:3.0f}" for v in table.mean(0))
    by_seed = " ".join(f"{v:.0f}" for v in table.mean(1))
    print(f"  {name:22} {table.mean():5.1f} | {by_class} | by seed {by_seed}", flush=True)


def rank(
    crops: Crops, novel: tuple[str, ...], seeds: int, kinds: tuple[str, ...], shot: str = "shot",
    ways: tuple[str, ...] = tuple(WAYS), wide: bool = False,
) -> None:  # fmt: skip
    for name in ways:
        table = []
        for seed in range(seeds):
            case = crops.case(novel, seed, kinds, shot, wide)
            found = case.similarities(WAYS[name])
            columns = enumerate(found.T)
            table.append([100 * average_precision(s, case.truth == c) for c, s in columns])
        line(f"{name}{', wide' if wide else ''}", np.array(table))


def pools(crops: Crops, novel: tuple[str, ...], seeds: int) -> None:
    for shot in ("shot", "shot5"):
        cases = [crops.case(novel, seed, ANNOTATED, shot) for seed in range(seeds)]
        for name in ("refined", "refined, 3 rounds", "competing, 0.25", "competing, 0.5", "graph"):
            tables = [case.similarities(WAYS[name]) for case in cases]
            for margin in (None, 0.0, 0.1) if name.startswith("refined") else (None,):
                for most in (100, 200):
                    text = name if margin is None else f"{name}, margin {margin}"
                    pool(f"{text}, {shot}, best {most}", cases, tables, margin, most)


def pool(
    title: str, cases: list[Case], tables: list[Floats], margin: float | None, most: int
) -> None:
    right, other, size = [], [], []
    for case, table in zip(cases, tables, strict=True):
        found = table if margin is None else table * (table - best_other(table) >= margin)
        for c, score in enumerate(found.T):
            best = np.argsort(-score, kind="stable")[:most]
            best = best[score[best] > 0]
            size.append(len(best))
            if len(best):
                right.append((case.truth[best] == c).mean())
                other.append(((case.truth[best] != c) & (case.truth[best] >= 0)).mean())
    print(
        f"  {title:46} right {100 * np.mean(right):.1f}, another new class "
        f"{100 * np.mean(other):.1f}, smallest {min(size)}",
        flush=True,
    )


def best_other(found: Floats) -> Floats:
    """(n, C) the best of the other classes."""
    each = [np.delete(found, c, 1).max(1) for c in range(found.shape[1])]
    return np.stack(each, 1)


def classes(crops: Crops, novel: tuple[str, ...], seeds: int) -> None:
    for shot in ("shot", "shot5"):
        for name in ("shots", "refined", "competing, 0.5"):
            table = []
            for seed in range(seeds):
                case = crops.case(novel, seed, ANNOTATED, shot)
                nearest = case.similarities(WAYS[name]).argmax(1)
                each = [nearest[case.truth == c] == c for c in range(case.classes)]
                table.append([100 * right.mean() for right in each])
            line(f"{name}, {shot}", np.array(table))


def estimate(crops: Crops, novel: tuple[str, ...], seeds: int) -> None:
    for name in ("refined", "competing, 0.5"):
        mean, right = [], []
        for seed in range(seeds):
            case = crops.case(novel, seed, ANNOTATED)
            for c, score in enumerate(case.similarities(WAYS[name]).T):
                best = np.argsort(-score, kind="stable")[:BEST]
                mean.append(score[best].mean())
                right.append((case.truth[best] == c).mean())
        ranks = np.stack([np.argsort(np.argsort(values)) for values in (mean, right)])
        agreement = np.asarray(np.corrcoef(ranks))[0, 1]
        print(f"  {name:22} rank correlation {agreement:.2f} of {len(mean)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("crops", type=Path)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--only", nargs="*", default=PARTS)
    options = parser.parse_args()
    crops = Crops(options.crops)
    for title, novel in SETS.items():
        if "rankings" in options.only:
            for kinds in (("object", "background"), ANNOTATED, DRIFTED):
                print(f"{title}, {', '.join(kinds)}: {' '.join(novel)}")
                rank(crops, novel, options.seeds, kinds)
        if "five" in options.only:
            print(f"{title}, five shots")
            ways = ("refined", "competing, 0.5")
            rank(crops, novel, options.seeds, ANNOTATED, "shot5", ways)
        if "pools" in options.only:
            print(f"{title}, pools")
            pools(crops, novel, options.seeds)
        for part, measure in (("classes", classes), ("estimate", estimate)):
            if part in options.only:
                print(f"{title}, {part}")
                measure(crops, novel, options.seeds)
    if "tiny" in options.only:
        print("split 1, tiny shots, 30 seeds")
        for wide in (False, True):
            rank(crops, SPLIT1, 30, ANNOTATED, ways=("refined", "competing, 0.5"), wide=wide)


if __name__ == "__main__":
    main()
