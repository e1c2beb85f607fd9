"""Write any data set as COCO JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_fsod.data.dataset import Dataset, ImageId
from mini_fsod.files import write_json
from mini_fsod.labels import LabelMap


def write_coco(
    path: Path, data: Dataset, labels: LabelMap, info: Mapping[str, Any], first: int = 1
) -> None:
    """Write COCO JSON, with the label map in `info.label_map`.

    Category numbers and integer ids stay. Other ids become `source_id`, and new ones are counted
    from `first`.
    """
    numbers: dict[ImageId, int] = {
        id_: id_ if isinstance(id_, int) else n for n, id_ in enumerate(data.ids, start=first)
    }
    images = [
        {"id": numbers[id_], "file_name": name, "width": width, "height": height}
        | ({} if isinstance(id_, int) else {"source_id": id_})
        for id_, name, (width, height) in zip(
            data.ids, data.files, data.sizes.tolist(), strict=True
        )
    ]
    boxes = data.boxes
    columns = (boxes.image, boxes.xywh, boxes.label, boxes.area)
    annotations = [
        {
            "id": n + 1,
            "image_id": numbers[data.ids[image]],
            "category_id": data.category_ids[label],
            "bbox": box,
            "area": area,
            "iscrowd": int(boxes.crowd[n]),
        }
        | ({"ignore": 1} if boxes.ignore[n] else {})
        | ({"difficult": 1} if boxes.difficult[n] else {})
        | ({"score": float(boxes.score[n])} if boxes.score[n] >= 0 else {})
        for n, (image, box, label, area) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]
    content = {
        "info": {**info, "label_map": labels.to_json()},
        "images": images,
        "annotations": annotations,
        "categories": [
            {"id": number, "name": name}
            for number, name in zip(data.category_ids, data.classes, strict=True)
        ],
    }
    write_json(path, content)
