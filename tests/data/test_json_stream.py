from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_fsod.data import json_stream
from mini_fsod.data.json_stream import JsonError, records

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


values = st.recursive(scalars, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=8)


def test_records_yields_lists_by_element(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": [1, {"b": 2}], "c": {"d": [3]}, "e": [], "f": "g"}')
    assert list(records(path)) == [
        ("a", 0, 1),
        ("a", 1, {"b": 2}),
        ("c", -1, {"d": [3]}),
        ("e", -1, []),
        ("f", -1, "g"),
    ]


@pytest.mark.parametrize(
    "chunk",
    [1, pytest.param(7, marks=pytest.mark.slow), pytest.param(1 << 22, marks=pytest.mark.slow)],
)
@settings(max_examples=60, deadline=None)
@given(content=st.dictionaries(st.text(), values))
def test_records_equals_json_for_any_object(
    tmp_path_factory: pytest.TempPathFactory, chunk: int, content: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / f"stream-{chunk}.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8", "surrogatepass")
    before, json_stream.CHUNK = json_stream.CHUNK, chunk
    try:
        try:
            "".join(json.dumps(content, ensure_ascii=False)).encode()
        except UnicodeEncodeError:  # lone surrogates are not UTF-8
            with pytest.raises(JsonError, match="UTF-8"):
                list(records(path))
            return
        back: dict[str, object] = {k: [] for k, v in content.items() if isinstance(v, list)}
        for key, index, value in records(path):
            if index < 0:
                back[key] = value
            else:
                part = back[key]
                assert isinstance(part, list)
                part.append(value)
        assert back == content
    finally:
        json_stream.CHUNK = before


@pytest.mark.parametrize(
    ("text", "record", "what"),
    [
        ("[1, 2]", "", "not a JSON object"),
        ("", "", "not a JSON object"),
        ('{"a": [1, 2', "a[1]", "incomplete"),
        ('{"a": [1, {"b": ', "a[1]", "not a JSON value"),
        ('{"a": [{"b" 1}]}', "a[0]", "broken JSON"),
        ('{"a": [1 2]}', "a[0]", "expected"),
        ('{"a": 1} x', "", "after the end"),
        ('{"a": 1, "a": 2}', "a", "twice"),
        ("{1: 2}", "", "not a string"),
        ('{"a": [nonsense]}', "a[0]", "not a JSON value"),
        ('{"a": ' + "[" * 200_000, "a[0]", "nested too deep"),
        ('{"a": [' + "9" * 5000 + "]}", "a[0]", "digits"),
    ],
)
def test_records_names_the_record_of_an_error(
    tmp_path: Path, text: str, record: str, what: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(JsonError) as error:
        list(records(path))
    assert error.value.record == record
    assert what in error.value.what


def test_records_refuses_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(JsonError, match="UTF-8"):
        list(records(path))


def test_records_limits_the_length_of_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 1000)
    monkeypatch.setattr(json_stream, "RECORD_CHARACTERS", 5000)
    path = tmp_path / "x.json"
    path.write_text('{"a": ["' + "x" * 100_000)
    with pytest.raises(JsonError, match="a value is longer than"):
        list(records(path))


def test_records_skips_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert list(records(path)) == [("a", -1, 1)]


def test_records_stops_at_lists_of_non_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "JSON_NON_OBJECTS", 100)
    path = tmp_path / "x.json"
    path.write_text('{"a": [' + "1," * 200 + "1]}")
    with pytest.raises(JsonError, match="not objects") as error:
        list(records(path))
    assert error.value.record == "a[100]"
    path.write_text('{"a": [' + "{}," * 200 + "1]}")
    assert len(list(records(path))) == 201


def test_records_scans_long_values_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window doubles: a value of 1,000 chunks is not scanned 1,000 times."""
    monkeypatch.setattr(json_stream, "CHUNK", 100)
    scans = []
    scan = json_stream._scan
    monkeypatch.setattr(json_stream, "_scan", lambda *a: scans.append(1) or scan(*a))
    path = tmp_path / "x.json"
    path.write_text("{" + " " * 100_000 + '"a": "' + "x" * 100_000 + '"}')
    assert list(records(path)) == [("a", -1, "x" * 100_000)]
    assert len(scans) < 20


def test_records_refuses_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(OSError, match="not a regular file"):
        list(records(tmp_path / "x.json"))
