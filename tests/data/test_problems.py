from __future__ import annotations

import re
from pathlib import Path

from mini_fsod.data import problems
from mini_fsod.data.problems import KINDS, UNREPAIRED, outcome
from mini_fsod.errors import Problem

FOLDER = Path(problems.__file__).parent
REPORTED = re.compile(
    r'(?:report|problems|Problem|PictureError|report_annotations)\(\s*"([a-z-]+)"'
)


def test_every_kind_that_is_reported_has_a_fix_and_an_outcome() -> None:
    kinds = {k for path in FOLDER.glob("*.py") for k in REPORTED.findall(path.read_text())}
    assert {"box-duplicate", "picture-missing", "set-leak", "box-rotated"} <= kinds
    assert kinds <= set(KINDS)
    assert set(UNREPAIRED) <= set(KINDS)


def test_outcome_depends_on_the_record_of_a_duplicate_id() -> None:
    records = ("image 3", "category 3", "annotation 3")
    found = [outcome(Problem("id-duplicate", "a.json", record, "", "")) for record in records]
    assert [text.split()[0] for text in found] == ["images", "boxes", "renumbered"]
