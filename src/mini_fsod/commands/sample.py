"""`mini sample`: exactly K boxes of every class, drawn or from the field's official lists."""

from __future__ import annotations

from pathlib import Path

from mini_fsod import show
from mini_fsod.data.home import SAMPLE, data_folder, is_sample
from mini_fsod.data.kshot import balanced_set, draw, fingerprint, training_part
from mini_fsod.data.official import choose, lists_from_file, voc_lists
from mini_fsod.data.read import read
from mini_fsod.data.write import write_coco
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, real
from mini_fsod.labels import label_map


def run(
    path: Path,
    novel: str | None,
    split: str | None,
    subset: str | None,
    official: str | None,
    shots: int,
    seed: int,
    out: Path,
) -> None:
    data = read(path, subset)
    if data.kind == "folder":
        raise UserError(
            f"{path}: pictures without annotations have no boxes to draw.", "Give a data set."
        )
    _refuse_sources(path, out)
    part = training_part(data) if subset is None else None
    if official is None:
        data = data if part is None else data.subset(part)
        labels = label_map(data.classes, split, novel)
        chosen = draw(data, labels, shots, seed)
        origin = "drawn"
    else:
        lists, all_sets = voc_lists(seed), False
        if official != "voc":
            lists, all_sets = lists_from_file(Path(official), seed)
        part = None if all_sets else part
        data = data if part is None else data.subset(part)
        labels = label_map(data.classes, split, novel)
        chosen = choose(data, labels, lists, shots, seed)
        origin = f"official {Path(official).name}"
    sample = balanced_set(data, chosen)
    digest = fingerprint(sample)
    info = {
        "made_by": SAMPLE,  # first, where it is seen without reading the whole file
        "description": f"{shots} boxes of each of {len(labels.classes)} classes",
        "shots": shots,
        "seed": seed,
        "origin": origin,
        "subset": subset or part,
        "sha256": digest,
        "notes": list(chosen.notes),
    }
    write_coco(out, sample, labels, info)
    for line in chosen.notes:
        show.note(line)
    source = f"{origin}, from {part}" if part else origin
    show.note(
        f"{out}: {show.count(len(sample.boxes), 'box')} in {show.count(len(sample), 'image')}, "
        f"{shots} of each of {show.count(len(labels.classes), 'class')} ({source}), seed {seed}"
    )
    show.note(f"sha256 {digest}")


def _refuse_sources(path: Path, out: Path) -> None:
    """Of what lies in the data folder only an older sample may be written over."""
    target = real(out)
    inside = real(data_folder(path)) in target.parents or target == real(path)
    if is_file(out) and inside and not is_sample(out):
        raise UserError(
            f"{out} is there already, in the data folder, and no sample: it would be lost.",
            "Choose another place for -o.",
        )
