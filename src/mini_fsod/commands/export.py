"""`mini export`: a detector as an ONNX file, compared with the detector before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from mini_fsod import console
from mini_fsod.commands.options import RunOrCheckpoint, app, out_option
from mini_fsod.errors import UserError
from mini_fsod.files import CONFIG_FILE, is_file

if TYPE_CHECKING:
    from mini_fsod.export.compare import ModelComparison

COMPARED = 4  # pictures of the run's data in which both must find the same


@app.command("export")
def export_command(
    run_or_checkpoint: RunOrCheckpoint,
    out: Annotated[
        Path | None,
        out_option("The file; default: model.onnx in the run's folder.", "bolts.onnx"),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        Option(
            metavar="IMAGES",
            help="Compare in these images, not the run's; repeatable. Example: --compare photos",
        ),
    ] = None,
) -> None:
    """Write a detector as an ONNX file for other programs.

    Resizing, normalisation and NMS are inside. The file is written only if onnxruntime finds the
    same boxes in some images as PyTorch.
    Example: mini export runs/first -o first.onnx
    """
    from mini_fsod import checkpoint
    from mini_fsod.export.write import made_pictures, write_onnx
    from mini_fsod.predict.pictures import ImageLike, find_pictures
    from mini_fsod.predict.torch_model import TorchModel

    source = checkpoint.find(run_or_checkpoint)
    target = (
        out or (source.parent if is_file(run_or_checkpoint) else run_or_checkpoint) / "model.onnx"
    )
    if target.suffix.lower() != ".onnx":
        raise UserError(f"{target}: not the name of an ONNX file.", f"Name it {target}.onnx.")
    pictures: list[ImageLike] = []
    if compare:
        found, failed = find_pictures(compare)
        if failed:
            raise UserError(f"{failed[0].path}: {failed[0].why}.", "Give images or folders.")
        pictures += [picture.path for picture in found]
    else:
        pictures += _pictures_of_run(run_or_checkpoint)
    where = "images" if pictures else "generated images"
    model = TorchModel.read(source, "cpu")
    console.note(f"detector: {source}")
    result = write_onnx(target, model, pictures or made_pictures())
    same, reduced = result.same_pixels, result.own_reduction
    console.out.print(
        f"{console.plain(target)}: {target.stat().st_size / 1e6:,.1f} MB. Equal to PyTorch in "
        f"{same.pictures:,} {where}: {_within(same)}. In {reduced.pictures:,} large ones that the "
        f"file reduces itself: {_within(reduced)}.",
        soft_wrap=True,
    )
    if same.lone or reduced.lone:
        console.note(
            f"found by only one of the two: {same.lone:,} detections, and {reduced.lone:,} in "
            "pictures that the file reduces; that few are no fault"
        )


def _within(found: ModelComparison) -> str:
    return (
        f"{found.detections:,} detections, boxes within {found.box:.3f} pixels, scores within "
        f"{found.score:.5f}"
    )


def _pictures_of_run(run: Path) -> list[Path]:
    """Some pictures of a run's data, evenly spread; none where the data is not there."""
    from mini_fsod.config.load import resolve
    from mini_fsod.data.pictures import PictureError, picture_size
    from mini_fsod.data.read import read

    if not is_file(run / CONFIG_FILE):
        return []
    try:
        config = resolve(run / CONFIG_FILE).data
        if config.root is None:
            return []
        data = read(config.root, root=config.pictures)
        chosen = [data.path(len(data) * n // COMPARED) for n in range(min(COMPARED, len(data)))]
        for path in chosen:
            picture_size(path)
    except (UserError, PictureError) as error:
        console.note(f"the run's data cannot be read, so generated images are compared: {error}")
        return []
    return chosen
