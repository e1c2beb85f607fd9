"""Exactly K boxes of each class from the field's lists: all 30 seeds, 5 K and 20 classes.

python benchmarks/official_shots.py DEVKIT    (VOC 2007 and 2012; ../shared/voc unpacked by default)
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path

from mini_fsod.data.official_shots import choose_shots, voc_lists
from mini_fsod.data.read import read
from mini_fsod.data.shots import balanced_set, sample_digest
from mini_fsod.labels import SPLITS

SHOTS = (1, 2, 3, 5, 10)
SHARED = Path(__file__).resolve().parents[2] / "shared" / "voc" / "annotations.tar.xz"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        devkit = Path(sys.argv[1]) if len(sys.argv) > 1 else unpacked(Path(folder))
        if devkit is None:
            print("skipped: give a VOC devkit, or put ../shared/voc beside the checkout")
            return
        start = time.perf_counter()
        data = read(devkit, subset="trainval")
        print(f"read {len(data):,} training images in {time.perf_counter() - start:.1f} s")
        start = time.perf_counter()
        exact, lists = 0, 0
        notes: list[str] = []
        for seed in range(30):
            of_seed = voc_lists(seed)
            for shots in SHOTS:
                chosen = choose_shots(data, SPLITS["voc-split1"], of_seed, shots, seed)
                sample = balanced_set(data, chosen)
                counts = Counter(sample.boxes.label.tolist())
                lists += len(counts)
                exact += sum(n == shots for n in counts.values())
                notes += chosen.notes
                if seed == 0:
                    print(
                        f"seed 0, {shots:2} shots: {len(sample):3} images, {sample_digest(sample)}"
                    )
        print(f"{exact} of {lists} lists give exactly K, in {time.perf_counter() - start:.1f} s")
        print(*notes, sep="\n")


def unpacked(folder: Path) -> Path | None:
    if not SHARED.exists():
        return None
    with tarfile.open(SHARED) as archive:
        archive.extractall(folder, filter="data")
    for year in ("VOC2007", "VOC2012"):
        (folder / year / "JPEGImages").mkdir(exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
