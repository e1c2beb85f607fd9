"""YAML as strings, and YAML that is read back as it was."""

from __future__ import annotations

from time import process_time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.plain_yaml import format_yaml, parse_yaml


def test_parse_yaml_keeps_every_scalar_a_string() -> None:
    text = "{a: no, b: 1.0, c: null, d: 1e-4, e: [on, 2024-01-01]}"
    assert parse_yaml(text) == {
        "a": "no",
        "b": "1.0",
        "c": "null",
        "d": "1e-4",
        "e": ["on", "2024-01-01"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", "aliases are not supported"),
        ("a: 1\nb: {c: 1, c: 2}", "duplicate key c in the table at line 2"),
    ],
)
def test_parse_yaml_rejects_aliases_and_duplicate_keys(text: str, message: str) -> None:
    with pytest.raises(yaml.YAMLError, match=message):
        parse_yaml(text)


def test_format_yaml_keeps_order_and_writes_lists_on_one_line() -> None:
    assert format_yaml({"b": [1, 2], "a": "ä"}) == "b: [1, 2]\na: ä\n"


@given(st.lists(st.text()))
def test_format_yaml_is_read_back_equal(words: list[str]) -> None:
    assert parse_yaml(format_yaml({"words": words}))["words"] == words


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"k{n}: v\n" for n in range(40_000)),
        "- a\n" * 200_000,
        "[" + "a, " * 200_000 + "]",
        "[" * 500_000,
        "- " * 500_000,
    ],
    ids=["keys", "list", "flow", "brackets", "dashes"],
)
def test_parse_yaml_refuses_too_many_values_in_seconds(text: str) -> None:
    start = process_time()
    with pytest.raises((yaml.YAMLError, RecursionError)):
        parse_yaml(text)
    assert process_time() - start < 10


def test_parse_yaml_takes_time_in_proportion_to_the_keys() -> None:
    """Each key was compared with all before it: 24,000 keys took 6 seconds."""
    text = "".join(f"k{n}: v\n" for n in range(24_000))
    start = process_time()
    assert len(parse_yaml(text)) == 24_000
    assert process_time() - start < 4
