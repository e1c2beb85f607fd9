from __future__ import annotations

import json
from pathlib import Path

from helpers import tiny
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.data.write import write_coco
from mini_fsod.labels import split_by_novel


def test_write_coco_reads_back_the_same(tmp_path: Path) -> None:
    source = read(tiny.write_voc(tmp_path / "voc"))
    labels = split_by_novel(["bird"], source.classes)
    write_coco(tmp_path / "out.json", source, labels, {"description": "x"})
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["info"]["label_map"] == labels.to_json()
    assert [i["source_id"] for i in content["images"]] == ["a", "b", "c"]
    assert all(isinstance(i["id"], int) for i in content["images"])
    back, problems = read_with_problems(tmp_path / "out.json", root=tmp_path / "voc")
    assert problems == []
    assert tiny.boxes_of(back) == tiny.EXPECTED
    assert back.boxes.difficult.tolist() == source.boxes.difficult.tolist()
    assert back.category_ids == source.category_ids
    assert all(back.path(i).is_file() for i in range(3))
