from __future__ import annotations

import math

import pytest

from mini_fsod.data.text import is_text, number, shown


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), (" 1.5 ", 1.5), ("-2e3", -2000), ("inf", math.inf)]
)
def test_number_reads_numbers(text: str, value: float) -> None:
    assert number(text) == value


def test_number_reads_nan() -> None:
    assert math.isnan(number("nan"))


@pytest.mark.parametrize("text", ["", "x", "1_0", "1,5", "0x10", "\u0661", "1 2"])
def test_number_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        number(text)


def test_is_text_refuses_lone_surrogates() -> None:
    assert is_text("bird")
    assert is_text("\u9ce5 \U0001f426")
    assert not is_text("b\ud800rd")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ([1] * 10**6, "a list"),
        ({"a": 1}, "an object"),
        ("a\nb", '"a\\nb"'),
        ("c\ud800", '"c\\ud800"'),
        ("x" * 10**6, '"' + "x" * 56 + "..."),
    ],
)
def test_shown_is_short_and_printable(value: object, words: str) -> None:
    assert shown(value) == words
