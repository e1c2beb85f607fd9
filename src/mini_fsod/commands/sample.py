"""`mini sample`: exactly K boxes of every class, drawn at random or from published lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from mini_fsod import console
from mini_fsod.commands.options import Data, Novel, Split, Subset, app, out_option, read_data
from mini_fsod.data.layout import SAMPLE, data_folder, is_sample
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, real
from mini_fsod.labels import LabelMap, label_map

if TYPE_CHECKING:
    from mini_fsod.data.dataset import Dataset


@app.command("sample")
def sample_command(
    data: Data,
    shots: Annotated[
        int,
        Option(
            metavar="NUMBER", min=1, max=10_000, help="Boxes of each class, K. Example: --shots 5"
        ),
    ],
    out: Annotated[Path, out_option("The COCO JSON to write.", "shots.json")],
    novel: Novel = None,
    split: Split = None,
    subset: Subset = None,
    seed: Annotated[
        int, Option(metavar="NUMBER", min=0, help="Seed of the draw. Example: --seed 3")
    ] = 0,
    official: Annotated[
        str | None,
        Option(
            metavar="voc|FILE",
            help="Take published shots, from a file or those of VOC. Example: --official voc",
        ),
    ] = None,
) -> None:
    """Draw K boxes of every class as the shots.

    The same seed draws the same boxes on every machine.
    Example: mini sample data/photos --novel bird,bus --shots 5 --seed 0 -o shots.json
    """
    from mini_fsod.data.official_shots import choose_shots, official_lists
    from mini_fsod.data.shots import balanced_set, draw_shots, sample_digest
    from mini_fsod.data.subsets import arranged, is_of, training_part
    from mini_fsod.data.write import write_coco

    dataset = read_data(data, subset, "has no boxes to draw")
    _refuse_overwriting_data(data, out)
    lists, from_all_sets = (None, False) if official is None else official_lists(official, seed)
    part = None if from_all_sets or subset is not None else training_part(dataset)
    candidates = dataset if part is None else dataset.subset(part)
    labels, empty = _without_empty(label_map(dataset.classes, split, novel), dataset, data, subset)
    if lists is None:
        chosen = draw_shots(candidates, labels, shots, seed, subset or part, dataset)
        origin = "drawn"
    else:
        chosen = choose_shots(candidates, labels, lists, shots, seed)
        origin = f"official {Path(official or '').name}"
    sample = balanced_set(candidates, chosen)
    if empty:
        kept = tuple(name for name in candidates.classes if name not in empty)
        sample = arranged(sample, LabelMap(kept, ()))
    left_out = [f"{name}: left out, because the data has no box of it" for name in empty]
    notes = [*left_out, *chosen.notes]
    digest = sample_digest(sample)
    classes = console.count(len(labels.classes), "class")
    info = {
        "made_by": SAMPLE,  # first, so that `is_sample` finds it without reading the whole file
        "description": f"{console.count(shots, 'box')} of each of {classes}",
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
    size = f"{console.count(len(sample.boxes), 'box')} in {console.count(len(sample), 'image')}"
    console.note(f"{out}: {size}, {shots} of each of {classes} ({source}), seed {seed}")
    console.note(f"sha256 {digest}")
    others = [(name, int(is_of(candidates, (name,)).sum()) - shots) for name in labels.novel]
    counts = ", ".join(f"{name} {count:,}" for name, count in others if count > 0)
    if counts:
        console.note(f"other novel boxes, hidden from training and used to audit mining: {counts}")


def _without_empty(
    labels: LabelMap, dataset: Dataset, path: Path, subset: str | None
) -> tuple[LabelMap, list[str]]:
    """The label map without the base classes that have no box in any image set; these classes.

    Labelling sites export the project's name as a class above all others. A class with boxes in
    another image set than `subset` stays, so that the draw reports it as too small.
    """
    from mini_fsod.data.read import read_with_problems
    from mini_fsod.data.subsets import is_of

    empty = [name for name in labels.base if not is_of(dataset, (name,)).any()]
    if empty and subset is not None:
        all_sets, _ = read_with_problems(path)
        empty = [name for name in empty if not is_of(all_sets, (name,)).any()]
    return LabelMap(tuple(c for c in labels.base if c not in empty), labels.novel), empty


def _refuse_overwriting_data(path: Path, out: Path) -> None:
    """Inside the data folder, only an older sample may be overwritten."""
    target = real(out)
    inside = real(data_folder(path)) in target.parents or target == real(path)
    if is_file(out) and inside and not is_sample(out):
        raise UserError(
            f"{out} is a file of the data, not a sample, and would be overwritten.",
            "Choose another file for -o.",
        )
