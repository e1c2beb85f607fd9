"""What `mini convert` writes, read by the tools' own code, where it is installed.

pip install datumaro label-studio-sdk fiftyone. FiftyOne needs a MongoDB, too: where it brings none,
FIFTYONE_DATABASE_URI names one. None of them is a dependency: what was tried last is in
docs/file-formats.md.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import tiny
from mini_fsod.data.convert import convert
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
WHY = "not installed: the tool that reads the file"


@pytest.fixture(params=[False, True], ids=["annotated", "detected"])
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Dataset:
    """Annotations, or the same boxes with scores."""
    tiny.write_coco(tmp_path / "data")
    annotated = read(tmp_path / "data")
    boxes = annotated.boxes
    kept = boxes.take(boxes.sound & ~boxes.crowd & ~boxes.ignore)
    values = {name: getattr(kept, name) for name in kept.__slots__}
    if request.param:
        values["score"] = np.linspace(0.25, 0.9, len(kept))
    return annotated.with_boxes(type(kept)(**values))


def rows(data: Dataset) -> list[tuple[Any, ...]]:
    """Comparable boxes: file, class, box, score."""
    boxes = data.boxes
    columns = zip(boxes.image.tolist(), boxes.label.tolist(), boxes.xywh, boxes.score, strict=True)
    return sorted(
        (Path(data.files[i]).stem, data.classes[k], *np.round(box, 1).tolist(), shown(score))
        for i, k, box, score in columns
    )


def shown(score: Any) -> float:
    """-1 for none."""
    return -1.0 if score is None or np.isnan(float(score)) else round(float(score), 4)


@pytest.mark.parametrize("to", ["coco", "cvat", "yolo", "voc"])
def test_datumaro_reads_what_convert_writes(data: Dataset, tmp_path: Path, to: str) -> None:
    datumaro = pytest.importorskip("datumaro", reason=WHY)
    if to in ("yolo", "voc") and np.isfinite(data.boxes.score).any():
        pytest.skip("no place for scores")
    out = tmp_path / "out"
    if to == "coco":
        convert(data, out / "annotations" / "instances_train.json", to)
        shutil.copytree(data.root, out / "images" / "train")
    elif to == "cvat":
        convert(data, out / "annotations.xml", to)
        shutil.copytree(data.root, out / "images")
    else:
        convert(data, tmp_path / "links", to)
        shutil.copytree(tmp_path / "links", out)  # it refuses links that lead out of the folder
    kind = {"coco": "coco_instances", "voc": "voc_detection"}.get(to, to)
    found = datumaro.Dataset.import_from(str(out), kind)
    names = found.categories()[datumaro.AnnotationType.label]
    aside = float(to == "voc")  # it takes pixel 1 for 1, and the last one for the edge
    assert sorted(
        (
            Path(item.id).stem,
            names[box.label].name,
            *(round(v, 1) for v in (box.x - aside, box.y - aside, box.w + aside, box.h + aside)),
            shown(box.attributes.get("score")),
        )
        for item in found
        for box in item.annotations
    ) == rows(data)


def test_label_studio_accepts_what_convert_writes(data: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("label_studio_sdk", reason=WHY)
    from label_studio_sdk.converter import Converter
    from label_studio_sdk.label_interface import LabelInterface

    convert(data, tmp_path / "tasks.json", "label-studio")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    labels = "".join(f'<Label value="{name}"/>' for name in data.classes)
    tags = '<Image name="image" value="$image"/><RectangleLabels name="label" toName="image">'
    config = f"<View>{tags}{labels}</RectangleLabels></View>"
    interface = LabelInterface(config)
    predicted = [one for task in tasks for one in task.get("predictions", ())]
    assert bool(predicted) == np.isfinite(data.boxes.score).any()
    for one in predicted:
        assert interface.validate_prediction(one)
    for task in tasks:
        for one in task.get("annotations", ()):
            assert interface.validate_annotation(one)
        if "predictions" in task:  # as a person who accepts them
            task["annotations"] = [{"result": task.pop("predictions")[0]["result"]}]
    (tmp_path / "accepted.json").write_text(json.dumps(tasks))
    Converter(config=config, project_dir=None).convert_to_coco(
        str(tmp_path / "accepted.json"), str(tmp_path / "coco"), is_dir=False,
        output_image_dir=str(tmp_path / "images"),
    )  # fmt: skip
    found = json.loads((tmp_path / "coco" / "result.json").read_text())
    boxes = sorted(tuple(np.round(box["bbox"], 1).tolist()) for box in found["annotations"])
    assert boxes == sorted(row[2:6] for row in rows(data))


def test_fiftyone_reads_what_convert_writes_and_writes_it_back(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FIFTYONE_DO_NOT_TRACK", "true")
    fiftyone = pytest.importorskip("fiftyone", reason=WHY)
    kind = fiftyone.types.FiftyOneDataset
    convert(data, tmp_path / "out", "fiftyone")
    try:
        fiftyone.list_datasets()
    except Exception as error:
        pytest.skip(f"FiftyOne has no database: {error}")
    found = fiftyone.Dataset.from_dir(dataset_dir=str(tmp_path / "out"), dataset_type=kind)
    try:
        assert [Path(path).is_file() for path in found.values("filepath")] == [True] * len(data)
        back = tmp_path / "back"
        found.export(export_dir=str(back), dataset_type=kind, export_media=False)
    finally:
        found.delete()
    assert rows(read(back, root=data.root)) == rows(data)
