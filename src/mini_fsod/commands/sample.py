"""`mini sample`: exactly K boxes of every class, drawn or from the field's official lists."""

from __future__ import annotations

from pathlib import Path

from mini_fsod import console
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.layout import SAMPLE, data_folder, is_sample
from mini_fsod.data.official_shots import Lists, choose_shots, lists_from_file, voc_lists
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.data.shots import balanced_set, draw_shots, sample_digest
from mini_fsod.data.subsets import arranged, is_of, training_part
from mini_fsod.data.write import write_coco
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, real
from mini_fsod.labels import LabelMap, label_map


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
    for line in data.notes:
        console.note(line)
    _refuse_sources(path, out)
    lists, all_sets = None, False
    if official is not None:
        lists, all_sets = _lists(official, seed)
    part = None if all_sets or subset is not None else training_part(data)
    labels, empty = _with_boxes(label_map(data.classes, split, novel), data, path, subset)
    whole, data = data, data if part is None else data.subset(part)
    if lists is None:
        chosen, origin = draw_shots(data, labels, shots, seed, subset or part, whole), "drawn"
    else:
        chosen = choose_shots(data, labels, lists, shots, seed)
        origin = f"official {Path(official or '').name}"
    sample = balanced_set(data, chosen)
    if empty:
        kept = tuple(name for name in data.classes if name not in empty)
        sample = arranged(sample, LabelMap(kept, ()))
    notes = [f"{name}: left out, the data has not a single box of it" for name in empty]
    notes += chosen.notes
    digest = sample_digest(sample)
    each = console.count(len(labels.classes), "class")
    info = {
        "made_by": SAMPLE,  # first, where it is seen without reading the whole file
        "description": f"{console.count(shots, 'box')} of each of {each}",
        "shots": shots,
        "seed": seed,
        "origin": origin,
        "subset": subset or part,
        "sha256": digest,
        "notes": notes,
    }
    write_coco(out, sample, labels, info)
    for line in notes:
        console.note(line)
    source = f"{origin}, from {part}" if part else origin
    console.note(
        f"{out}: {console.count(len(sample.boxes), 'box')} in {console.count(len(sample), 'image')}, "
        f"{shots} of each of {each} ({source}), seed {seed}"
    )
    console.note(f"sha256 {digest}")
    hidden = [(name, int(is_of(data, (name,)).sum()) - shots) for name in labels.novel]
    if any(left > 0 for _, left in hidden):
        told = ", ".join(f"{name} {left:,}" for name, left in hidden if left > 0)
        console.note(f"boxes that a run hides from training, to judge what is mined: {told}")


def _lists(official: str, seed: int) -> tuple[Lists, bool]:
    """The lists of a seed, and whether they name images of all image sets, as COCO's do."""
    if official == "voc":
        return voc_lists(seed), False
    return lists_from_file(Path(official), seed)


def _with_boxes(
    labels: LabelMap, data: Dataset, path: Path, subset: str | None
) -> tuple[LabelMap, list[str]]:
    """The label map without base classes that no image set has a box of, and these classes.

    Labelling sites export the name of the project as a class of its own, above all others. A class
    that other image sets have is really missing, so all are asked.
    """
    empty = [name for name in labels.base if not is_of(data, (name,)).any()]
    if empty and subset is not None:
        everything, _ = read_with_problems(path)
        empty = [name for name in empty if not is_of(everything, (name,)).any()]
    return LabelMap(tuple(c for c in labels.base if c not in empty), labels.novel), empty


def _refuse_sources(path: Path, out: Path) -> None:
    """Of what lies in the data folder only an older sample may be written over."""
    target = real(out)
    inside = real(data_folder(path)) in target.parents or target == real(path)
    if is_file(out) and inside and not is_sample(out):
        raise UserError(
            f"{out} is there already, in the data folder, and no sample: it would be lost.",
            "Choose another place for -o.",
        )
