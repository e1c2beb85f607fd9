"""A short run whose class and file names are hostile HTML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import shapes
from helpers.tiny_run import short_config
from mini_fsod.runs import stages

HOSTILE = '<script>alert("1")</script>&\u202e'
HOSTILE_FILE = '"><img src=x onerror=alert(1)>.png'


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages, mined and scored; its new class and some of its pictures have hostile names. Not
    to be changed.
    """
    data = shapes.write_data(tmp_path_factory.mktemp("report") / "data")
    for part in ("train", "test"):
        path = data / "annotations" / f"{part}.json"
        content = json.loads(path.read_text())
        content["categories"][2]["name"] = HOSTILE
        image = content["images"][0]
        (data / part / image["file_name"]).rename(data / part / HOSTILE_FILE)
        image["file_name"] = HOSTILE_FILE
        path.write_text(json.dumps(content))
    out = data.parent / "runs" / "hostile"
    config = short_config(data, data__novel=json.dumps([HOSTILE]), online__delta=0.01)
    stages.run(config, out, command="mini run <b>", anyway=True)
    return out
