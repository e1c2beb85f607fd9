"""Damaged files give a clear problem or a correct reading, nothing else."""

from __future__ import annotations

import json
import math
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import tiny
from mini_fsod.data.check import box_problems, picture_problems
from mini_fsod.data.read import read_with_problems
from mini_fsod.data.repair import repair, write_repaired
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap

EXAMPLES = 1200

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    st.sampled_from([2**63, -(2**70), 10**400, 1e308, math.nan, math.inf, -0.0, 0.5]),
    st.text(max_size=4),
    st.sampled_from(["\ud800", "c\udfffr", "1_0", "\u0661", "1", "true", "x" * 300, "a\x1b[2J"]),
    st.sampled_from(
        ["../x.png", "/etc/passwd", "a.png", "C:\\x.png", "a\0b", "..", "b.png/../a.png"]
    ),
    st.lists(st.integers(-5, 120), max_size=5),
    st.just({}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a JSON value that can be exchanged."""
    inner: list[tuple[Any, ...]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in items:
        inner.append((*path, key))
        if isinstance(part, dict | list):
            inner += places(part, (*path, key))
    return inner


@st.composite
def damaged_json(draw: st.DrawFn) -> bytes:
    content = tiny.coco()
    content["annotations"][0]["ignore"] = content["annotations"][1]["difficult"] = 1
    if draw(st.integers(0, 9)) == 0:
        content[draw(st.sampled_from(list(content)))] = []
    for _ in range(draw(st.integers(0, 2))):
        *way, last = draw(st.sampled_from(places(content)))
        part: Any = content
        for key in way:
            if not isinstance(part, dict | list) or (isinstance(part, dict) and key not in part):
                break
            if isinstance(part, list) and not (isinstance(key, int) and key < len(part)):
                break
            part = part[key]
        else:
            if isinstance(part, dict) and last in part and draw(st.booleans()):
                del part[last]
            elif isinstance(part, dict) or (isinstance(part, list) and last < len(part)):
                part[last] = draw(odd_values)
    return damaged_bytes(draw, json.dumps(content).encode())


def damaged_bytes(draw: st.DrawFn, text: bytes) -> bytes:
    """Cut off, a stretch left out or doubled, a byte exchanged; or as it was."""
    kind = draw(st.sampled_from(["as is", "cut", "drop", "double", "exchange"]))
    at = draw(st.integers(0, len(text) - 1))
    n = draw(st.integers(1, 12))
    return {
        "as is": text,
        "cut": text[:at],
        "drop": text[:at] + text[at + n :],
        "double": text[: at + n] + text[at:],
        "exchange": text[:at] + draw(st.binary(min_size=1, max_size=2)) + text[at + 1 :],
    }[kind]


def sound_coco(text: bytes) -> set[tuple[str, str, tuple[float, ...]]] | None:
    """A plain reading of a COCO file that is right in every respect, else None."""
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    try:
        files = {i["id"]: i["file_name"] for i in content["images"]}
        names = {c["id"]: c["name"] for c in content["categories"]}
        if len(set(names.values())) < len(content["categories"]):
            return None
        for a in content["annotations"]:
            flags = [a.get(k, 0) for k in ("iscrowd", "ignore", "difficult")]
            area = a.get("area", 0)
            if any(flag not in (0, 1) for flag in flags) or type(area) not in (int, float):
                return None
            if not 0 <= area <= 1.8e308:
                return None
        "".join([*files.values(), *names.values()]).encode()
        return {
            (
                Path(files[a["image_id"]]).stem,
                names[a["category_id"]].strip(),  # as the reader does
                tuple(round(v, 6) for v in a["bbox"]),
            )
            for a in content["annotations"]
        }
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return None


def read_if_sound(path: Path) -> set[tuple[str, str, tuple[float, ...]]] | None:
    """What was read, or None if there are problems; any other exception fails."""
    try:
        data, problems = read_with_problems(path)
    except UserError as error:
        if not (error.what and error.fix):
            raise AssertionError("an error without message or fix") from error
        return None
    problems += box_problems(data)
    for problem in problems:
        str(problem).encode()
        assert problem.file
        assert problem.what
        assert problem.fix
        assert len(str(problem)) < 400
    return None if problems else tiny.boxes_of(data)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None)
@given(text=damaged_json())
def test_coco(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(text)
    found = read_if_sound(path)
    if found is not None:
        assert found == sound_coco(text)


@st.composite
def damaged_xml(draw: st.DrawFn) -> bytes:
    text = tiny.voc_xml("a")
    if draw(st.booleans()):
        old = draw(
            st.sampled_from(
                ["10", "20", "11", "21", "100", "80", "bird", "a.png", "0", "<size>", "ult>0"]
            )
        )
        new = draw(
            st.sampled_from(
                "|nan|-7|1e999|x|&lol;|../../b.png|<!-- -->|0|1_1|ult>2|ult>True|\u0661".split("|")
            )
        )
        text = text.replace(old, new, 1)
    if draw(st.integers(0, 5)) == 0:
        text = '<!DOCTYPE x [<!ENTITY lol "lol"><!ENTITY l2 "&lol;&lol;">]>' + text
    return damaged_bytes(draw, text.encode())


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None)
@given(text=damaged_xml())
def test_voc(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    home = tmp_path_factory.getbasetemp() / "damaged-voc"
    (home / "Annotations").mkdir(parents=True, exist_ok=True)
    (home / "Annotations" / "a.xml").write_bytes(text)
    found = read_if_sound(home)
    if found is not None:
        assert b"<!DOCTYPE" not in text
        tree = ET.fromstring(text)
        texts = [
            [o.findtext(f"bndbox/{k}") for k in ("xmin", "ymin", "xmax", "ymax")]
            for o in tree.findall("object")
        ]
        assert all(t.isascii() and "_" not in t for row in texts for t in row)
        numbers = [[float(t) for t in row] for row in texts]
        flags = {(o.findtext("difficult") or "").strip() for o in tree.findall("object")}
        assert flags <= {"", "0", "1"}
        plain = {(x - 1, y - 1, r - x + 1, b - y + 1) for x, y, r, b in numbers}
        assert {box for _, _, box in found} == {tuple(round(v, 6) for v in p) for p in plain}


@st.composite
def damaged_line(draw: st.DrawFn) -> bytes:
    text = "0 0.25 0.5 0.3 0.5\n2 0.6 0.25 0.2 0.25\n"
    if draw(st.booleans()):
        old = draw(st.sampled_from(["0.25", "0 ", "2 ", "\n", " 0.5"]))
        new = draw(
            st.sampled_from(
                [
                    "",
                    "nan ",
                    "-0.7",
                    "7 ",
                    "1e999",
                    "x",
                    " 0.1 0.1",
                    "0.5 ",
                    "1.5 ",
                    "0_1 ",
                    "\ufeff",
                ]
            )
        )
        text = text.replace(old, new, 1)
    return damaged_bytes(draw, text.encode())


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None)
@given(text=damaged_line())
def test_yolo(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    home = tmp_path_factory.getbasetemp() / "damaged-yolo"
    if not home.exists():
        tiny.write_yolo(home)
    (home / "labels" / "train" / "a.txt").write_bytes(text)
    found = read_if_sound(home)
    if found is not None:
        words = text.decode("utf-8-sig")
        assert words.isascii()
        assert "_" not in words
        lines = [[float(w) for w in line.split()] for line in words.splitlines() if line.strip()]
        assert all(line[0] in (0, 1, 2) and len(line) >= 5 and len(line) % 2 for line in lines)
        boxes = {
            (round((cx - w / 2) * 100, 6), round((cy - h / 2) * 80, 6))
            for _, cx, cy, w, h in (line for line in lines if len(line) == 5)
        }
        assert boxes <= {box[:2] for stem, _, box in found if stem == "a"}


@settings(max_examples=200, deadline=None)
@given(
    text=st.binary(max_size=40)
    | st.text(max_size=60).map(lambda t: t.encode("utf-8", "replace"))
    | st.tuples(st.sampled_from(["train", "names", "path", "nc"]), st.text(max_size=20)).map(
        lambda pair: f"train: .\n{pair[0]}: {pair[1]}\n".encode("utf-8", "replace")
    )
)
def test_data_yaml(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    home = tmp_path_factory.getbasetemp() / "damaged-yaml"
    home.mkdir(exist_ok=True)
    (home / "data.yaml").write_bytes(text)
    assert read_if_sound(home) is None


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=damaged_json())
def test_a_repaired_copy_is_sound(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    home = tmp_path_factory.getbasetemp() / "damaged-coco"
    path = tiny.write_coco(home)
    path.write_bytes(text)
    out = home / "repaired"
    shutil.rmtree(out, ignore_errors=True)
    data, _ = read_with_problems(path)
    good = repair(data, picture_problems(data, decode=True)[1])
    if len(good.data.boxes):  # else a copy would have none, and is refused
        write_repaired(out, good.data, good.labels(LabelMap(data.classes[1:], data.classes[:1])))
        assert read_if_sound(out) == tiny.boxes_of(good.data)
