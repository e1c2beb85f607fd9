"""`mini sample`: exactly K boxes of every class, drawn or from the field's official lists."""

from __future__ import annotations

from pathlib import Path

from mini_fsod import show
from mini_fsod.data.coco import write_coco
from mini_fsod.data.kshot import balanced_set, draw, fingerprint, training_part
from mini_fsod.data.official import choose, lists_from_file, voc_lists
from mini_fsod.data.read import read
from mini_fsod.errors import UserError
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
    part = training_part(data) if subset is None else None
    if part is not None:
        data = data.subset(part)
    labels = label_map(data.classes, split, novel)
    if official is None:
        chosen = draw(data, labels, shots, seed)
        origin = "drawn"
    else:
        lists = voc_lists(seed) if official == "voc" else lists_from_file(Path(official), seed)
        chosen = choose(data, labels, lists, shots, seed)
        origin = f"official {Path(official).name}"
    sample = balanced_set(data, chosen)
    digest = fingerprint(sample)
    info = {
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
    show.note(
        f"{out}: {len(sample.boxes)} boxes in {len(sample)} images, {shots} of each of "
        f"{len(labels.classes)} classes ({origin}{f', from {part}' if part else ''}), seed {seed}"
    )
    show.note(f"sha256 {digest}")
