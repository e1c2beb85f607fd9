"""Split a VOC devkit for `mini study external`: half of the training images become a folder without
annotations.

    python benchmarks/unlabelled_half.py VOCdevkit halves
    mini study external --set data.root=halves/devkit \
      --set mine.extra=halves/unlabelled -o runs/external

`halves/devkit` is the devkit with every second training image; the images of the official
lists of seeds 0 to 2 stay. `halves/unlabelled` has the other images alone. Pictures are links.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mini_fsod.data.official_shots import voc_lists

SEEDS = 3  # of the lists whose images stay
YEARS = ("VOC2007", "VOC2012")


def main(devkit: Path, out: Path) -> None:
    listed = {
        str(image)
        for seed in range(SEEDS)
        for classes in voc_lists(seed).values()
        for images in classes.values()
        for image in images
    }
    extra = out / "unlabelled"
    extra.mkdir(parents=True)
    for year in YEARS:
        source, target = devkit / year, out / "devkit" / year
        sets = target / "ImageSets" / "Main"
        sets.mkdir(parents=True)
        for name in ("JPEGImages", "Annotations"):
            (target / name).symlink_to((source / name).resolve(), target_is_directory=True)
        lists = source / "ImageSets" / "Main"
        names = (lists / "trainval.txt").read_text().split()
        kept = [name for n, name in enumerate(names) if n % 2 == 0 or name in listed]
        (sets / "trainval.txt").write_text("".join(f"{name}\n" for name in kept))
        if (lists / "test.txt").exists():
            (sets / "test.txt").write_bytes((lists / "test.txt").read_bytes())
        pictures = {path.stem: path for path in (source / "JPEGImages").iterdir()}
        others = sorted({*names} - {*kept})
        for name in others:
            picture = pictures[name]
            (extra / picture.name).symlink_to(picture.resolve())
        print(f"{year}: {len(kept):,} training images, {len(others):,} unlabelled")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
