"""VOC as somebody has it who has photos and five boxes: for measuring a run without base labels.

python benchmarks/photos_without_labels.py DEVKIT -o OUT
python benchmarks/photos_without_labels.py DEVKIT -o OUT --photos 300 --novel bus --test 500

Writes COCO files that name the devkit's pictures, so that nothing is copied (give the devkit as
data.pictures and shots.root):

    OUT/without/annotations/train.json   photos of VOC07+12 trainval, without any box
    OUT/with/annotations/train.json      the same photos with all their boxes, for comparison
    OUT/*/annotations/test.json          VOC07 test, labelled
    OUT/five.json                        the official shots of seed 0, of the new classes alone

The photos are those of the shots and others at random. Classes of the split that are neither base
nor --novel are left out everywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.data.official_shots import choose_shots, voc_lists
from mini_fsod.data.read import read
from mini_fsod.data.shots import balanced_set
from mini_fsod.data.subsets import arranged
from mini_fsod.data.write import write_coco
from mini_fsod.labels import SPLITS, LabelMap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devkit", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=2_000)
    parser.add_argument("--shots", type=int, default=5, help="boxes of each new class")
    parser.add_argument("--split", default="voc-split1", choices=sorted(SPLITS))
    parser.add_argument("--novel", nargs="+", help="new classes; default: those of the split")
    parser.add_argument("--test", type=int, help="only so many pictures of the test set")
    parser.add_argument("--seed", type=int, default=0, help="of the photos")
    options = parser.parse_args()
    split = SPLITS[options.split]
    labels = LabelMap(split.base, tuple(options.novel or split.novel))
    rng = np.random.default_rng(options.seed)
    devkit = read(options.devkit)
    train = devkit.subset("trainval")
    lists = voc_lists(0)
    chosen = choose_shots(train, LabelMap((), labels.novel), lists, options.shots, seed=0)
    shots = arranged(balanced_set(train, chosen), LabelMap((), labels.novel))
    photos = arranged(train.select(photos_of(train, shots, options.photos, rng)), labels)
    test = arranged(some(devkit.subset("test"), options.test, rng), labels)
    for name, data in (("without", photos.with_boxes(NO_BOXES)), ("with", photos)):
        for part, content in (("train", data), ("test", test)):
            path = options.out / name / "annotations" / f"{part}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_coco(path, content, labels, {})
    write_coco(options.out / "five.json", shots, LabelMap((), labels.novel), {})
    print(
        f"{options.out}: {len(photos):,} photos with {len(photos.boxes):,} boxes, "
        f"{len(shots.boxes)} shots in {len(shots)}, {len(test):,} pictures to test on"
    )


def photos_of(data: Dataset, shots: Dataset, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of the pictures of the shots, and of others up to that number."""
    is_shot = np.isin(data.files, shots.files)
    others = rng.permutation(np.flatnonzero(~is_shot))[: max(0, count - int(is_shot.sum()))]
    return np.sort(np.concatenate([np.flatnonzero(is_shot), others]))


def some(data: Dataset, count: int | None, rng: np.random.Generator) -> Dataset:
    if count is None or count >= len(data):
        return data
    return data.select(np.sort(rng.choice(len(data), count, replace=False)))


if __name__ == "__main__":
    main()
